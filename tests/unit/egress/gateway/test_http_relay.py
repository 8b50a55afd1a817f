"""Plain HTTP through the gateway: each request is decided, and a refused one never reaches the server."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.unit.egress.gateway.world import Program, allowing, sandbox, serving, web

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def get(path: str, host: str, *more: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", f"Host: {host}", *more, "", "")).encode()


async def reason(program: Program, status: int = 403) -> str:
    """Return the reason in the last response of a connection, which ends after it."""
    head, _, body = (await program.read_all()).rpartition(b"\r\n\r\n")
    assert f"HTTP/1.1 {status} ".encode() in head, head
    assert not program.was_reset
    return str(json.loads(body)["reason"])


async def test_requests_of_a_kept_connection_are_passed_on_and_decided_one_by_one() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host))
        assert await program.read_until(b"ok") == OK
        await program.send(get("/a/b", host))
        await program.read_until(OK + OK)
        await program.send(get("/c", host))
        assert await reason(program) == "path_not_allowed"
        assert server.bytes == get("/a", host) + get("/a/b", host)
        assert world.reasons == ["path_not_allowed"]


@pytest.mark.parametrize("lines", [[b"\r\n"], [b"\r", b"\n"], [b"\n"], [b"\r\n" * 100]], ids=["line", "split", "bare", "many"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
async def test_empty_lines_before_a_request_are_ignored(lines: list[bytes], *, at_once: bool) -> None:
    async with serving(web) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        for count in (1, 2):
            pieces = [*lines, get("/", host), *lines]
            for piece in [b"".join(pieces)] if at_once else pieces:
                await program.send(piece)
            await program.read_until(OK * count)
        program.end()
        assert await program.read_all() == OK + OK
        assert not program.was_reset
        assert server.bytes == get("/", host) * 2
        assert world.reasons == []


async def test_request_behind_an_empty_line_is_decided() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host) + b"\r\n" + get("/c", host))
        assert await reason(program) == "path_not_allowed"
        assert server.bytes == get("/a", host)


async def test_nothing_behind_a_refused_request_reaches_the_server() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host) + get("/c", host) + get("/a", host))
        assert await reason(program) == "path_not_allowed"
        assert server.bytes == get("/a", host)


@pytest.mark.parametrize("rest", [b"\r\n", b"garbage" * 20_000, get("/a", "other.test")], ids=["line", "garbage", "request"])
@pytest.mark.parametrize("version, more", [("1.0", ""), ("1.1", "Connection: close\r\n")])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
async def test_last_request_gets_its_response_and_what_follows_is_dropped(version: str, more: str, rest: bytes, *, at_once: bool) -> None:
    released = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        await released.wait()
        writer.write(OK)
        writer.write_eof()
        await reader.read(65536)

    async with serving(answer) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        request = f"POST / HTTP/{version}\r\nHost: allowed.test:{server.port}\r\nContent-Length: 1\r\n{more}\r\nx".encode()
        await program.send(request + (rest if at_once else b""))
        await server.read_until(b"\r\n\r\nx")
        if not at_once:
            await program.send(rest)
        released.set()
        received = await program.read_all()
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.endswith(b"\r\n\r\nok")
        assert not program.was_reset
        assert bytes(server.bytes).endswith(b"\r\n\r\nx")
        assert world.reasons == []


async def test_other_host_is_refused_also_in_a_later_request() -> None:
    async with serving(web) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/", host) + get("/", "other.test"))
        assert await reason(program) == "http_host_mismatch"
        assert server.bytes == get("/", host)


async def test_refused_first_request_of_a_limited_host_opens_no_connection() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(get("/b", f"allowed.test:{server.port}"))
        assert await reason(program) == "path_not_allowed"
        assert server.connections == 0


async def test_refused_host_gets_a_response_on_a_port_of_http() -> None:
    async with sandbox(allowing("allowed.test")) as world:
        program = world.connect("other.test", 80)
        await program.send(get("/", "other.test"))
        assert await reason(program) == "host_not_allowed"
        assert world.names.asked == []


async def test_failed_connection_is_502_for_http() -> None:
    async with serving(web) as server:
        port = server.port
    async with sandbox(allowing(f"GET allowed.test:{port}/")) as world:
        program = world.connect("allowed.test", port)
        await program.send(get("/", f"allowed.test:{port}"))
        assert await reason(program, 502) == "upstream_failed"
        assert b"127.0.0.1" not in program.received


REFUSED = {
    "two_hosts": (b"GET /a HTTP/1.1\r\nHost: HOST\r\nHost: other.test\r\n\r\n", "http_host_mismatch"),
    "no_host": (b"GET /a HTTP/1.1\r\n\r\n", "http_host_mismatch"),
    "old_version_without_host": (b"GET /a HTTP/1.0\r\n\r\n", "http_host_mismatch"),
    "other_host": (b"GET /a HTTP/1.1\r\nHost: other.test\r\n\r\n", "http_host_mismatch"),
    "other_port": (b"GET /a HTTP/1.1\r\nHost: allowed.test:1\r\n\r\n", "http_host_mismatch"),
    "absolute_target": (b"GET http://other.test/a HTTP/1.1\r\nHost: HOST\r\n\r\n", "http_host_mismatch"),
    "two_lengths": (b"GET /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "protocol_not_supported"),
    "different_lengths": (b"GET /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", "protocol_not_supported"),
    "space_in_name": (b"GET /a HTTP/1.1\r\nHost : HOST\r\n\r\n", "protocol_not_supported"),
    "method": (b"POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 2\r\n\r\nab", "method_not_allowed"),
    "connect": (b"CONNECT other.test:443 HTTP/1.1\r\nHost: HOST\r\n\r\n", "method_not_allowed"),
    "path": (b"GET /b HTTP/1.1\r\nHost: HOST\r\n\r\n", "path_not_allowed"),
    "dot_segments": (b"GET /a/../b HTTP/1.1\r\nHost: HOST\r\n\r\n", "path_not_allowed"),
    "encoded_dot_segments": (b"GET /a/%2e%2e/b HTTP/1.1\r\nHost: HOST\r\n\r\n", "path_not_allowed"),
    "prefix_of_a_segment": (b"GET /ab HTTP/1.1\r\nHost: HOST\r\n\r\n", "path_not_allowed"),
    "large_head": (b"GET /a HTTP/1.1\r\nHost: HOST\r\nX: " + b"x" * 300_000 + b"\r\n\r\n", "protocol_not_supported"),
    "http_2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "protocol_not_supported"),
    "not_http": (b"\0\1\2\3", "protocol_not_supported"),
}


@pytest.mark.parametrize("step", [100_000, 7], ids=["whole", "split"])
@pytest.mark.parametrize("attack", REFUSED)
async def test_refused_request_never_reaches_the_server(attack: str, step: int) -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        data, expected = REFUSED[attack]
        data = data.replace(b"HOST", f"allowed.test:{server.port}".encode())
        program = world.connect("allowed.test", server.port)
        for start in range(0, len(data), step if len(data) < 1000 else 50_000):
            await program.send(data[start : start + (step if len(data) < 1000 else 50_000)])
            await asyncio.sleep(0)
        await program.read_all()
        assert world.reasons == [expected]
        assert server.connections == 0
        assert program.was_reset == (attack in {"http_2", "not_http"})


@pytest.mark.parametrize("attack", [name for name in REFUSED if name not in {"http_2", "not_http", "no_host", "old_version_without_host"}])
async def test_refused_request_behind_an_allowed_one_never_reaches_the_server(attack: str) -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        data, expected = REFUSED[attack]
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host) + data.replace(b"HOST", host.encode()))
        assert await reason(program) == expected
        assert program.received.startswith(OK)
        assert server.bytes == get("/a", host)


async def test_head_of_a_request_may_be_split() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        program = world.connect("allowed.test", server.port)
        for byte in get("/a", f"allowed.test:{server.port}"):
            await program.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert await program.read_until(b"ok") == OK


async def test_response_to_head_has_no_body() -> None:
    async with sandbox(allowing("allowed.test")) as world:
        program = world.connect("other.test", 80)
        await program.send(b"HEAD / HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert (await program.read_all()).endswith(b"\r\n\r\n")


async def test_body_and_interim_response_are_passed_on_as_they_come() -> None:
    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += await reader.read(65536)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while b"0\r\n\r\n" not in seen:
            seen += await reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await reader.read(65536)
        writer.write(b"0\r\n\r\n")

    async with serving(upload) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(f"POST / HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        await program.read_until(b"100 Continue\r\n\r\n")
        await program.send(b"4\r\nbody\r\n")
        await server.read_until(b"body")
        await program.send(b"0\r\n\r\n")
        await program.read_until(b"abc")


async def test_upgraded_connection_is_copied_and_only_websocket_is_passed_on() -> None:
    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = b""
        while b"\r\n\r\n" not in seen:
            seen += await reader.read(65536)
        if b"websocket" in seen:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x01x")
            while data := await reader.read(65536):
                writer.write(data)
        else:
            writer.write(OK)
            await reader.read(65536)

    async with serving(switch) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host, "Connection: Upgrade", "Upgrade: websocket") + b"GET /b frame")
        await program.read_until(b"\x81\x01xGET /b frame")
        program.end()
        await program.read_all()
        assert not program.was_reset
        server.bytes.clear()
        other = world.connect("allowed.test", server.port)
        await other.send(get("/a", host, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"))
        await other.read_until(b"ok")
        assert b"h2c" not in server.bytes
        assert b"HTTP2" not in server.bytes
        assert b"Upgrade" not in server.bytes


@pytest.mark.parametrize(
    "response, is_502",
    [
        (b"", True),
        (b"HTTP/1.1 200", True),
        (b"\0\1\2\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", False),
    ],
)
async def test_invalid_response_is_502_or_a_reset(response: bytes, *, is_502: bool) -> None:
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(response)
        writer.write_eof()

    async with serving(fail) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(get("/", f"allowed.test:{server.port}"))
        if is_502:
            assert await reason(program, 502) == "upstream_failed"
        else:
            assert (await program.read_all()).endswith(b"ab")
            assert program.was_reset


async def test_response_without_a_length_ends_with_the_connection() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nabc")
        writer.write_eof()

    async with serving(old) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(get("/", f"allowed.test:{server.port}"))
        received = await program.read_all()
        assert b"abc" in received
        assert b"Connection: close" in received
        assert not program.was_reset


async def test_connection_ends_if_the_server_ends_it_between_two_requests() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(OK)
        writer.write_eof()

    async with serving(once) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.send(get("/", f"allowed.test:{server.port}"))
        assert await program.read_all() == OK
        assert not program.was_reset


async def test_request_after_a_greeting_of_the_server_is_refused() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n")
        await reader.read(65536)

    async with serving(greet) as server, sandbox(allowing(f"allowed.test:{server.port}")) as world:
        program = world.connect("allowed.test", server.port)
        await program.read_until(b"hello")
        await program.send(get("/", "other.test"))
        await program.read_all()
        assert program.was_reset
        assert server.bytes == b""


async def test_old_request_to_an_address_gets_the_host_that_it_named() -> None:
    async with serving(web) as server, sandbox(allowing(f"127.0.0.1:{server.port}")) as world:
        program = world.connect("127.0.0.1", server.port)
        await program.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await program.read_all()).endswith(b"ok")
        assert server.bytes == f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode()
