"""Requests for servers of E2B, which the app of the service answers at the hosts of previews."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from sandlot.server.preview.app_exchange import find_app_request
from sandlot.server.vendors import VENDORS
from sandlot.web.preview_urls import PreviewAddress
from tests.unit.server.preview.world import SANDBOX, WAIT_S, World

ADDRESS = PreviewAddress("https", "preview.example.com")


@pytest.mark.parametrize(
    "port, path, target",
    [
        (49983, "/process.Process/Start", "/e2b/process.Process/Start"),
        (49983, "/files", "/e2b/files"),
        (49999, "/execute", "/e2b/execute"),
        (49999, "/sandboxes", None),
        (49983, "/", None),
        (3000, "/execute", None),
    ],
)
def test_paths_of_the_vendors_servers_on_their_ports_belong_to_its_api(port: int, path: str, target: str | None) -> None:
    headers = [(b"host", b"x"), (b"e2b-sandbox-id", b"sb-forged"), (b"e2b-sandbox-port", b"1"), (b"x-access-token", b"t")]
    found = find_app_request(ADDRESS.host(SANDBOX, port), path, headers, ADDRESS, VENDORS)
    assert (None if found is None else found.path) == target
    if found is not None:
        own = [(b"e2b-sandbox-id", SANDBOX.encode()), (b"e2b-sandbox-port", str(port).encode())]
        assert found.headers == [(b"host", b"x"), (b"x-access-token", b"t"), *own]


def head(*headers: str, method: str = "POST", path: str = "/execute") -> bytes:
    """Return the head of a request to the server of the code interpreter."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 49999-{SANDBOX}.localhost", *headers, "", ""]).encode()


async def test_bodies_pass_both_ways_and_the_connection_is_kept(world: World) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"b")]})
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": body[3:]})

    world.listener.app = app
    client = await world.open()
    for _ in range(2):
        client.write(head("Content-Length: 6", path="/execute?a=b") + b"abcdef")
        response = await client.response()
        assert (response.status, response.values("x-a"), response.body) == (201, ["b"], b"abcdef")
    assert [(scope["path"], scope["query_string"]) for scope in scopes] == [("/e2b/execute", b"a=b")] * 2
    assert "peer" not in scopes[0]["state"]
    assert world.tunnels == 0


async def test_an_app_learns_that_its_client_has_left(world: World) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        message: Any = await receive()
        assert message["type"] == "http.disconnect"
        left.set()

    world.listener.app = app
    client = await world.open()
    client.write(head("Content-Length: 0"))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        client.close()
        await left.wait()


async def test_a_response_that_the_app_does_not_complete_ends_the_connection(world: World) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})

    world.listener.app = app
    client = await world.open()
    client.write(head("Content-Length: 0"))
    assert not (await client.read_to_end()).endswith(b"abcde")


async def test_a_response_to_head_has_no_body(world: World) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"abc"})

    world.listener.app = app
    client = await world.open()
    for _ in range(2):
        client.write(head(method="HEAD"))
        assert (await client.response(has_body=False)).status == 404


async def test_an_app_whose_client_has_left_gets_no_error(world: World) -> None:
    begun, sent = asyncio.Event(), asyncio.Event()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 200_000})
        sent.set()

    world.listener.app = app
    client = await world.open()
    client.write(head("Content-Length: 0"))
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        client.close()
        await sent.wait()


async def test_two_lengths_reach_no_app(world: World) -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise AssertionError

    world.listener.app = app
    client = await world.open()
    client.write(head("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
    assert (await client.response()).status == 400
