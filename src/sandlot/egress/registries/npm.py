"""JavaScript's packages: ``/npm/NAME``, ``/npm/@SCOPE/NAME`` and ``/npm/NAME/-/FILE.tgz``."""

from __future__ import annotations

import json
from functools import partial

from sandlot.egress.answers import JSON, Answer, of_bytes, preferred
from sandlot.egress.documents import Documents
from sandlot.egress.download import Wanted
from sandlot.egress.files import Files
from sandlot.egress.pages import Input, Page
from sandlot.egress.registries import packuments
from sandlot.egress.registries.asked import Request
from sandlot.egress.registries.serving import bytes_of, served
from sandlot.egress.sources.values import Npm
from sandlot.egress.upstream import Upstream


class NpmRegistry:
    """It.

    Args:
        sources: Where packages come from.
        upstream: How that is reached.
        documents: For packuments.
        files: For tarballs.
        origin: Where sandboxes find the cache.
    """

    def __init__(self, sources: Npm, upstream: Upstream, documents: Documents, files: Files, *, origin: str) -> None:
        self._sources = sources
        self._upstream = upstream
        self._documents = documents
        self._files = files
        self._origin = origin

    async def answer(self, request: Request) -> Answer:
        """Answer what comes below ``/npm/``.

        Raises:
            Refusal: There is nothing to be had.
        """
        match request.segments[1:]:
            case ("-", "ping"):
                return of_bytes(200, b"{}", JSON)
            case (name,) if packuments.is_package(name):
                return await self._packument(request, name)
            case (scope, name) if packuments.is_package(f"{scope}/{name}"):
                return await self._packument(request, f"{scope}/{name}")
            case (name, "-", file) if packuments.is_package(name):
                return await self._tarball(request, name, file)
            case (scope, name, "-", file) if packuments.is_package(f"{scope}/{name}"):
                return await self._tarball(request, f"{scope}/{name}", file)
            case _:
                return _not_found("This registry has packages and their files, and no search.")

    async def _packument(self, request: Request, name: str) -> Answer:
        short = preferred(request.headers.get("accept"), (JSON, packuments.SHORT_TYPE)) == packuments.SHORT_TYPE
        document = await self._documents.get(self._of(name, short=short), self._upstream)
        if document.missing:
            return _not_found(f"The registry that this host uses has no {name}.")
        return await served(self._documents, document, "body", packuments.SHORT_TYPE if short else JSON, request, (("Vary", "Accept"),))

    async def _tarball(self, request: Request, name: str, file: str) -> Answer:
        # What is known of a version does not change; what is fresh is asked for only where it is not known.
        for short, any_age in ((True, True), (False, True), (True, False)):
            document = await self._documents.get(self._of(name, short=short), self._upstream, any_age=any_age, fetch=not any_age)
            table = None if document.missing else await bytes_of(self._documents, document, "table")
            found = packuments.find(table, file) if table else None
            if found is not None:
                url, digest = found
                return await self._files.answer(Wanted((url,), digest), self._upstream, request.taking(f'"{digest}"'))
        return _not_found(f"The registry that this host uses has no {file} of {name}.")

    def _of(self, name: str, *, short: bool) -> Page:
        registry = self._sources.scopes.get(name.partition("/")[0], self._sources.registry) if name.startswith("@") else self._sources.registry
        make = partial(packuments.make, name=name, origin=self._origin, short=short)
        accept = packuments.ACCEPT_SHORT if short else packuments.ACCEPT_FULL
        return Page(f"npm/{self._origin}/{'short' if short else 'full'}/{name}", (Input(f"{registry}{packuments.path_of(name)}", accept),), make)


def _not_found(text: str) -> Answer:
    return of_bytes(404, json.dumps({"error": text}).encode(), JSON)
