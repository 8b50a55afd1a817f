"""The second ClientHello of TLS 1.3: responses of servers, and what a client may send before and after them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.gateway import connection
from sandlot.egress.gateway.client_hello import MAX_HELLO_BYTES
from sandlot.egress.gateway.hello_retry import MAX_EARLY_RECORDS, MAX_RESPONSE_BYTES, EarlyRecords, parse_response
from sandlot.egress.gateway.responses import ACCESS_DENIED_ALERT
from tests.support.web_servers import certificate
from tests.unit.egress.gateway.test_client_hello import real_hello
from tests.unit.egress.gateway.world import Program, Script, allowing, sandbox, serving, swallow

RETRY = b"\2\0\0\x54\3\3" + bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c") + bytes(10)
SERVER_HELLO = b"\2\0\0\x54\3\3" + bytes(42)
WARNING = b"\x15\3\3\0\2\1\x70"
CCS, EARLY = b"\x14\3\3\0\1\1", b"\x17\3\3\0\5early"
FIRST, OTHER = real_hello("allowed.test"), real_hello("another.test")


def in_records(message: bytes, size: int = 100) -> bytes:
    """Return a message of a handshake in records of a given size."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\3\3" + len(part).to_bytes(2, "big") + part for part in parts)


def responding(*responses: bytes) -> Script:
    """Return a server that sends one response after each piece of the client, and then reads until the client ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            await reader.read(65536)
            writer.write(response)
        await swallow(reader, writer)
        writer.write_eof()

    return serve


# -- responses of servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 37, 38, 39, 100])
@pytest.mark.parametrize("before", [b"", WARNING, WARNING * 2, in_records(bytes(4)), in_records(bytes(4), 1)])
@pytest.mark.parametrize("message, kind", [(RETRY, "retry"), (SERVER_HELLO, "other")])
def test_request_for_another_hello_is_recognised_in_records_of_any_size(message: bytes, kind: str, before: bytes, size: int) -> None:
    data = before + in_records(message, size)
    results = [parse_response(data[:end]) for end in range(len(data) + 1)]
    assert (results[0], results[-1]) == ("incomplete", kind)
    assert set(results) == {"incomplete", kind}
    assert parse_response(data + b"anything") == kind


@pytest.mark.parametrize(
    "data", [b"SSH-2.0", b"HTTP/1.1 200", b"\0", CCS, EARLY, b"\x16\2", in_records(b"\1\0\0\1x"), WARNING * 200, in_records(bytes(4)) * 200]
)
def test_response_that_is_no_hello_asks_for_nothing(data: bytes) -> None:
    assert parse_response(data) == "other"


@given(st.binary(max_size=400), st.sampled_from([b"", b"\x16\3\3", WARNING, in_records(RETRY)[:30], in_records(RETRY, 7)[:-30]]))
def test_result_for_any_response_does_not_change_with_more_bytes(data: bytes, start: bytes) -> None:
    whole = start + data
    results = [parse_response(bytearray(whole[:size])) for size in range(len(whole) + 1)]
    decided = [result for result in results if result != "incomplete"]
    assert decided == results[len(results) - len(decided) :]
    assert len(set(decided)) <= 1


def test_endless_response_is_no_hello() -> None:
    assert parse_response(b"\x15\3\3\xff\xff" + bytes(MAX_RESPONSE_BYTES - 5)) == "incomplete"
    assert parse_response(b"\x15\3\3\xff\xff" + bytes(MAX_RESPONSE_BYTES)) == "other"


# -- records of clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("blocked", [FIRST, b"\x80\x2e\1", b"GET / HTTP/1.1"])
def test_early_data_passes_up_to_the_first_other_record(blocked: bytes, step: int) -> None:
    passing = CCS + EARLY * 3 + WARNING + b"\x17\3\3\0\0"
    data = passing + blocked
    records = EarlyRecords()
    assert b"".join(records.receive(data[at : at + step]) for at in range(0, len(data), step)) == passing
    assert records.held == blocked
    assert records.is_blocked


def test_number_of_early_records_is_limited() -> None:
    records = EarlyRecords()
    assert records.receive(EARLY * (MAX_EARLY_RECORDS + 2)) == EARLY * MAX_EARLY_RECORDS
    assert records.is_blocked


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([CCS, EARLY, WARNING, FIRST])), max_size=8), st.integers(1, 50))
def test_any_bytes_pass_or_are_held(parts: list[bytes], step: int) -> None:
    data = b"".join(parts)
    records = EarlyRecords()
    passed = b"".join(records.receive(data[at : at + step]) for at in range(0, len(data), step))
    assert passed + records.held == data


# -- connections -----------------------------------------------------------------------------------------------------------


async def shake_hands(program: Program, client: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> int:
    """Do the handshake of a client of the standard library. Return how often the client has waited for the server."""
    waits = 0
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            await program.send(outgoing.read())
            data = await program.read()
            assert data, program.reset_code
            incoming.write(data)
            waits += 1
        else:
            await program.send(outgoing.read())
            return waits


@pytest.mark.parametrize("curve", ["secp384r1", None], ids=["two", "one"])
async def test_handshake_with_and_without_a_second_hello_succeeds(tmp_path: Path, curve: str | None) -> None:
    context, file = certificate(tmp_path, "allowed.test")
    if curve is not None:
        context.set_ecdh_curve(curve)  # clients first offer another one
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=file).wrap_bio(incoming, outgoing, server_hostname="allowed.test")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.start_tls(context)
        writer.write(b"hello " + await reader.read(100))
        await writer.drain()

    async with serving(serve) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        waits = await shake_hands(program, client, incoming, outgoing)
        assert (waits > 1) == (curve is not None)
        client.write(b"there")
        await program.send(outgoing.read())
        received = b""
        while received != b"hello there":
            incoming.write(await program.read())
            try:
                received += client.read(100)
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("between", [b"", CCS, CCS + EARLY * 2], ids=["nothing", "change", "early data"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize(
    "second, passes",
    [
        (FIRST, True),
        (in_records(FIRST[5:]), True),
        (OTHER, False),
        (in_records(OTHER[5:]), False),
        (real_hello(None), False),
        (b"\x80\x2e\1\3\1", False),
        (b"\x16\3\3\0\4\2\0\0\0", False),
        (b"\x16\3\1\3\xff" + bytes([1, 0, 64, 1]), False),
    ],
)
async def test_second_hello_must_name_the_server_of_the_first(second: bytes, between: bytes, *, passes: bool, at_once: bool) -> None:
    async with serving(responding(in_records(RETRY, 20) + CCS)) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        if at_once:
            await program.send(FIRST + between + second)
        else:
            await program.send(FIRST)
            await program.read_until(CCS)
            await program.send(between + second)
        if passes:
            await server.read_until(FIRST + between + second)
            await program.send(b"\x17more")
            await server.read_until(second + b"\x17more")
            assert world.reasons == []
        else:
            assert await program.read_all() == in_records(RETRY, 20) + CCS + ACCESS_DENIED_ALERT
            assert server.bytes == FIRST + between
            assert world.reasons == ["tls_name_mismatch"]


async def test_second_hello_in_single_bytes_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_FIRST_PIECES", MAX_HELLO_BYTES)
    async with serving(responding(in_records(RETRY))) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST)
        await program.read_until(in_records(RETRY))
        for byte in OTHER:
            await program.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await program.read_all() == in_records(RETRY) + ACCESS_DENIED_ALERT
        assert server.bytes == FIRST


async def test_second_hello_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    async with serving(responding(in_records(RETRY))) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST)
        await program.read_until(in_records(RETRY))
        await program.send(FIRST[:50])
        await program.read_all()
        assert program.was_reset
        assert server.bytes == FIRST


async def test_program_that_ends_within_the_second_hello_is_refused() -> None:
    async with serving(responding(in_records(RETRY))) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST + OTHER[:50])
        program.end()
        assert await program.read_all() == in_records(RETRY) + ACCESS_DENIED_ALERT
        assert server.bytes == FIRST


@pytest.mark.parametrize("response", [in_records(SERVER_HELLO), WARNING + in_records(SERVER_HELLO), b"hello received"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
async def test_all_bytes_pass_once_no_second_hello_is_asked_for(response: bytes, *, at_once: bool) -> None:
    async with serving(responding(response)) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST + (OTHER if at_once else b""))
        await program.read_until(response)
        await program.send((b"" if at_once else OTHER) + b"\x16")
        await server.read_until(FIRST + OTHER + b"\x16")
        program.end()
        await program.read_all()
        assert not program.was_reset


async def test_early_data_reaches_a_server_that_has_not_responded() -> None:
    async with serving(swallow) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST + CCS + EARLY)
        await server.read_until(FIRST + CCS + EARLY)


@pytest.mark.parametrize("held", [b"", OTHER, b"\x17\3"])
async def test_program_that_ends_before_the_response_and_server_that_never_sends_one_end_in_order(held: bytes) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write_eof()
        await swallow(reader, writer)

    async with serving(leave) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST + held)
        program.end()
        assert await program.read_all() == b""
        assert not program.was_reset
        await server.read_until(FIRST + held)


async def test_program_that_floods_a_silent_server_is_stopped() -> None:
    async with serving(swallow) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(FIRST)
        await server.read_until(FIRST)
        sending = asyncio.create_task(program.send(OTHER + bytes(32 * 1024 * 1024)))
        while world.peer.connection.room(program.stream):  # noqa: ASYNC110 - the link has no event for a full window
            await asyncio.sleep(0.01)
        assert server.bytes == FIRST
        sending.cancel()
        program.reset()
