"""Debian packages: the archives ``/debian/`` and ``/debian-security/``, each with indexes in ``dists/`` and packages in ``pool/``.

apt in the sandbox verifies all files: Release files by their signatures, indexes by the digests in the Release file, and packages by the digests in
their index.

Invariants:
- Release files are cached as index pages and refreshed when they expire. Indexes in ``dists/`` must match their digests in the cached Release
  file, so that all indexes that a sandbox gets belong to the same version of the archive.
- An index is stored under its digest. A package is stored under its URL, because its name contains the version and its content never changes. Only
  complete files are stored.
- A request for a package with ``Cache-Control: no-cache`` downloads the package again and replaces the stored copy.
- All other files in ``pool/``, such as sources, are sent from upstream to the client without being stored.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from sandlot.egress.packages.config.values import DebianSources
from sandlot.egress.packages.digests import Digest, parse_digest
from sandlot.egress.packages.download import PackageFile
from sandlot.egress.packages.http import HttpError, Request, Response
from sandlot.egress.packages.index_page import IndexPage, unmodified_page
from sandlot.egress.packages.index_page_cache import IndexPageCache
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.registries.index_page_response import page_response
from sandlot.egress.packages.upstream import Upstream

MAX_RELEASES = 32
"""Maximum number of parsed Release files in memory. Each Release file names several hundred files."""
_SEGMENT = re.compile(r"[A-Za-z0-9._+~:%=@,!-]+")
_RELEASES = frozenset({"InRelease", "Release", "Release.gpg"})
_BY_HASH = {"SHA256": "sha256", "SHA512": "sha512"}
_TEXT = "text/plain"
_SHA256_SECTION = re.compile(r"^SHA256:\n((?: .*\n?)*)", re.MULTILINE)
_SHA256_LINE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (\S+)$", re.MULTILINE)


class DebianRegistry:
    """Responds to requests for files of the Debian archives.

    Args:
        sources: Root URLs of the upstream archives.
        upstream: Client of the archives.
        index_pages: Cache of index pages, for Release files.
        files: Creates the responses with all other files.
    """

    def __init__(self, sources: DebianSources, upstream: Upstream, index_pages: IndexPageCache, files: PackageFiles) -> None:
        self._sources = sources
        self._upstream = upstream
        self._index_pages = index_pages
        self._files = files
        self._releases: OrderedDict[str, Mapping[str, Digest]] = OrderedDict()

    async def respond(self, request: Request) -> Response:
        """Return the response to a request below ``/debian/`` or ``/debian-security/``.

        Raises:
            HttpError: The archive has no such file, or upstream does not respond.
        """
        archive, *names = request.segments
        if request.is_folder or not all(_SEGMENT.fullmatch(name) for name in names):
            raise HttpError(404, "The archive does not list its folders. Request a file in dists/ or pool/.")
        match names:
            case ["dists", suite, name] if name in _RELEASES:
                return await self._respond_with_release(request, archive, suite, name)
            case ["dists", _, *_, "by-hash", kind, value] if kind in _BY_HASH and (digest := parse_digest(f"{_BY_HASH[kind]}-{value}")):
                return await self._respond_with_file(request, PackageFile((self._url(archive, names),), digest))
            case ["dists", suite, _, *_]:
                digest = (await self._digests(archive, suite)).get("/".join(names[2:]))
                return await self._respond_with_file(request, PackageFile(self._index_urls(archive, names, digest), digest))
            case ["pool", _, *_]:
                is_package = names[-1].endswith(".deb")
                return await self._respond_with_file(request, PackageFile((self._url(archive, names),), None, is_verified_by_client=is_package))
            case _:
                raise HttpError(404, f"The archive has no {'/'.join(names)[:64]!r}, only files in dists/ and pool/.")

    async def _respond_with_release(self, request: Request, archive: str, suite: str, name: str) -> Response:
        page = await self._index_pages.get(self._release_page(archive, suite, name), self._upstream)
        if page.is_missing:
            raise HttpError(404, f"The archive that this host uses has no {suite}/{name}.")
        return await page_response(self._index_pages.pages, page, "body", _TEXT, request)

    async def _respond_with_file(self, request: Request, file: PackageFile) -> Response:
        return await self._files.respond(file, self._upstream, request.file_request(f'"{file.digest}"' if file.digest else None))

    async def _digests(self, archive: str, suite: str) -> Mapping[str, Digest]:
        """Return the digests in the cached Release file of a suite, by path. Empty if no sandbox has requested that Release file yet."""
        page = await self._index_pages.get(self._release_page(archive, suite, "InRelease"), self._upstream, any_age=True, fetch=False)
        if page.is_missing:
            return {}
        version = page.variants["body"]
        if version not in self._releases:
            text = await self._index_pages.pages.read_all(page, "body") or b""
            self._releases[version] = await asyncio.to_thread(parse_release, text.decode("utf-8", "replace"))
            if len(self._releases) > MAX_RELEASES:
                self._releases.popitem(last=False)
        return self._releases.get(version, {})

    def _release_page(self, archive: str, suite: str, name: str) -> IndexPage:
        url = self._url(archive, ["dists", suite, name])
        return unmodified_page(f"debian/{url}", url)

    def _index_urls(self, archive: str, names: Sequence[str], digest: Digest | None) -> tuple[str, ...]:
        by_name = self._url(archive, names)
        if digest is None:
            return (by_name,)
        # The URL with the digest stays valid when the archive is updated, so it is tried first.
        return (self._url(archive, [*names[:-1], "by-hash", "SHA256", digest.value]), by_name)

    def _url(self, archive: str, names: Sequence[str]) -> str:
        return self._sources.archives[archive] + "/".join(quote(name, safe="~+:@=,!") for name in names)


def parse_release(text: str) -> Mapping[str, Digest]:
    """Return the SHA-256 digests in a Release or InRelease file, by path. Paths are relative to the folder of the file. Pure."""
    section = _SHA256_SECTION.search(text.replace("\r\n", "\n"))
    return {path: Digest("sha256", value) for value, _, path in _SHA256_LINE.findall(section[1])} if section else {}
