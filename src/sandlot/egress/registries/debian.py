"""Debian's packages: ``/debian/`` and ``/debian-security/``, each with ``dists/`` and ``pool/``.

Laws:
- apt itself checks signatures, inside. What is checked here is that the store keeps nothing but what an index names by its SHA-256.
- Release files are pages: fresh for a while. What they name is served as they name it, so that one set of indexes fits together.
- A file of the pool is known by the Packages indexes of the suites that its sandbox asked for, and then by those of which anybody took a
  Packages index lately. One that is not is passed through and not kept.
- An index is fetched for the pool's sake only where its own sandbox asked for its suite, by its hash, and once in a while where that fails:
  nobody fills the way of the others with suites that they do not use.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from urllib.parse import quote
from weakref import WeakValueDictionary

from sandlot.egress.answers import Answer, Refusal
from sandlot.egress.digests import Digest, of_token
from sandlot.egress.disk.opened import Opened
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
_PACKAGES = re.compile(r"binary-[a-z0-9-]+")
_NOTED_S = 3600.0
"""A use of a suite is noted that often."""
SUITES_MAX = 12
"""Suites of one archive that are remembered for everybody, those that were used last."""
SUITES_S = 7 * 86400.0
"""How long a suite is remembered that nobody uses."""
OWN_MAX = 8
"""Suites of one archive that are remembered of one sandbox, the last ones."""
OWNERS = 1024
"""Of so many sandboxes and archives."""
RELEASES = 32
"""Release files whose names are held in memory, some hundred of them each."""
FAILED_S = 600.0
"""How long a Packages index is not asked for again that could not be had or read."""
FAILED = 256
"""So many of them are remembered."""
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
        self._suites: dict[str, dict[str, float]] = {}
        self._own: OrderedDict[tuple[str, str], OrderedDict[str, None]] = OrderedDict()
        self._releases: OrderedDict[str, Mapping[str, Digest]] = OrderedDict()
        self._tables: OrderedDict[Digest, bytes] = OrderedDict()
        self._failed: OrderedDict[Digest, float] = OrderedDict()
        self._fetching: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()
        self._making = asyncio.Semaphore(1)

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
            case ["dists", suite, *folders, "by-hash", kind, value] if kind in _BY_HASH and of_token(f"{_BY_HASH[kind]}-{value}"):
                digest = of_token(f"{_BY_HASH[kind]}-{value}")
                await self._note(archive, suite, folders, digest)
                return await self._file(request, [self._url(archive, names)], digest)
            case ["dists", suite, _, *_]:
                return await self._index(request, archive, suite, names[2:])
            case ["pool", _, *_]:
                return await self._file(request, [self._url(archive, names)], await self._digest(request.sandbox, archive, names))
            case _:
                raise Refusal(404, "There is dists/ and pool/.")

    async def _release(self, request: Request, archive: str, suite: str, name: str) -> Answer:
        document = await self._documents.get(self._page(archive, suite, name), self._upstream)
        if document.missing:
            raise Refusal(404, f"The archive that this host uses has no {suite}/{name}.")
        if name == "InRelease":
            self._owns(request.sandbox, archive, suite)
        return await served(self._documents, document, "body", _PLAIN, request)

    async def _index(self, request: Request, archive: str, suite: str, names: list[str]) -> Answer:
        """An index by its name: the one that the Release file means which was served."""
        digest = (await self._named(archive, suite)).get("/".join(names))
        await self._note(archive, suite, names[:-1], digest)
        return await self._file(request, self._index_urls(archive, suite, names, digest), digest)

    async def _file(self, request: Request, urls: Sequence[str], digest: Digest | None) -> Answer:
        return await self._files.answer(Wanted(tuple(urls), digest), self._upstream, request.taking(f'"{digest}"'))

    async def _digest(self, sandbox: str, archive: str, names: list[str]) -> Digest | None:
        """What a file of the pool has to be, as the indexes say that were served."""
        path, file = "/".join(names), names[-1]
        if not file.endswith(".deb"):
            return None
        component = next((name for name in names[1:] if name != "updates"), "main")
        architecture = file.removesuffix(".deb").rpartition("_")[2]
        if architecture == "all":
            architecture = self._sources.architecture
        folder = f"{component}/binary-{architecture}"
        own = list(reversed(self._own.get((sandbox, archive), ())))
        known = await self._known_suites(archive)
        others = sorted(known.keys() - set(own), key=lambda suite: -known[suite])
        # What costs nothing first: an index that its sandbox took, or anybody.
        for suite in (*own, *others):
            found = await self._found(await self._table(archive, suite, folder), path)
            if found is not None:
                return found
        for suite in own:
            found = await self._found(await self._fetched(archive, suite, folder), path)
            if found is not None:
                return found
        return None

    async def _found(self, records: bytes | None, path: str) -> Digest | None:
        return await self._threads.run(packages.find, records, path) if records else None

    async def _named(self, archive: str, suite: str, *, fresh: bool = False) -> Mapping[str, Digest]:
        """What the Release file of a suite names; nothing if it never went through here."""
        try:
            document = await self._documents.get(self._page(archive, suite, "InRelease"), self._upstream, any_age=not fresh, fetch=fresh)
        except Refusal:
            return {}
        if document.missing:
            return {}
        version = document.variants["body"]
        if version not in self._releases:
            data = await bytes_of(self._documents, document, "body") or b""
            self._releases[version] = await self._threads.run(packages.release, data.decode("utf-8", "replace"))
            if len(self._releases) > RELEASES:
                self._releases.popitem(last=False)
            return self._releases.get(version, {})
        self._releases.move_to_end(version)
        return self._releases[version]

    async def _table(self, archive: str, suite: str, folder: str, *, fresh: bool = False) -> bytes | None:
        """The table of a Packages index that is here; None if none is."""
        for _, digest in _indexes(await self._named(archive, suite, fresh=fresh), folder):
            records = await self._made(digest)
            if records is not None:
                return records
        return None

    async def _fetched(self, archive: str, suite: str, folder: str) -> bytes | None:
        """The table of a Packages index that has to be fetched; None where that cannot be.

        What the archive has by now is what a fresh Release file names, and only by its hash: by its name it may be another one already.
        """
        for index, digest in _indexes(await self._named(archive, suite, fresh=True), folder)[:1]:
            lock = self._fetching.setdefault(digest, asyncio.Lock())
            async with lock:
                if time.monotonic() < self._failed.get(digest, 0.0):
                    return None
                records = await self._made(digest)
                if records is None:
                    urls = self._index_urls(archive, suite, index.split("/"), digest)[:1]
                    opened = await self._files.fetch(Wanted(tuple(urls), digest), self._upstream)
                    records = await self._read(digest, opened) if opened is not None else None
                if records is None:
                    self._fail(digest)
                return records
        return None

    async def _made(self, digest: Digest) -> bytes | None:
        """The table of an index of which it or the index itself is kept."""
        if digest in self._tables:
            self._tables.move_to_end(digest)
            return self._tables[digest]
        kept = await self._threads.run(self._shelf.read, Kind.BODIES, _table_name(digest))
        records = await self._threads.run(packages.unsealed, kept) if kept is not None else None
        if records is not None:
            self._hold(digest, records)
            return records
        if time.monotonic() < self._failed.get(digest, 0.0):
            return None
        opened = await self._threads.open(self._shelf.open, Kind.FILES, str(digest))
        if opened is None:
            return None
        records = await self._read(digest, opened)
        if records is None:
            self._fail(digest)
        return records

    async def _read(self, digest: Digest, opened: Opened) -> bytes | None:
        """The table of an index, which is closed; None where it makes no sense."""
        try:
            async with self._making:  # a second or two of a processor
                if digest in self._tables:
                    return self._tables[digest]
                records = await self._threads.run(packages.table, opened.descriptor)
        except ValueError:
            return None
        finally:
            opened.close()
        await self._threads.run(self._shelf.put, Kind.BODIES, _table_name(digest), packages.sealed(records))
        self._hold(digest, records)
        return records

    def _hold(self, digest: Digest, records: bytes) -> None:
        self._tables[digest] = records
        self._tables.move_to_end(digest)
        while len(self._tables) > TABLES:
            self._tables.popitem(last=False)

    def _fail(self, digest: Digest) -> None:
        self._failed[digest] = time.monotonic() + FAILED_S
        if len(self._failed) > FAILED:
            self._failed.popitem(last=False)

    def _owns(self, sandbox: str, archive: str, suite: str) -> None:
        """That a sandbox asked for a suite."""
        own = self._own.setdefault((sandbox, archive), OrderedDict())
        self._own.move_to_end((sandbox, archive))
        own[suite] = None
        own.move_to_end(suite)
        if len(own) > OWN_MAX:
            own.popitem(last=False)
        if len(self._own) > OWNERS:
            self._own.popitem(last=False)

    async def _known_suites(self, archive: str) -> dict[str, float]:
        """The suites that are used, by when they were."""
        known = self._suites.setdefault(archive, {})
        data = await self._threads.run(self._shelf.read, Kind.INDEX, _suites_name(archive))
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            for suite, used_s in json.loads(data or b"{}").items():
                known[suite] = max(float(used_s), known.get(suite, 0.0))
        last = sorted((suite for suite in known if time.time() - known[suite] < SUITES_S), key=lambda suite: -known[suite])[:SUITES_MAX]
        for suite in known.keys() - set(last):
            del known[suite]
        return known

    async def _note(self, archive: str, suite: str, folders: list[str], digest: Digest | None) -> None:
        """That a Packages index of a suite is taken, for other services on this shelf and the next one."""
        if digest is None or not folders or not _PACKAGES.fullmatch(folders[-1]):
            return
        if time.time() - self._suites.get(archive, {}).get(suite, 0.0) < _NOTED_S:
            return
        if digest not in (await self._named(archive, suite)).values():
            return
        known = await self._known_suites(archive)
        known[suite] = time.time()
        await self._threads.run(self._shelf.put, Kind.INDEX, _suites_name(archive), json.dumps(known).encode())

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


def _indexes(named: Mapping[str, Digest], folder: str) -> list[tuple[str, Digest]]:
    """The Packages indexes of a folder, the smallest first."""
    return [(path, named[path]) for path in (f"{folder}/Packages{suffix}" for suffix in packages.SUFFIXES) if path in named]


def _table_name(digest: Digest) -> str:
    return hashlib.sha256(f"table of {digest}".encode()).hexdigest()


def _suites_name(archive: str) -> str:
    return hashlib.sha256(f"suites of {archive}".encode()).hexdigest()
