"""Python's packages: ``/pypi/simple/NAME/`` and ``/pypi/files/...``."""

from __future__ import annotations

from functools import partial

from sandlot.egress.answers import Answer, Refusal, preferred
from sandlot.egress.digests import Digest, of_token
from sandlot.egress.documents import Documents
from sandlot.egress.download import Wanted
from sandlot.egress.files import Files
from sandlot.egress.pages import Input, Page
from sandlot.egress.registries import rendering, simple
from sandlot.egress.registries.asked import Request
from sandlot.egress.registries.serving import bytes_of, served
from sandlot.egress.sources.values import Pypi
from sandlot.egress.upstream import Upstream

_METADATA = ".metadata"
_HTML = "text/html; charset=utf-8"
_VARIANTS = {simple.JSON_TYPE: "json", "application/vnd.pypi.simple.latest+json": "json", simple.HTML_TYPE: "html", "text/html": "html"}


class PypiRegistry:
    """It.

    Args:
        sources: Where packages come from.
        upstream: How that is reached.
        documents: For pages.
        files: For files.
    """

    def __init__(self, sources: Pypi, upstream: Upstream, documents: Documents, files: Files) -> None:
        self._sources = sources
        self._upstream = upstream
        self._documents = documents
        self._files = files

    async def answer(self, request: Request) -> Answer:
        """Answer what comes below ``/pypi/``.

        Raises:
            Refusal: There is nothing to be had.
        """
        match request.segments[1:]:
            case ("simple", name) if simple.is_name(name):
                return await self._page(request, name)
            case ("files", project, digest, metadata, filename) if simple.is_name(project) and not request.folder:
                return await self._file(request, project, digest, metadata, filename)
            case ("simple",):
                raise Refusal(404, "This index does not list all projects: ask for one, at /pypi/simple/NAME/.")
            case _:
                raise Refusal(404, "There is /pypi/simple/NAME/ and what that links to.")

    async def _page(self, request: Request, name: str) -> Answer:
        project = simple.normalized(name)
        if project != name or not request.folder:
            raise Refusal(301, "There.", (("Location", f"/pypi/simple/{project}/"),))
        # What is first here is what a client gets that does not mind.
        kind = preferred(request.headers.get("accept"), ("text/html", *_VARIANTS))
        document = await self._documents.get(self._of(project), self._upstream)
        if document.missing:
            raise Refusal(404, f"No package index that this host uses has {project}.")
        variant = _VARIANTS[kind]
        media_type = _HTML if kind == "text/html" else simple.JSON_TYPE if variant == "json" else kind
        return await served(self._documents, document, variant, media_type, request, (("Vary", "Accept"),))

    async def _file(self, request: Request, project: str, token: str, metadata_token: str, filename: str) -> Answer:
        digest, metadata = of_token(token), of_token(metadata_token)
        if (digest is None and token != rendering.UNKNOWN) or (metadata is None and metadata_token != rendering.UNKNOWN):
            raise Refusal(404, "That is no link of this index.")
        wants_metadata = filename.endswith(_METADATA)
        expected = metadata if wants_metadata else digest
        range_ = request.range(f'"{expected}"')
        if expected is not None and (found := await self._files.kept(expected, range_)) is not None:
            return found
        place = await self._place(project, filename.removesuffix(_METADATA), digest)
        if place is None or (wants_metadata and not (place.has_metadata and place.metadata == metadata)):
            raise Refusal(404, "No package index that this host uses has that file any more.")
        urls = tuple(f"{url}{_METADATA}" for url in place.urls) if wants_metadata else place.urls
        return await self._files.answer(Wanted(urls, expected), self._upstream, request.taking(f'"{expected}"'))

    async def _place(self, project: str, filename: str, digest: Digest | None) -> rendering.Place | None:
        """Where a file comes from: by what is known of the project, and only where that does not have it by what is fresh."""
        page = self._of(simple.normalized(project))
        for any_age in (True, False):
            document = await self._documents.get(page, self._upstream, any_age=any_age)
            table = None if document.missing else await bytes_of(self._documents, document, "table")
            place = rendering.find(table, filename) if table else None
            if place is not None and place.digest == digest:
                return place
        return None

    def _of(self, project: str) -> Page:
        indexes = [Input(f"{index}{project}/", simple.ACCEPT) for index in self._sources.indexes]
        links = [Input(link, listing=link.startswith("file:"), shared=not link.startswith("file:")) for link in self._sources.links]
        return Page(f"pypi/{project}", (*indexes, *links), partial(rendering.make, project=project))
