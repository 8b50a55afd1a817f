"""Streams that the guest opens: services of the host by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from sandlot.link.services import ARGUMENT_CHARS, MESSAGE_BYTES, SERVICES_MAX, UNREAD_BYTES, GuestStream
from sandlot.link.types import LinkClosedReason
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError
from sandlot.protocol import events, schema
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX
from sandlot.protocol.streams import WINDOW_BYTES
from tests.unit.link.peer import Peer, linked, until

MIB = 1024 * 1024


async def echo(stream: GuestStream, args: Mapping[str, Any]) -> None:
    """A service that sends back its arguments and all input."""
    await stream.send({"args": dict(args)})
    async for item in stream:
        if isinstance(item, bytes):
            await stream.write(item)
        else:
            await stream.send(item)


async def collected(peer: Peer, stream: int) -> list[object]:
    """Return the bytes and messages that the guest receives until the end."""
    found: list[object] = []
    while True:
        event = await peer.services[stream].get()
        if isinstance(event, events.Bytes):
            found.append(event.data)
            peer.connection.consumed(stream, event.credit)
        elif isinstance(event, events.Received):
            found.append(event.message)
            peer.connection.consumed(stream, event.credit)
        elif isinstance(event, events.WasReset):
            return [*found, event.reason["code"]]
        elif isinstance(event, events.Ended):
            return found
        peer.flush()


async def test_unknown_service_is_refused_and_the_link_continues() -> None:
    async with linked(services={"echo": echo}) as (link, peer):
        streams = [peer.open_service({"service": "none", "args": {}}) for _ in range(20)]
        for stream in streams:
            assert await collected(peer, stream) == ["unknown_service"]
        assert not link.closed


@pytest.mark.parametrize(
    "head",
    [
        None,
        [],
        {},
        {"service": "echo"},
        {"service": b"echo", "args": {}},
        {"service": "echo", "args": []},
        {"service": "echo", "args": {}, "more": 1},
        {"call": "process.start", "id": b"", "args": {}},
    ],
    ids=str,
)
async def test_stream_without_a_service_is_a_violation(head: object) -> None:
    async with linked(services={"echo": echo}) as (link, peer):
        peer.open_service(head)
        assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION


async def test_failed_service_resets_only_its_stream() -> None:
    async def refuses(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        raise NotFoundError("No such package.", code=ErrorCode.NOT_FOUND)

    async def breaks(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        raise RuntimeError("a secret of the host")

    async with linked(services={"refuses": refuses, "breaks": breaks, "echo": echo}) as (link, peer):
        for name, code in (("refuses", "not_found"), ("breaks", "internal")):
            stream = peer.open_service({"service": name, "args": {}})
            assert await collected(peer, stream) == [code]
        assert not link.closed
        assert peer.connection.streams == 0


async def test_failures_of_the_services_of_one_link_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        raise RuntimeError("a secret\nof the guest")

    async with linked(services={"breaks": breaks}) as (_, peer):
        for _ in range(20):
            assert await collected(peer, peer.open_service({"service": "breaks", "args": {}})) == ["internal"]
    (line,) = caplog.text.splitlines()
    assert "RuntimeError at test_services.py:" in line


async def test_service_that_does_not_read_buffers_at_most_a_window() -> None:
    held = []

    async def waits(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        held.append(stream)
        await asyncio.Event().wait()

    async with linked(services={"waits": waits}) as (_, peer):
        stream = peer.open_service({"service": "waits", "args": {}})
        peer.connection.send_bytes(stream, 0, bytes(4 * MIB))
        peer.flush()

        def size() -> int:
            return sum(credit for kept in held for _, credit in kept._stream._items)  # noqa: SLF001 - what is kept is the promise

        await until(lambda: size() >= WINDOW_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert size() <= WINDOW_BYTES + 65536


async def test_services_of_one_link_keep_a_bounded_amount_of_unread_bytes() -> None:
    held = []

    async def waits(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        held.append(stream)
        await asyncio.Event().wait()

    async with linked(services={"waits": waits}) as (link, peer):
        streams = [peer.open_service({"service": "waits", "args": {}}) for _ in range(UNREAD_BYTES // WINDOW_BYTES + 16)]
        for stream in streams:
            peer.connection.send_bytes(stream, schema.BODY, bytes(WINDOW_BYTES))
        peer.flush()
        await until(lambda: sum(not peer.services[stream].empty() for stream in streams) >= len(streams) - UNREAD_BYTES // WINDOW_BYTES)
        outcomes = [await collected(peer, stream) for stream in streams if not peer.services[stream].empty()]
        assert outcomes == [["busy"]] * (len(streams) - UNREAD_BYTES // WINDOW_BYTES)
        assert sum(kept._stream.unread_bytes for kept in held) == link._session.services.unread.total <= UNREAD_BYTES  # noqa: SLF001 - what is kept
        for stream in streams:
            peer.connection.reset(stream, "cancelled", "no")
        peer.flush()
        await until(lambda: link._session.services.unread.total == 0)  # noqa: SLF001
        assert not link.closed


async def test_item_counts_as_unread_until_the_service_asks_for_the_next_one() -> None:
    read, released = asyncio.Event(), asyncio.Event()

    async def slow(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await anext(stream)
        read.set()
        await released.wait()
        async for _ in stream:
            pass

    async with linked(services={"slow": slow}) as (link, peer):
        unread = link._session.services.unread  # noqa: SLF001 - what is kept is the promise
        stream = peer.open_service({"service": "slow", "args": {}})
        peer.connection.send_bytes(stream, schema.BODY, bytes(1000))
        peer.flush()
        await read.wait()
        assert unread.total == 1000
        released.set()
        await until(lambda: unread.total == 0)


async def test_bytes_that_services_keep_count_as_unread_until_the_stream_ends() -> None:
    kept: list[bool] = []

    async def keeps(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        kept.extend(stream.keep(size) for size in (UNREAD_BYTES, UNREAD_BYTES + 1, 100, UNREAD_BYTES))
        await anext(stream)

    async with linked(services={"keeps": keeps}) as (link, peer):
        unread = link._session.services.unread  # noqa: SLF001 - what is kept is the promise
        stream = peer.open_service({"service": "keeps", "args": {}})
        peer.flush()
        await until(lambda: len(kept) == 4)
        assert kept == [True, False, True, True]
        assert unread.total == UNREAD_BYTES
        peer.connection.reset(stream, "cancelled", "no")
        peer.flush()
        await until(lambda: unread.total == 0)


@pytest.mark.parametrize("args", [{"host": "x" * (ARGUMENT_CHARS + 1)}, {"x" * 600: 1}, dict.fromkeys("abc", 1), {"host": {}}, {"host": b"x"}])
async def test_long_arguments_of_a_service_end_the_link(args: dict[str, Any]) -> None:
    async def returns(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        return

    async with linked(services={"returns": returns}) as (link, peer):
        peer.open_service({"service": "returns", "args": args})
        peer.flush()
        assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION


async def test_large_message_for_a_service_ends_the_link() -> None:
    async def waits(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()

    async with linked(services={"waits": waits}) as (link, peer):
        peer.connection.send(peer.open_service({"service": "waits", "args": {}}), {"x": bytes(MESSAGE_BYTES)})
        peer.flush()
        assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION


async def test_reset_of_the_guest_cancels_the_service() -> None:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def waits(_stream: GuestStream, _args: Mapping[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.set_result("cancelled")
            raise

    async with linked(services={"waits": waits}) as (_, peer):
        stream = peer.open_service({"service": "waits", "args": {}})
        await begun.wait()
        peer.connection.reset(stream, "cancelled", "no")
        peer.flush()
        assert await outcome == "cancelled"


async def test_number_of_services_is_limited_if_a_guest_opens_and_resets() -> None:
    running = most = refused = 0
    may_end = asyncio.Event()

    async def stubborn(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await stream.send({})
        try:
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(60):
                await may_end.wait()  # like a service with a slow clean-up
            running -= 1

    async with linked(services={"stubborn": stubborn}) as (link, peer):
        for _ in range(SERVICES_MAX + 20):
            stream = peer.open_service({"service": "stubborn", "args": {}})
            answer = await peer.services[stream].get()
            refused += isinstance(answer, events.WasReset) and answer.reason["code"] == "busy"
            peer.connection.reset(stream, "cancelled", "no")
        assert most == SERVICES_MAX
        assert refused == 20
        assert not link.closed
        peer.flush()
        await until(lambda: not link._session.transport.handlers)  # noqa: SLF001
        may_end.set()
        await until(lambda: not running)
        stream = peer.open_service({"service": "stubborn", "args": {}})
        assert isinstance(await peer.services[stream].get(), events.Received)


async def test_guest_may_replace_all_streams_in_one_write() -> None:
    async def waits(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await stream.send({})
        await asyncio.Event().wait()

    head = {"service": "waits", "args": {}}
    async with linked(services={"waits": waits}) as (_, peer):
        first = [peer.open_service(head) for _ in range(GUEST_STREAMS_MAX)]
        for stream in first:
            assert isinstance(await peer.services[stream].get(), events.Received)
        for stream in first:
            peer.connection.reset(stream, "cancelled", "no")
        peer.raw(b"")
        second = [peer.open_service(head) for _ in first]
        peer.raw(b"")
        for stream in second:
            assert isinstance(await peer.services[stream].get(), events.Received)


async def test_closing_the_link_ends_all_services() -> None:
    outcomes = []

    async def waits(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        try:
            async for _ in stream:
                pass
        except (SandlotError, asyncio.CancelledError) as error:
            outcomes.append(type(error))
            raise

    async with linked(services={"waits": waits}) as (link, peer):
        for _ in range(3):
            peer.open_service({"service": "waits", "args": {}})
        await asyncio.sleep(0.01)
        await link.aclose()
        assert len(outcomes) == 3
