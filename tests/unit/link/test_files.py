"""Files over the link: streaming, limited memory, and incomplete transfers."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from sandlot.model.errors import LimitError, SandboxEndedError
from sandlot.model.specs import User
from tests.unit.link.peer import ENTRY, PeerCall, ended, linked, until

MIB = 1024 * 1024


async def test_file_is_read_as_a_stream() -> None:
    body = bytes(range(256)) * 4096 * 3

    async def read(call: PeerCall) -> None:
        call.event("stat", **{**ENTRY, "size": len(body)})
        await call.data(0, body)
        call.result(bytes=len(body))

    async with linked({"file.read": read}) as (link, peer):
        reader = await link.files.read("/f", user=User.ROOT, offset=5, length=len(body))
        assert reader.entry.size == len(body)
        assert b"".join([chunk async for chunk in reader]) == body
        assert await reader.result() == len(body)
        assert peer.calls[-1].args == {"path": "/f", "user": "root", "offset": 5, "length": len(body)}


async def test_reader_that_stops_early_resets_its_stream() -> None:
    async def read(call: PeerCall) -> None:
        call.event("stat", **ENTRY)
        await call.data(0, b"x" * 8 * MIB)

    async with linked({"file.read": read}) as (link, peer):
        async with await link.files.read("/f") as reader:
            async for _ in reader:
                break
        await peer.calls[-1].over.wait()
        assert peer.connection.streams == 0


async def written(call: PeerCall) -> None:
    await call.ended.wait()
    call.result(**{**ENTRY, "size": len(call.input)})


@pytest.mark.parametrize("size", [0, 1, 4084, 128 * 1024, MIB])
async def test_file_is_written(size: int) -> None:
    async with linked({"file.write": written}) as (link, peer):
        entry = await link.files.write(
            "/f", b"x" * size, user=User.ROOT, mode=0o600, parents=False, append=True, in_place=True, attributes={"a": "b"}
        )
        assert entry.size == size
        call = peer.calls[-1]
        assert bytes(call.input) == b"x" * size
        flags = {"parents": False, "append": True, "in_place": True}
        assert call.args == {"path": "/f", "user": "root", "mode": 0o600, **flags, "owner": None, "attributes": {"a": "b"}}


async def test_memory_of_an_upload_is_limited() -> None:
    block = bytes(65536)
    count = 4 * MIB // len(block)
    made = 0

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(count):
            made += 1
            yield block

    async def sink(call: PeerCall) -> None:
        size = 0
        while not call.ended.is_set() or call.input:
            size += len(call.input)
            # The unread bytes are at most those of a queue, a pipe and a window.
            assert made * len(block) - size < MIB
            call.input.clear()
            await asyncio.sleep(0)
        call.result(**{**ENTRY, "size": size})

    async with linked({"file.write": sink}) as (link, _):
        tracemalloc.start()
        try:
            assert (await link.files.write("/f", blocks())).size == 4 * MIB
            assert tracemalloc.get_traced_memory()[1] < 3 * MIB
        finally:
            tracemalloc.stop()


async def test_error_of_the_guest_ends_the_upload() -> None:
    asked = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield b"x" * 65536

    async def full(call: PeerCall) -> None:
        await until(lambda: len(call.input) >= MIB)
        call.reset("disk_full", "The disk is full.")

    async with linked({"file.write": full}) as (link, _):
        with pytest.raises(LimitError, match="disk is full"):
            await link.files.write("/f", endless())
        assert asked < 200


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_waiting_content_is_closed_with_the_call(end: str) -> None:
    closed = asyncio.Event()

    async def never() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def gone(call: PeerCall) -> None:
        await until(lambda: call.input)
        if end == "reset":
            call.reset("disk_full", "The disk is full.")
        else:
            call.peer.close()

    async with linked({"file.write": gone}) as (link, _):
        with pytest.raises((LimitError, SandboxEndedError)):
            await link.files.write("/f", never())
        await closed.wait()


async def test_content_that_raises_resets_the_upload() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the client went away")

    async with linked({"file.write": written}) as (link, peer):
        with pytest.raises(OSError, match="went away"):
            await link.files.write("/f", broken())
        call = peer.calls[-1]
        await call.over.wait()
        assert call.reset_code == "cancelled"
        assert not call.ended.is_set()


async def test_cancelled_upload_is_reset() -> None:
    async with linked({"file.write": ended}) as (link, peer):
        writing = asyncio.create_task(link.files.write("/f", b"x" * 3))
        call = await peer.call("file.write")
        await call.ended.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await call.over.wait()
        assert call.reset_code == "cancelled"
