"""Index pages on disk. Each page has one file for each of its variants, such as HTML and JSON, and a record that names these files.

Invariant: a service verifies a stored page before it serves the page for the first time, because a power failure can leave files with the right
length and wrong bytes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.egress.packages.index_page import IndexPage, InputState, PageRecord, decode_record, encode_record
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.egress.packages.store.store import Kind, PackageStore
from sandlot.egress.packages.upstream import PIECE_BYTES
from sandlot.host.blocking import BlockingPool

MAX_VERIFIED: Final = 65536
"""Maximum number of files that are remembered as verified. When it is reached, all are forgotten, and files are verified again before use."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedPage:
    """The current version of an index page.

    Args:
        variants: SHA-256 of the content in hexadecimal, by name of the variant.
        data: Content of the variants that are still in memory, by name. The content of all other variants is in the store.
        is_missing: True if upstream has no such page.
    """

    variants: Mapping[str, str]
    data: Mapping[str, bytes] = field(default_factory=dict)
    is_missing: bool = False


class IndexPageStore:
    """Reads and writes the stored index pages of all registries.

    Args:
        store: Store that contains the files.
        threads: Thread pool for disk access.
    """

    def __init__(self, store: PackageStore, threads: BlockingPool) -> None:
        self._store = store
        self._threads = threads
        self._verified: set[str] = set()

    async def load(self, page: IndexPage) -> PageRecord | None:
        """Return the stored record of a page. Return None if the record or the file of a variant is missing or damaged."""
        return await self._threads.run(self._load, page)

    async def save(self, page: IndexPage, inputs: tuple[InputState, ...], variants: Mapping[str, bytes]) -> CachedPage:
        """Store a page that was just built, and return it with its content in memory. If the disk space does not suffice, the page is not stored."""
        return await self._threads.run(self._save, page, inputs, variants)

    async def save_record(self, page: IndexPage, record: PageRecord) -> None:
        """Store a new record of a page whose content has not changed."""
        await self._threads.run(self._store.put, Kind.RECORDS, page.record_name, encode_record(page, record))

    async def open(self, page: CachedPage, variant: str) -> bytes | OpenFile | None:
        """Return the content of a variant: as bytes if it is in memory or at most ``PIECE_BYTES`` large, else as an open file.

        Return None if the file was evicted from the store after the page was loaded. The caller must close an open file.
        """
        if variant in page.data:
            return page.data[variant]
        small = await self._threads.run(self._read_small, page.variants[variant])
        return small if small is not None else await self._threads.open(self._store.open, Kind.PAGES, page.variants[variant])

    async def read(self, opened: OpenFile, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes from ``offset`` on, from a file that :meth:`open` returned."""
        return await self._threads.run(opened.read, length, offset)

    async def read_all(self, page: CachedPage, variant: str) -> bytes | None:
        """Return the whole content of a variant, or None if its file was evicted from the store after the page was loaded."""
        found = await self.open(page, variant)
        if not isinstance(found, OpenFile):
            return found
        try:
            return await self.read(found, found.size_bytes, 0)
        finally:
            found.close()

    def _read_small(self, digest: str) -> bytes | None:
        """Return the content of a variant, or None if it has more than ``PIECE_BYTES`` or was evicted. Opens and reads the file in one call."""
        opened = self._store.open(Kind.PAGES, digest)
        if opened is None:
            return None
        try:
            return opened.read(PIECE_BYTES, 0) if opened.size_bytes <= PIECE_BYTES else None
        finally:
            opened.close()

    def _load(self, page: IndexPage) -> PageRecord | None:
        data = self._store.read(Kind.RECORDS, page.record_name)
        record = decode_record(data, page) if data is not None else None
        if record is None:
            return None
        for digest, size in record.variants.values():
            opened = self._store.open(Kind.PAGES, digest)
            if opened is None:
                return None
            try:
                is_intact = opened.size_bytes == size and self._verify(opened, digest)
            finally:
                opened.close()
            if not is_intact:
                self._store.remove(Kind.PAGES, digest)
                return None
        return record

    def _save(self, page: IndexPage, inputs: tuple[InputState, ...], variants: Mapping[str, bytes]) -> CachedPage:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in variants.items()}
        if all(self._store.put(Kind.PAGES, digests[name], data) for name, data in variants.items()):
            record = PageRecord(time.time(), inputs, {name: (digests[name], len(data)) for name, data in variants.items()})
            self._store.put(Kind.RECORDS, page.record_name, encode_record(page, record))
        return CachedPage(digests, data=variants)

    def _verify(self, opened: OpenFile, digest: str) -> bool:
        """Return whether a file has the expected SHA-256. A verified file is not read again, because only a power failure damages files."""
        if digest in self._verified:
            return True
        running, offset = hashlib.sha256(), 0
        while piece := opened.read(PIECE_BYTES, offset):
            running.update(piece)
            offset += len(piece)
        if running.hexdigest() != digest:
            _log.warning("the index page %s in the package cache is damaged and is fetched again", digest)
            return False
        if len(self._verified) >= MAX_VERIFIED:
            self._verified.clear()
        self._verified.add(digest)
        return True
