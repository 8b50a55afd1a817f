"""Plain HTTP through the gateway: each request is decided, and a refused one never reaches the server."""

from __future__ import annotations

import json

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


async def test_nothing_behind_a_refused_request_reaches_the_server() -> None:
    async with serving(web) as server, sandbox(allowing(f"GET allowed.test:{server.port}/a")) as world:
        host = f"allowed.test:{server.port}"
        program = world.connect("allowed.test", server.port)
        await program.send(get("/a", host) + get("/c", host) + get("/a", host))
        assert await reason(program) == "path_not_allowed"
        assert server.bytes == get("/a", host)


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
