"""Python packages: project pages at ``/pypi/simple/NAME/``, files at ``/pypi/files/...``."""

from __future__ import annotations

from functools import partial

from sandlot.egress.packages.config.values import PypiSources
from sandlot.egress.packages.digests import Digest, parse_digest
from sandlot.egress.packages.download import PackageFile
from sandlot.egress.packages.http import HttpError, Request, Response, preferred_type
from sandlot.egress.packages.index_page import IndexPage, PageInput
from sandlot.egress.packages.index_page_cache import IndexPageCache
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.registries import pypi_index, pypi_pages
from sandlot.egress.packages.registries.index_page_response import page_response
from sandlot.egress.packages.upstream import Upstream

_METADATA = ".metadata"
_HTML = "text/html; charset=utf-8"
_VARIANTS = {pypi_index.JSON_TYPE: "json", "application/vnd.pypi.simple.latest+json": "json", pypi_index.HTML_TYPE: "html", "text/html": "html"}


class PypiRegistry:
    """Responds to requests for project pages and files of Python packages.

    Args:
        sources: URLs of the upstream indexes.
        upstream: Client of the indexes.
        index_pages: Cache of index pages, for project pages.
        files: Creates the responses with distributions and their metadata files.
    """

    def __init__(self, sources: PypiSources, upstream: Upstream, index_pages: IndexPageCache, files: PackageFiles) -> None:
        self._sources = sources
        self._upstream = upstream
        self._index_pages = index_pages
        self._files = files

    async def respond(self, request: Request) -> Response:
        """Return the response to a request below ``/pypi/``.

        Raises:
            HttpError: There is no such page or file, the page is at another path, or upstream does not respond.
        """
        match request.segments[1:]:
            case ("simple", name) if pypi_index.is_project_name(name):
                return await self._respond_with_page(request, name)
            case ("files", project, digest, metadata, filename) if pypi_index.is_project_name(project) and not request.is_folder:
                return await self._respond_with_file(request, project, digest, metadata, filename)
            case ("simple",):
                raise HttpError(404, "This index has no list of all projects. Request the page of one project at /pypi/simple/NAME/.")
            case _:
                raise HttpError(404, "This index has only pages at /pypi/simple/NAME/ and the files that these pages link to.")

    async def _respond_with_page(self, request: Request, name: str) -> Response:
        project = pypi_index.normalize(name)
        if project != name or not request.is_folder:
            raise HttpError(301, f"The page has moved to /pypi/simple/{project}/.", (("Location", f"/pypi/simple/{project}/"),))
        # "text/html" is first: it is the type for clients without a preference.
        accepted = preferred_type(request.headers.get("accept"), ("text/html", *_VARIANTS))
        page = await self._index_pages.get(self._project_page(project), self._upstream)
        if page.is_missing:
            raise HttpError(404, f"No package index that this host uses has {project}.")
        variant = _VARIANTS[accepted]
        media_type = _HTML if accepted == "text/html" else pypi_index.JSON_TYPE if variant == "json" else accepted
        return await page_response(self._index_pages.pages, page, variant, media_type, request, (("Vary", "Accept"),))

    async def _respond_with_file(self, request: Request, project: str, token: str, metadata_token: str, filename: str) -> Response:
        digest, metadata = parse_digest(token), parse_digest(metadata_token)
        if (digest is None and token != pypi_pages.NO_DIGEST) or (metadata is None and metadata_token != pypi_pages.NO_DIGEST):
            invalid = f"{token[:64]!r} and {metadata_token[:64]!r}"
            raise HttpError(404, f"The URL of {filename} has invalid digests: {invalid}. Take the URL from the page /pypi/simple/{project}/.")
        wants_metadata = filename.endswith(_METADATA)
        expected = metadata if wants_metadata else digest
        file_request = request.file_request(f'"{expected}"' if expected else None)
        stored = await self._files.open_stored(PackageFile((), expected), file_request.range_)
        if stored is not None:
            return stored
        source = await self._find_source(project, filename.removesuffix(_METADATA), digest)
        if source is None or (wants_metadata and not (source.has_metadata and source.metadata == metadata)):
            raise HttpError(404, f"No package index that this host uses has {filename} now.")
        urls = tuple(f"{url}{_METADATA}" for url in source.urls) if wants_metadata else source.urls
        return await self._files.respond(PackageFile(urls, expected), self._upstream, file_request)

    async def _find_source(self, project: str, filename: str, digest: Digest | None) -> pypi_pages.FileSource | None:
        """Return the upstream URLs of a file, or None if no index has the file. A stored page of any age is searched first, then a fresh page."""
        project_page = self._project_page(pypi_index.normalize(project))
        for any_age in (True, False):
            page = await self._index_pages.get(project_page, self._upstream, any_age=any_age)
            table = None if page.is_missing else await self._index_pages.pages.read_all(page, "table")
            source = pypi_pages.find_source(table, filename) if table else None
            if source is not None and source.digest == digest:
                return source
        return None

    def _project_page(self, project: str) -> IndexPage:
        indexes = [PageInput(f"{index}{project}/", pypi_index.ACCEPT) for index in self._sources.indexes]
        links = [PageInput(link, is_listing=link.startswith("file:"), is_shared=not link.startswith("file:")) for link in self._sources.links]
        return IndexPage(f"pypi/{project}", (*indexes, *links), partial(pypi_pages.build_pages, project=project))
