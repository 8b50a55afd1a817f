"""Debian's packages: ``/debian/`` and ``/debian-security/``, each with ``dists/`` and ``pool/``.

Laws:
- apt itself checks signatures, inside. What is checked here is that the store keeps nothing but what an index names by its SHA-256.
- Release files are pages: fresh for a while. What they name is served as they name it, so that one set of indexes fits together.
- A file of the pool is known by the Packages indexes of the suites whose Release file went through here. One that is not is passed through
  and not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from sandlot.egress.answers import Answer, Refusal
from sandlot.egress.digests import Digest, of_token
from sandlot.egress.disk.shelf import Kind, Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.documents import Documents
from sandlot.egress.download import Wanted
from sandlot.egress.files import Files
from sandlot.egress.pages import Page, whole
from sandlot.egress.registries import packages
from sandlot.egress.registries.asked import Request
from sandlot.egress.registries.serving import bytes_of, served
from sandlot.egress.sources.values import Debian
from sandlot.egress.upstream import Upstream

_SEGMENT = re.compile(r"[A-Za-z0-9._+~:%=@,!-]+")
_RELEASES = frozenset({"InRelease", "Release", "Release.gpg"})
_BY_HASH = {"SHA256": "sha256", "SHA512": "sha512"}
_PLAIN = "text/plain"
SUITES_MAX = 64
"""Suites of one archive whose indexes are known."""
TABLES = 6
"""Tables that are held in memory, about 3 MB each."""


class DebianRegistry:
    """It.

    Args:
        sources: Where packages come from.
        upstream: How that is reached.
        documents: For Release files.
        files: For everything else.
        shelf: Where tables are kept.
        threads: For the disk.
    """

    def __init__(self, sources: Debian, upstream: Upstream, documents: Documents, files: Files, shelf: Shelf, threads: Threads) -> None:
        self._sources = sources
        self._upstream = upstream
        self._documents = documents
        self._files = files
        self._shelf = shelf
        self._threads = threads
        self._suites: dict[str, set[str]] = {}
        self._tables: dict[Digest, bytes] = {}
        self._making = asyncio.Lock()

    async def answer(self, request: Request) -> Answer:
        """Answer what comes below ``/debian/`` or ``/debian-security/``.

        Raises:
            Refusal: There is nothing to be had.
        """
        archive, *names = request.segments
        if request.folder or not all(_SEGMENT.fullmatch(name) for name in names):
            raise Refusal(404, "There are files only, and no lists of them.")
        match names:
            case ["dists", suite, name] if name in _RELEASES:
                return await self._release(request, archive, suite, name)
            case ["dists", suite, *_, "by-hash", kind, value] if kind in _BY_HASH and of_token(f"{_BY_HASH[kind]}-{value}"):
                return await self._file(request, [self._url(archive, names)], of_token(f"{_BY_HASH[kind]}-{value}"))
            case ["dists", suite, _, *_]:
                return await self._index(request, archive, suite, names[2:])
            case ["pool", _, *_]:
                return await self._file(request, [self._url(archive, names)], await self._digest(archive, names))
            case _:
                raise Refusal(404, "There is dists/ and pool/.")

    async def _release(self, request: Request, archive: str, suite: str, name: str) -> Answer:
        document = await self._documents.get(self._page(archive, suite, name), self._upstream)
        if document.missing:
            raise Refusal(404, f"The archive that this host uses has no {suite}/{name}.")
        if name == "InRelease":
            await self._remember(archive, suite)
        return await served(self._documents, document, "body", _PLAIN, request)

    async def _index(self, request: Request, archive: str, suite: str, names: list[str]) -> Answer:
        """An index by its name: the one that the Release file means which was served."""
        digest = (await self._named(archive, suite)).get("/".join(names))
        return await self._file(request, self._index_urls(archive, suite, names, digest), digest)

    async def _file(self, request: Request, urls: Iterable[str], digest: Digest | None) -> Answer:
        return await self._files.answer(Wanted(tuple(urls), digest), self._upstream, request.taking(f'"{digest}"'))

    async def _digest(self, archive: str, names: list[str]) -> Digest | None:
        """What a file of the pool has to be, as the indexes say that were served."""
        path, file = "/".join(names), names[-1]
        if not file.endswith(".deb"):
            return None
        component = next((name for name in names[1:] if name != "updates"), "main")
        architecture = file.removesuffix(".deb").rpartition("_")[2]
        if architecture == "all":
            architecture = self._sources.architecture
        for suite in sorted(await self._known_suites(archive)):
            named = await self._named(archive, suite)
            for suffix in packages.SUFFIXES:
                index = f"{component}/binary-{architecture}/Packages{suffix}"
                if index in named:
                    records = await self._table(named[index], self._index_urls(archive, suite, index.split("/"), named[index]))
                    found = await self._threads.run(packages.find, records, path)
                    if found is not None:
                        return found
                    break
        return None

    async def _named(self, archive: str, suite: str) -> dict[str, Digest]:
        """What the Release file of a suite names; nothing if it never went through here."""
        document = await self._documents.get(self._page(archive, suite, "InRelease"), self._upstream, any_age=True, fetch=False)
        data = None if document.missing else await bytes_of(self._documents, document, "body")
        return dict(await self._threads.run(packages.release, data.decode("utf-8", "replace"))) if data else {}

    async def _table(self, digest: Digest, urls: Iterable[str]) -> bytes:
        """The table of a Packages index, made where it is not there; empty where that cannot be."""
        async with self._making:
            if digest in self._tables:
                return self._tables[digest]
            name = hashlib.sha256(f"table of {digest}".encode()).hexdigest()
            records = await self._threads.run(self._shelf.read, Kind.BODIES, name)
            records = packages.unsealed(records) if records is not None else None
            if records is None:
                opened = await self._files.fetch(Wanted(tuple(urls), digest), self._upstream)
                if opened is None:
                    return b""
                try:
                    records = await self._threads.run(packages.table, opened.descriptor)
                except ValueError:
                    return b""
                finally:
                    opened.close()
                await self._threads.run(self._shelf.put, Kind.BODIES, name, packages.sealed(records))
            self._tables[digest] = records
            while len(self._tables) > TABLES:
                del self._tables[next(iter(self._tables))]
            return records

    async def _known_suites(self, archive: str) -> set[str]:
        known = self._suites.setdefault(archive, set())
        data = await self._threads.run(self._shelf.read, Kind.INDEX, _suites_name(archive))
        with contextlib.suppress(ValueError):
            known.update(name for name in json.loads(data or b"[]") if isinstance(name, str))
        return known

    async def _remember(self, archive: str, suite: str) -> None:
        """That a suite is used, for other services on this shelf and the next one."""
        if suite in self._suites.get(archive, ()):
            return
        known = await self._known_suites(archive)
        if suite not in known and len(known) < SUITES_MAX:
            known.add(suite)
            await self._threads.run(self._shelf.put, Kind.INDEX, _suites_name(archive), json.dumps(sorted(known)).encode())

    def _page(self, archive: str, suite: str, name: str) -> Page:
        url = self._url(archive, ["dists", suite, name])
        return whole(f"debian/{url}", url)

    def _index_urls(self, archive: str, suite: str, names: list[str], digest: Digest | None) -> list[str]:
        plain = self._url(archive, ["dists", suite, *names])
        if digest is None:
            return [plain]
        # The one by its hash is still there when the archive has gone on.
        return [self._url(archive, ["dists", suite, *names[:-1], "by-hash", "SHA256", digest.value]), plain]

    def _url(self, archive: str, names: list[str]) -> str:
        return self._sources.archives[archive] + "/".join(quote(name, safe="~+:@=,!") for name in names)


def _suites_name(archive: str) -> str:
    return hashlib.sha256(f"suites of {archive}".encode()).hexdigest()
