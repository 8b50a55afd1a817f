"""JavaScript packages: metadata at ``/npm/NAME`` and ``/npm/@SCOPE/NAME``, tarballs at ``/npm/NAME/-/FILE.tgz``."""

from __future__ import annotations

import json
from functools import partial

from sandlot.egress.packages.config.values import NpmSources
from sandlot.egress.packages.download import PackageFile
from sandlot.egress.packages.http import JSON, Request, Response, bytes_response, preferred_type
from sandlot.egress.packages.index_page import IndexPage, PageInput
from sandlot.egress.packages.index_page_cache import IndexPageCache
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.registries import npm_metadata
from sandlot.egress.packages.registries.index_page_response import page_response
from sandlot.egress.packages.upstream import Upstream


class NpmRegistry:
    """Responds to requests for metadata and tarballs of JavaScript packages.

    Args:
        sources: Root URLs of the upstream registries.
        upstream: Client of the registries.
        index_pages: Cache of index pages, for package metadata.
        files: Creates the responses with tarballs.
        origin: Origin of the package cache inside a sandbox (``http://HOST:PORT``), for URLs in metadata.
    """

    def __init__(self, sources: NpmSources, upstream: Upstream, index_pages: IndexPageCache, files: PackageFiles, *, origin: str) -> None:
        self._sources = sources
        self._upstream = upstream
        self._index_pages = index_pages
        self._files = files
        self._origin = origin

    async def respond(self, request: Request) -> Response:
        """Return the response to a request below ``/npm/``.

        Raises:
            HttpError: The tarball does not exist, or upstream does not respond.
        """
        match request.segments[1:]:
            case ("-", "ping"):
                return bytes_response(200, b"{}", JSON)
            case (name,) if npm_metadata.is_package_name(name):
                return await self._respond_with_metadata(request, name)
            case (scope, name) if npm_metadata.is_package_name(f"{scope}/{name}"):
                return await self._respond_with_metadata(request, f"{scope}/{name}")
            case (name, "-", file) if npm_metadata.is_package_name(name):
                return await self._respond_with_tarball(request, name, file)
            case (scope, name, "-", file) if npm_metadata.is_package_name(f"{scope}/{name}"):
                return await self._respond_with_tarball(request, f"{scope}/{name}", file)
            case _:
                return _not_found("This registry has only package metadata at /npm/NAME and files at /npm/NAME/-/FILE.tgz.")

    async def _respond_with_metadata(self, request: Request, name: str) -> Response:
        short = preferred_type(request.headers.get("accept"), (JSON, npm_metadata.SHORT_TYPE)) == npm_metadata.SHORT_TYPE
        page = await self._index_pages.get(self._metadata_page(name, short=short), self._upstream)
        if page.is_missing:
            return _not_found(f"The registry that this host uses has no {name}.")
        media_type = npm_metadata.SHORT_TYPE if short else JSON
        return await page_response(self._index_pages.pages, page, "body", media_type, request, (("Vary", "Accept"),))

    async def _respond_with_tarball(self, request: Request, name: str, filename: str) -> Response:
        # A published version never changes, so stored metadata of any age is tried before a request to upstream.
        for short, any_age in ((True, True), (False, True), (True, False)):
            page = await self._index_pages.get(self._metadata_page(name, short=short), self._upstream, any_age=any_age, fetch=not any_age)
            table = None if page.is_missing else await self._index_pages.pages.read_all(page, "table")
            found = npm_metadata.find_file(table, filename) if table else None
            if found is not None:
                url, digest = found
                file_request = request.file_request(f'"{digest}"' if digest else None)
                return await self._files.respond(PackageFile((url,), digest), self._upstream, file_request)
        return _not_found(f"The registry that this host uses has no {filename} of {name}.")

    def _metadata_page(self, name: str, *, short: bool) -> IndexPage:
        registry = self._sources.scopes.get(name.partition("/")[0], self._sources.registry) if name.startswith("@") else self._sources.registry
        build = partial(npm_metadata.build_metadata, name=name, origin=self._origin, short=short)
        accept = npm_metadata.ACCEPT_SHORT if short else npm_metadata.ACCEPT_FULL
        key = f"npm/{self._origin}/{'short' if short else 'full'}/{name}"
        return IndexPage(key, (PageInput(f"{registry}{npm_metadata.url_path(name)}", accept),), build)


def _not_found(text: str) -> Response:
    return bytes_response(404, json.dumps({"error": text}).encode(), JSON)
