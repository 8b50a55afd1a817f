"""Tests of blob stores: a blob is complete or missing, is written and read in chunks, and a failed write leaves nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.model.errors import NotFoundError
from sandlot.model.ids import FileId, new_file_id
from sandlot.model.repositories import Blobs
from sandlot.model.specs import MIB
from sandlot.testing.drivers.leftovers import open_descriptors, wait_until_empty

_LARGE = 256
"""Number of chunks of a large blob. Each chunk has 1 MiB."""
_MAX_GROWTH_BYTES = 64 * MIB


class BlobsSuite:
    """Tests for every blob store. Name the subclass ``Test...``, and define a fixture ``blobs`` that returns an empty blob store."""

    async def test_content_is_read_as_it_was_written(self, blobs: Blobs) -> None:
        names = set()
        for sizes in ([], [0], [1], [10, 0, 5], [3 * MIB + 1], [65536] * 70):
            pieces = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
            names.add(name := new_file_id())
            assert await blobs.write(name, chunks_of(pieces)) == sum(sizes), sizes
            assert await whole(blobs, name) == b"".join(pieces), sizes
        assert await blobs.ids() == names

    async def test_missing_blob_is_not_found(self, blobs: Blobs) -> None:
        with pytest.raises(NotFoundError):
            await whole(blobs, new_file_id())

    async def test_remove_is_idempotent(self, blobs: Blobs) -> None:
        name = new_file_id()
        await blobs.write(name, chunks_of([b"x"]))
        for _ in range(2):
            await blobs.remove(name)
        assert await blobs.ids() == frozenset()
        with pytest.raises(NotFoundError):
            await whole(blobs, name)

    async def test_failed_write_leaves_nothing(self, blobs: Blobs) -> None:
        async def breaking() -> AsyncIterator[bytes]:
            yield bytes(5 * MIB)
            raise KeyError("the source failed")

        before = await open_after_use(blobs)
        with pytest.raises(KeyError, match="the source failed"):
            await blobs.write(new_file_id(), breaking())
        assert await blobs.ids() == frozenset()
        assert wait_until_empty(lambda: open_descriptors() - before) == {}

    async def test_cancelled_write_leaves_nothing(self, blobs: Blobs) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield bytes(MIB)
                begun.set()
                await asyncio.sleep(0.001)

        before = await open_after_use(blobs)
        task = asyncio.ensure_future(blobs.write(new_file_id(), endless()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await blobs.ids() == frozenset()
        assert wait_until_empty(lambda: open_descriptors() - before) == {}

    async def test_unfinished_blob_is_neither_listed_nor_read(self, blobs: Blobs) -> None:
        half, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield bytes(4 * MIB)
            half.set()
            await go_on.wait()
            yield b"end"

        name = new_file_id()
        task = asyncio.create_task(blobs.write(name, slow()))
        await half.wait()
        assert await blobs.ids() == frozenset()
        with pytest.raises(NotFoundError):
            await whole(blobs, name)
        go_on.set()
        assert await task == 4 * MIB + 3
        assert await blobs.ids() == {name}

    async def test_abandoned_read_leaves_no_descriptor_open(self, blobs: Blobs) -> None:
        name = new_file_id()
        await blobs.write(name, chunks_of([bytes(8 * MIB)]))
        before = await open_after_use(blobs)
        reading = blobs.read(name)
        assert await anext(reading)
        closing = getattr(reading, "aclose", None)
        assert closing is not None
        await closing()
        assert wait_until_empty(lambda: open_descriptors() - before) == {}


class StreamedBlobsSuite(BlobsSuite):
    """Tests for a blob store that does not keep its blobs in memory."""

    async def test_large_blob_is_never_held_in_memory(self, blobs: Blobs) -> None:
        name, piece = new_file_id(), bytes(MIB)
        await blobs.write(new_file_id(), chunks_of([piece]))  # imports modules and starts threads
        before = reset_peak_memory_bytes()
        assert await blobs.write(name, chunks_of([piece] * _LARGE)) == _LARGE * MIB
        assert sum([len(part) async for part in blobs.read(name)]) == _LARGE * MIB
        assert peak_memory_bytes() - before < _MAX_GROWTH_BYTES


def reset_peak_memory_bytes() -> int:
    """Start a new measurement of this process's peak memory, and return the memory in use now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_memory_bytes()


def peak_memory_bytes() -> int:
    """Return the peak of this process's resident memory in bytes since the last reset (proc(5), VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


async def chunks_of(chunks: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of a list one by one, as an upload provides them."""
    for chunk in chunks:
        yield chunk


async def open_after_use(blobs: Blobs) -> Counter[str]:
    """Write, read and remove a blob. Then count the open descriptors of this process: target -> count.

    The first use of obstore opens descriptors that stay open: its threads keep an epoll instance and an eventfd.
    """
    name = new_file_id()
    await blobs.write(name, chunks_of([b"x"]))
    await whole(blobs, name)
    await blobs.remove(name)
    return open_descriptors()


async def whole(blobs: Blobs, name: FileId) -> bytes:
    """Return the whole content of a blob."""
    return b"".join([piece async for piece in blobs.read(name)])
