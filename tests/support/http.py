"""Small things for tests that speak HTTP with the service."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

Told = tuple[str, dict[str, Any]]
"""An event: its name and its data."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of ``http://`` and of Unix sockets: without it each client reads all certificates of the system, for 60 ms."""


def unix_client(path: Path) -> httpx.AsyncClient:
    """Return a client of a Unix socket."""
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path), verify=NO_TLS), base_url="http://sandlot", timeout=60)


def short(value: object) -> str:
    """A parameter as part of a test's name."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}...{len(text)}"


async def events(response: httpx.Response) -> AsyncIterator[Told]:
    """The events of a response, as they come."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def told(http: httpx.AsyncClient, url: str, body: dict[str, Any] | None = None, **query: str | int) -> list[Told]:
    """All events of a request, GET where there is no body."""
    method = "GET" if body is None else "POST"
    async with http.stream(method, url, json=body, params=query, headers={"Accept": "text/event-stream"}) as response:
        if response.status_code != 200:
            await response.aread()
            raise AssertionError(response.text)
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in events(response)]


def output(all_told: list[Told], stream: str = "stdout") -> bytes:
    """The bytes of one stream; they must be without a gap."""
    whole = b""
    for name, data in all_told:
        if name == "output" and data["stream"] == stream:
            assert data["offset"] == len(whole)
            whole += base64.b64decode(data["data"]) if data["encoding"] == "base64" else data["data"].encode()
    return whole


async def post(http: httpx.AsyncClient, url: str, body: object) -> httpx.Response:
    """POST any JSON, lone surrogates as well, which httpx would refuse to send."""
    return await http.post(url, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of a failure, which must be one and say what to do."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code), body
    assert body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    return body
