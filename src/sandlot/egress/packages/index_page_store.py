"""Index pages on disk: their variants and the record of each page.

Invariant: the content of a page is verified before a service serves it for the first time, because a power failure leaves files with the right
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
"""Verified files that are remembered. Beyond that, all are forgotten and verified again."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A page as the cache serves it.

    Args:
        variants: SHA-256 by name of the variant.
        data: Content of variants that are still in memory; the others are in the store.
        is_missing: True if upstream has no such page.
    """

    variants: Mapping[str, str]
    data: Mapping[str, bytes] = field(default_factory=dict)
    is_missing: bool = False


class IndexPageStore:
    """Stored index pages of all registries.

    Args:
        store: The package store.
        threads: Threads for the disk.
    """

    def __init__(self, store: PackageStore, threads: BlockingPool) -> None:
        self._store = store
        self._threads = threads
        self._verified: set[str] = set()

    async def load(self, page: IndexPage) -> PageRecord | None:
        """Return the record of a page, or None if the record or a variant is missing or damaged."""
        return await self._threads.run(self._load, page)

    async def save(self, page: IndexPage, inputs: tuple[InputState, ...], variants: Mapping[str, bytes]) -> CachedPage:
        """Store a page that was just built. If there is no room, the page is served from memory once and not stored."""
        return await self._threads.run(self._save, page, inputs, variants)

    async def save_record(self, page: IndexPage, record: PageRecord) -> None:
        """Store the record of a page whose variants have not changed."""
        await self._threads.run(self._store.put, Kind.RECORDS, page.record_name, encode_record(page, record))

    async def open(self, page: CachedPage, variant: str) -> bytes | OpenFile | None:
        """Return the content of a variant, or an open file if the content is large. Return None if the file was evicted meanwhile.

        The caller closes the file.
        """
        if variant in page.data:
            return page.data[variant]
        small = await self._threads.run(self._read_small, page.variants[variant])
        return small if small is not None else await self._threads.open(self._store.open, Kind.PAGES, page.variants[variant])

    async def read(self, opened: OpenFile, length: int, offset: int) -> bytes:
        """Read from a file that :meth:`open` returned."""
        return await self._threads.run(opened.read, length, offset)

    async def read_all(self, page: CachedPage, variant: str) -> bytes | None:
        """Return the whole content of a variant, or None if the file was evicted meanwhile."""
        found = await self.open(page, variant)
        if not isinstance(found, OpenFile):
            return found
        try:
            return await self.read(found, found.size_bytes, 0)
        finally:
            found.close()

    def _read_small(self, digest: str) -> bytes | None:
        """Return the content of a small variant. Most variants are small, and one call in a thread is enough for them."""
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
        """Return whether a file matches its name. A file is verified once: only a power failure damages files, and that ends this service as well."""
        if digest in self._verified:
            return True
        running, offset = hashlib.sha256(), 0
        while piece := opened.read(PIECE_BYTES, offset):
            running.update(piece)
            offset += len(piece)
        if running.hexdigest() != digest:
            _log.warning("an index page in the package cache is damaged and is fetched again")
            return False
        if len(self._verified) >= MAX_VERIFIED:
            self._verified.clear()
        self._verified.add(digest)
        return True
