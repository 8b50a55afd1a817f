"""Connections of the preview listener over real sockets: what arrives at programs and at clients, reuse, smuggling, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError
from sandlot.server.preview import connection, program_connection
from sandlot.web import connections
from sandlot.web.preview_urls import TOKEN_PARAMETER
from tests.unit.server.preview.world import MAX_CONNECTIONS, OTHER, PORT, SANDBOX, WAIT_S, Connection, World, preview_world, token_of


async def test_request_reaches_its_program_with_the_local_host_and_without_the_token(world: World) -> None:
    response = await world.request(world.head("/page?a=b", "Cookie: own=1"))
    assert (response.status, response.body) == (200, b"hello")
    head = world.program.received.decode()
    assert head.startswith("GET /page?a=b HTTP/1.1\r\nhost: localhost:3000\r\n")
    assert "cookie: own=1" in head
    assert f"x-forwarded-host: {world.host}" in head
    assert token_of(SANDBOX) not in head


async def test_kept_connections_share_a_tunnel(world: World) -> None:
    client = await world.open()
    for _ in range(3):
        client.write(world.head())
        assert (await client.response()).body == b"hello"
    assert (await world.request(world.head())).body == b"hello"
    assert world.tunnels == 1
    client.close()


async def test_requests_of_a_connection_are_authorized_one_by_one(world: World) -> None:
    client = await world.open()
    client.write(world.head())
    assert (await client.response()).status == 200
    client.write(world.head(sandbox=OTHER, token=False))
    assert (await client.response()).status == 401
    client.write(world.head(sandbox=OTHER))
    assert (await client.response()).status == 200
    assert world.programs[OTHER].received.count(b"GET / ") == 1
    client.close()


@pytest.mark.parametrize("sandbox", [SANDBOX, "sb-aaaa-zzzzzzzzzzzzzzzz"])
async def test_wrong_tokens_and_unknown_sandboxes_get_the_same_response(world: World, sandbox: str) -> None:
    head = f"GET / HTTP/1.1\r\nHost: {PORT}-{sandbox}.localhost\r\nX-Request-Id: same\r\nX-Sandlot-Preview-Token: wrong\r\n\r\n"
    response = await world.request(head.encode())
    assert response.status == 401
    assert json.loads(response.body)["code"] == "unauthenticated"
    assert sandbox not in response.body.decode()
    assert world.tunnels == 0


async def test_a_browser_redeems_the_token_of_a_url_for_a_cookie(world: World) -> None:
    token = token_of(SANDBOX)
    first = await world.request(world.head(f"/a?x=1&{TOKEN_PARAMETER}={token}&y=2", "Accept: text/html", token=False))
    assert (first.status, first.values("location")) == (302, ["/a?x=1&y=2"])
    (cookie,) = first.values("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "domain" not in cookie.lower()
    second = await world.request(world.head("/a", f"Cookie: theirs=1; {cookie.partition(';')[0]}", "Sec-Fetch-Site: same-origin", token=False))
    assert second.status == 200
    assert b"cookie: theirs=1\r\n" in world.program.received
    assert token.encode() not in world.program.received


async def test_a_program_uses_the_token_of_a_url_directly(world: World) -> None:
    response = await world.request(world.head(f"/a?{TOKEN_PARAMETER}={token_of(SANDBOX)}", token=False))
    assert response.status == 200
    assert world.program.received.startswith(b"GET /a HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe",
        "Referer: http://evil.example/",
        "Accept: text/html",
    ],
)
async def test_a_cookie_does_not_open_a_port_to_the_pages_of_others(world: World, header: str) -> None:
    response = await world.request(world.head("/", f"Cookie: sandlot_preview={token_of(SANDBOX)}", header, token=False))
    assert response.status == 401
    assert world.tunnels == 0


async def test_a_link_on_any_page_opens_a_preview_in_a_tab(world: World) -> None:
    link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document"
    assert (await world.request(world.head("/", f"Cookie: sandlot_preview={token_of(SANDBOX)}", link, token=False))).status == 200


async def test_a_public_port_needs_no_token(world: World) -> None:
    world.public.add(SANDBOX)
    assert (await world.request(world.head(token=False))).status == 200


async def test_no_listener_gives_browsers_a_page_that_reloads_and_programs_json(world: World) -> None:
    head = f"GET / HTTP/1.1\r\nHost: 3001-{SANDBOX}.localhost\r\nX-Sandlot-Preview-Token: {token_of(SANDBOX, 3001)}\r\n"
    page = await world.request(f"{head}Accept: text/html\r\n\r\n".encode())
    assert page.status == 502
    assert b"location.reload()" in page.body
    assert b"status !== 502" in page.body
    problem = await world.request(f"{head}\r\n".encode())
    assert problem.status == 502
    assert json.loads(problem.body)["code"] == "port_not_found"
    assert problem.values("retry-after") == ["2"]


async def test_errors_of_the_sandbox_have_their_own_status(world: World) -> None:
    world.problems = [ConflictError("paused", code=ErrorCode.SANDBOX_PAUSED)]
    assert (await world.request(world.head())).status in {409, 502}
    world.problems = [LimitError("many", code=ErrorCode.LIMIT_EXCEEDED)]
    assert (await world.request(world.head())).status == 429


# Bodies --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_bodies_arrive_whole(world: World, framing: str) -> None:
    body = bytes(range(256)) * 4096
    whole = asyncio.Event()

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        received = world.program.connections[0]
        ended = received.endswith(b"0\r\n\r\n") if framing == "chunked" else len(received.partition(b"\r\n\r\n")[2]) == len(body)
        if ended:
            whole.set()
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")

    world.program.respond = respond
    client = await world.open()
    if framing == "length":
        client.write(world.head("/", f"Content-Length: {len(body)}", method="POST") + body)
    else:
        client.write(world.head("/", "Transfer-Encoding: chunked", method="POST"))
        for at in range(0, len(body), 100_000):
            piece = body[at : at + 100_000]
            client.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        client.write(b"0\r\n\r\n")
    response = await client.response()
    assert (response.status, response.body) == (200, b"abc")
    assert whole.is_set()
    client.close()


async def test_pieces_of_a_response_are_sent_as_they_arrive(world: World) -> None:
    onward: asyncio.Queue[bytes] = asyncio.Queue()

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        while data := await onward.get():
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")

    world.program.respond = respond
    client = await world.open()
    client.write(world.head())
    assert (await client.response_head()).status == 200
    for number in range(3):
        event = b"data: %d\n\n" % number
        onward.put_nowait(event)
        assert await client.read(len(event) + 5) == b"%x\r\n%s\r\n" % (len(event), event)
    onward.put_nowait(b"")
    assert await client.read(5) == b"0\r\n\r\n"
    client.close()


async def test_continue_comes_from_the_program(world: World) -> None:
    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        if b"expect: 100-continue" in data:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    world.program.respond = respond
    client = await world.open()
    client.write(world.head("/", "Content-Length: 3", "Expect: 100-continue", method="PUT"))
    assert (await client.response_head()).status == 100
    client.write(b"abc")
    assert (await client.response_head()).status == 204
    client.close()


async def test_head_and_range_and_http_1_0_have_the_framing_of_their_response(world: World) -> None:
    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        if data.startswith(b"HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-1/9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")

    world.program.respond = respond
    client = await world.open()
    client.write(world.head(method="HEAD"))
    head = await client.response(has_body=False)
    assert (head.status, head.values("content-length")) == (200, ["1000"])
    client.write(world.head("/", "Range: bytes=0-1"))
    part = await client.response()
    assert (part.status, part.body, part.values("content-range")) == (206, b"ab", ["bytes 0-1/9"])
    client.close()
    old = await world.request(world.head(version="1.0"))
    assert (old.status, old.body, old.values("transfer-encoding")) == (206, b"ab", [])


async def test_a_response_before_the_end_of_the_body_is_sent_and_the_connection_ends(world: World) -> None:
    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        if data.startswith(b"POST"):
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig")

    world.program.respond = respond
    client = await world.open()
    client.write(world.head("/", "Content-Length: 1000000", method="POST"))
    response = await client.response()
    assert (response.status, response.body) == (413, b"big")
    client.write(b"x" * 999_999)
    client.close()


# Upgrades ------------------------------------------------------------------------------------------------------------------

UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")


async def echo_after_upgrade(data: bytes, writer: asyncio.StreamWriter) -> None:
    """Switch at the first data, then return all bytes."""
    if b"upgrade: websocket" in data:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\nfirst")
    else:
        writer.write(data)


async def test_websocket_bytes_are_copied_both_ways(world: World) -> None:
    world.program.respond = echo_after_upgrade
    client = await world.open()
    client.write(world.head("/ws", *UPGRADE, f"Origin: http://{world.host}"))
    switched = await client.response(has_body=False)
    assert (switched.status, switched.values("sec-websocket-accept")) == (101, ["x"])
    assert await client.read(5) == b"first"
    for size in (1, 70_000):
        client.write(b"y" * size)
        assert await client.read(size) == b"y" * size
    assert b"origin: http://localhost:3000" in world.program.received
    client.close()
    async with asyncio.timeout(WAIT_S):
        await world.program.closed.wait()


async def test_a_websocket_ends_with_its_access(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ACCESS_CHECK_S", 0.02)
    world.program.respond = echo_after_upgrade
    world.public.add(SANDBOX)
    client = await world.open()
    client.write(world.head("/ws", *UPGRADE, token=False))
    assert (await client.response(has_body=False)).status == 101
    assert await client.read(5) == b"first"
    for _ in range(5):  # it goes on while the access lasts
        checks = world.authorized
        while world.authorized == checks:  # noqa: ASYNC110 - a check has no event
            await asyncio.sleep(0)
        client.write(b"y")
        assert await client.read(1) == b"y"
    world.public.clear()
    assert await client.read_to_end() == b""
    async with asyncio.timeout(WAIT_S):
        await world.program.closed.wait()


@pytest.mark.parametrize("headers", [("Connection: Upgrade", "Upgrade: tcp"), (*UPGRADE, "Content-Length: 5")])
async def test_other_upgrades_and_upgrades_with_a_body_are_refused(world: World, headers: tuple[str, ...]) -> None:
    assert (await world.request(world.head("/", *headers))).status == 400
    assert world.tunnels == 0


async def test_an_offer_of_http_2_is_ignored(world: World) -> None:
    response = await world.request(world.head("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"))
    assert response.status == 200
    assert b"h2c" not in world.program.received
    assert b"http2-settings" not in world.program.received


async def test_a_program_cannot_switch_without_being_asked(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n")

    world.program.respond = respond
    assert (await world.request(world.head())).status == 502


# Hostile clients and programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers, body",
    [
        (("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"),
        (("Content-Length: 5", "Content-Length: 6"), b"abcdef"),
        (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n"),
        (("Transfer-Encoding : chunked",), b"0\r\n\r\n"),
        (("Content-Length: +5",), b"abcde"),
        ((f"Host: {OTHER}.localhost",), b""),
    ],
)
async def test_ambiguous_requests_reach_no_program(world: World, headers: tuple[str, ...], body: bytes) -> None:
    client = await world.open()
    client.write(world.head("/", *headers, method="POST") + body)
    response = await client.response_head()
    assert response.status in {400, 501}
    client.close()
    assert world.program.received == b""


async def test_a_request_behind_another_is_judged_by_its_own_head(world: World) -> None:
    client = await world.open()
    client.write(world.head("/one", "Content-Length: 3", method="POST") + b"abc" + world.head("/two", sandbox=OTHER, token=False))
    assert (await client.response()).status == 200
    assert (await client.response()).status == 401
    assert b"/two" not in world.program.received
    assert world.programs[OTHER].received == b""
    client.close()


@pytest.mark.parametrize("line", ["GET http://example.com/ HTTP/1.1", "CONNECT example.com:443 HTTP/1.1", "OPTIONS * HTTP/1.1"])
async def test_only_paths_are_forwarded(world: World, line: str) -> None:
    assert (await world.request(f"{line}\r\nHost: {world.host}\r\n\r\n".encode())).status == 400


@pytest.mark.parametrize("port", [0, 65536, 99999])
async def test_a_port_out_of_range_is_refused(world: World, port: int) -> None:
    response = await world.request(f"GET / HTTP/1.1\r\nHost: {port}-{SANDBOX}.localhost\r\n\r\n".encode())
    assert response.status == 400


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x00\xa5", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000]
)
async def test_bytes_that_are_no_request_get_an_error_and_the_connection_ends(world: World, data: bytes) -> None:
    client = await world.open()
    client.write(data + b"\r\n\r\n")
    response = await client.read_to_end()
    assert response.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 431"))
    assert world.tunnels == 0


async def test_an_invalid_body_ends_the_request_at_the_program(world: World) -> None:
    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        """Wait for the rest of the body."""

    world.program.respond = respond
    client = await world.open()
    client.write(world.head("/", "Transfer-Encoding: chunked", method="POST") + b"zz\r\nabc")
    assert (await client.read_to_end()).startswith(b"HTTP/1.1 400")
    async with asyncio.timeout(WAIT_S):
        await world.program.closed.wait()


@pytest.mark.parametrize(
    "response", [b"", b"SSH-2.0-dropbear\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000]
)
async def test_a_program_that_does_not_speak_http_gives_502(world: World, response: bytes) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        writer.close()

    world.program.respond = respond
    found = await world.request(world.head())
    assert found.status in {502, 503}


async def test_a_response_that_breaks_off_resets_the_client(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
        await writer.drain()
        writer.close()

    world.program.respond = respond
    client = await world.open()
    client.write(world.head())
    data = await client.read_to_end()
    assert b"content-length: 100" in data or data == b""
    assert not data.endswith(b"0\r\n\r\n")


async def test_a_client_that_leaves_ends_the_request_at_the_program(world: World) -> None:
    arrived = asyncio.Event()

    async def respond(_: bytes, __: asyncio.StreamWriter) -> None:
        arrived.set()

    world.program.respond = respond
    client = await world.open()
    client.write(world.head())
    async with asyncio.timeout(WAIT_S):
        await arrived.wait()
        client.close()
        await world.program.closed.wait()


async def test_a_head_that_does_not_end_closes_the_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    client = await world.open()
    client.write(b"GET / HTTP/1.1\r\nHost: ")
    assert await client.read_to_end() == b""


async def test_a_body_that_does_not_arrive_gives_408(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        """Wait for the body."""

    world.program.respond = respond
    monkeypatch.setattr(connection, "BODY_TIMEOUT_S", 0.05)
    response = await world.request(world.head("/", "Content-Length: 10", method="POST"))
    assert response.status == 408


@pytest.mark.parametrize("is_websocket", [False, True])
async def test_a_program_that_does_not_read_ends_the_request(world: World, monkeypatch: pytest.MonkeyPatch, *, is_websocket: bool) -> None:
    monkeypatch.setattr(program_connection, "STALL_TIMEOUT_S", 0.05)
    never = asyncio.Event()

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        if is_websocket:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        await never.wait()

    world.program.respond = respond
    client = await world.open()
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    client.write(world.head("/", *upgrade) if is_websocket else world.head("/", "Content-Length: 100000000", method="POST"))
    if is_websocket:
        assert (await client.response_head()).status == 101
    client.write(bytes(100_000_000))
    if not is_websocket:
        response = await client.response()
        assert (response.status, json.loads(response.body)["code"]) == (502, "service_unavailable")
    await client.read_to_end()


async def test_a_client_that_does_not_read_is_disconnected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_TIMEOUT_S", 0.05)

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    world.program.respond = respond
    client = await world.open()
    client.write(world.head())
    async with asyncio.timeout(WAIT_S):
        await world.program.closed.wait()
    client.close()


async def test_an_address_with_too_many_connections_loses_its_oldest_idle_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 0)
    clients = [await world.open() for _ in range(MAX_CONNECTIONS // connections.SHARES + 1)]
    assert await clients[0].read_to_end() == b""
    clients[-1].write(world.head())
    assert (await clients[-1].response()).status == 200


async def test_a_connection_that_is_refused_gets_a_response(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 3600)
    clients = [await world.open() for _ in range(MAX_CONNECTIONS // connections.SHARES + 1)]
    assert (await clients[-1].read_to_end()).startswith(b"HTTP/1.1 503 ")


async def test_requests_that_arrive_together_let_other_tasks_run(world: World) -> None:
    client = await world.open()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    client.write(world.head(token=False) * 10)
    for _ in range(10):
        assert (await client.response()).status == 401
    counting.cancel()
    assert turns >= 10


async def test_a_connection_with_many_refused_requests_is_closed(world: World) -> None:
    client = await world.open()
    client.write(world.head(token=False) * 100)
    assert (await client.read_to_end()).count(b"HTTP/1.1 401") == connection.MAX_REFUSALS


async def test_many_informational_responses_are_an_error(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 1000)

    world.program.respond = respond
    client = await world.open()
    client.write(world.head())
    statuses = [(await client.response_head()).status for _ in range(connection.MAX_INFORMATIONAL + 1)]
    assert statuses == [103] * connection.MAX_INFORMATIONAL + [502]


async def test_a_client_that_leaves_while_nothing_is_read_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ACCESS_CHECK_S", 0.02)
    arrived = asyncio.Event()

    async def respond(_: bytes, __: asyncio.StreamWriter) -> None:
        arrived.set()

    world.program.respond = respond
    client = await world.open()
    client.write(world.head() + world.head() * 3000)
    async with asyncio.timeout(WAIT_S):
        await arrived.wait()
        client.abort()
        await world.program.closed.wait()


# Connections to programs ----------------------------------------------------------------------------------------------------


async def test_a_request_is_sent_again_if_the_program_has_closed_its_kept_connection(world: World) -> None:
    requests = 0

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        if requests == 2:
            writer.close()  # as a server whose idle timeout ends at this moment
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

    world.program.respond = respond
    assert (await world.request(world.head())).status == 200
    assert (await world.request(world.head())).status == 200
    assert (requests, world.tunnels) == (3, 2)


async def test_a_closed_connection_is_not_used_again(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    world.program.respond = respond
    for _ in range(2):
        world.program.closed.clear()
        assert (await world.request(world.head("/", "Content-Length: 1", method="POST") + b"x")).status == 200
        async with asyncio.timeout(WAIT_S):
            await world.program.closed.wait()
        while world.listener.programs.idle:  # noqa: ASYNC110 - the end of the tunnel has no event
            await asyncio.sleep(0)
    assert world.tunnels == 2


async def test_a_suspended_sandbox_gets_a_new_tunnel(world: World) -> None:
    assert (await world.request(world.head())).status == 200
    world.is_running = False
    assert (await world.request(world.head())).status == 200
    assert world.tunnels == 2


async def test_bytes_behind_a_response_end_the_connection_to_the_program(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

    world.program.respond = respond
    for _ in range(2):
        assert (await world.request(world.head())).body == b"hello"
    assert world.tunnels == 2


# Path form ------------------------------------------------------------------------------------------------------------------


def path_head(world: World, path: str, *headers: str, method: str = "GET") -> bytes:
    """Return the head of a request in the path form."""
    lines = [f"{method} /p/{token_of(SANDBOX)}{path} HTTP/1.1", f"Host: 127.0.0.1:{world.port}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_path_form_isolates_its_pages_and_keeps_cookies_away(world: World) -> None:
    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: a=b\r\nclear-site-data: *\r\ncontent-security-policy: default-src 'self'\r\n\r\nok"
        )

    world.program.respond = respond
    response = await world.request(path_head(world, "/x?y", "Cookie: api=secret", "Origin: null"))
    assert response.status == 200
    assert response.values("content-security-policy") == ["default-src 'self'", "sandbox allow-scripts allow-forms"]
    assert response.values("set-cookie") + response.values("clear-site-data") == []
    assert response.values("access-control-allow-origin") == ["null"]
    assert world.program.received.startswith(b"GET /x?y HTTP/1.1\r\n")
    assert b"secret" not in world.program.received


async def test_path_form_refuses_service_workers(world: World) -> None:
    assert (await world.request(path_head(world, "/sw.js", "Service-Worker: script"))).status == 400
    assert world.tunnels == 0


async def test_path_form_answers_preflights_and_adds_the_last_slash(world: World) -> None:
    preflight = await world.request(path_head(world, "/api", "Origin: null", "Access-Control-Request-Method: PUT", method="OPTIONS"))
    assert (preflight.status, preflight.values("access-control-allow-methods")) == (200, ["PUT"])
    slash = await world.request(path_head(world, "?a=b"))
    assert (slash.status, slash.values("location")) == (302, [f"/p/{token_of(SANDBOX)}/?a=b"])
    assert world.tunnels == 0


@pytest.mark.parametrize("path", ["/", "/p/", "/p/x/", "/v1/sandboxes", f"/p/{PORT}-{SANDBOX}/"])
async def test_paths_without_a_token_open_nothing(world: World, path: str) -> None:
    response = await world.request(f"GET {path} HTTP/1.1\r\nHost: localhost:{world.port}\r\n\r\n".encode())
    assert response.status in {401, 404}
    assert world.tunnels == 0


async def open_tls(world: World, folder: Path) -> Connection:
    """Open a client connection with TLS."""
    trusting = ssl.create_default_context(cafile=folder / "certificate.pem")
    client = Connection(*await asyncio.open_connection("127.0.0.1", world.port, ssl=trusting, server_hostname="localhost"))
    world.clients.append(client)
    return client


async def test_tls_serves_https_and_a_secure_cookie(tls_world: World, tmp_path: Path) -> None:
    client = await open_tls(tls_world, tmp_path)
    client.write(tls_world.head(f"/?{TOKEN_PARAMETER}={token_of(SANDBOX)}", "Accept: text/html", token=False))
    [cookie] = (await client.response()).values("set-cookie")
    assert cookie.startswith("__Host-sandlot_preview=")
    assert "; Secure" in cookie


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="certificate of the previews"):
        async with preview_world(tmp_path, preview_tls_cert=tmp_path / "missing.pem"):
            pass


async def test_bodies_arrive_whole_over_tls(tls_world: World, tmp_path: Path) -> None:
    body = bytes(range(256)) * 20_000
    received = bytearray()

    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        received.extend(data)
        if received.endswith(body):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    tls_world.program.respond = respond
    client = await open_tls(tls_world, tmp_path)
    for _ in range(2):
        client.write(tls_world.head("/", f"Content-Length: {len(body)}", method="POST") + body)
        assert (await client.response()).body == body


async def test_tls_tells_the_end_of_a_response_from_one_that_breaks_off(tls_world: World, tmp_path: Path) -> None:
    async def respond(data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello" if b"/cut" in data else b"HTTP/1.1 200 OK\r\n\r\nhello")
        writer.close()

    def read_to_end(target: str) -> bytes:
        trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
        trusting.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        with (
            socket.create_connection(("127.0.0.1", tls_world.port), timeout=WAIT_S) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as client,
        ):
            client.sendall(tls_world.head(target, version="1.0"))
            return b"".join(iter(lambda: client.recv(65536), b""))

    tls_world.program.respond = respond
    assert (await asyncio.to_thread(read_to_end, "/whole")).endswith(b"\r\n\r\nhello")
    with pytest.raises(ssl.SSLError, match=r"(?i)unexpected eof"):
        await asyncio.to_thread(read_to_end, "/cut")


async def test_connections_in_the_handshake_of_tls_count_towards_the_share_of_their_address(
    tls_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 0)
    share = MAX_CONNECTIONS // connections.SHARES
    waiting = [await tls_world.open() for _ in range(share)]
    client = await open_tls(tls_world, tmp_path)
    assert await waiting[0].read_to_end() == b""
    client.write(tls_world.head())
    assert (await client.response()).status == 200
    monkeypatch.setattr(connections, "GRACE_S", 3600)
    refused = [await tls_world.open() for _ in range(2)]  # the connection with a token counts towards its key
    assert await refused[1].read_to_end() == b""


async def test_a_handshake_that_does_not_end_closes_the_connection(tls_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    client = await tls_world.open()
    client.write(b"\x16\x03\x01")
    assert await client.read_to_end() == b""


@pytest.mark.parametrize("data, alert", [(b"GET / HTTP/1.1\r\n\r\n", b""), (b"\x16\x03\x01\x00\x04\x09\x00\x00\x00", b"\x15\x03")])
async def test_bytes_that_are_no_handshake_end_the_connection(tls_world: World, data: bytes, alert: bytes) -> None:
    client = await tls_world.open()
    client.write(data)
    assert (await client.read_to_end()).startswith(alert)
