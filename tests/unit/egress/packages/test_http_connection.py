"""HTTP on a stream of a sandbox: pipelining, malformed input, limits and policies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.egress.packages import fairness, http_connection
from sandlot.model.errors import SandlotError
from tests.support.packages import Served
from tests.support.until import until
from tests.support.upstream import Said, Upstream

PING = b"GET /npm/-/ping HTTP/1.1\r\nHost: x\r\n\r\n"
PONG = b"HTTP/1.1 200 \r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def opened(cache: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", cache.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(cache: Served, data: bytes) -> bytes:
    """Everything that is answered until the connection is closed."""
    async with opened(cache) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        return await reader.read()


async def test_pipelined_requests_are_answered_in_order(cache: Served) -> None:
    sent = b"".join(f"GET /nothing/{number} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + PING for number in range(50))
    answer = await said(cache, sent)
    assert answer.count(PONG) == 50
    assert answer.count(b"HTTP/1.1 404 ") == 50
    assert answer.index(b"404") < answer.index(PONG)


async def test_connection_is_closed_on_request(cache: Served) -> None:
    assert (await said(cache, PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + PING)).count(b"200") == 1
    assert (await said(cache, b"GET /npm/-/ping HTTP/1.0\r\n\r\n" + PING)).count(b"200") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "BREW"])
async def test_other_methods_than_get_and_head_are_405(cache: Served, method: str) -> None:
    answer = await said(cache, f"{method} /pypi/simple/pkg/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".encode() + PING)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(PONG) or method == "CONNECT"


async def test_large_request_body_is_413(cache: Served) -> None:
    head = b"POST /npm/-/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n"
    async with opened(cache) as (reader, writer):
        writer.write(head + bytes(http_connection.MAX_BODY_BYTES + 1))
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n\x00\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\n a: folded\x00\r\n\r\n",
    ],
)
async def test_malformed_request_gets_an_error_and_the_connection_is_closed(cache: Served, sent: bytes) -> None:
    answer = await said(cache, sent)
    assert answer[:10] in {b"HTTP/1.1 4", b"HTTP/1.1 5"}, answer[:100]
    assert await said(cache, PING) == PONG


@pytest.mark.parametrize("target", ["/../../etc/passwd", "/%2e%2e/x", "//x", "*", "http://169.254.169.254/latest", "/pypi/simple/%00", "/a\\b"])
async def test_path_cannot_leave_the_cache(cache: Served, registry: Upstream, target: str) -> None:
    assert (await said(cache, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).startswith(b"HTTP/1.1 400 ")
    assert registry.asked == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([PING, PING[:-2], b"\r\n", b"GET ", b"\x00", b"Host: x\r\n", b"0\r\n\r\n", b"/"]) | st.binary(max_size=20), max_size=8)
)
async def test_next_connection_works_after_any_input(cache: Served, pieces: list[bytes]) -> None:
    await said(cache, b"".join(pieces))
    assert await said(cache, PING) == PONG
    assert cache.cache.counters().errors == 0


async def test_refused_sandbox_gets_an_explanation(client: httpx.AsyncClient, cache: Served, registry: Upstream) -> None:
    cache.allowed = False
    for path in ("/pypi/simple/pkg/", "/npm/pkg", "/debian/dists/bookworm/InRelease", "/x"):
        response = await client.get(path)
        assert (response.status_code, response.headers["content-type"]) == (403, "text/plain; charset=utf-8")
        assert "network policy" in response.text
        assert "install()" in response.text
    assert registry.asked == []
    assert cache.cache.counters().refused == 4
    assert cache.cut == []
    cache.allowed = True
    assert (await client.get("/npm/-/ping")).status_code == 200


async def test_closing_policy_cuts_a_response_in_progress(client: httpx.AsyncClient, cache: Served, registry: Upstream) -> None:
    data = os.urandom(8 * 1024 * 1024)
    digest = hashlib.sha256(data).hexdigest()
    held = Said(data, hold_at=4 * 1024 * 1024)
    registry.says["/f/pkg-1.tar.gz"] = held
    words = {"files": [{"filename": "pkg-1.tar.gz", "url": "/f/pkg-1.tar.gz", "hashes": {"sha256": digest}}]}
    registry.says["/simple/pkg/"] = Said(json.dumps(words).encode(), headers={"Content-Type": "application/json"})
    got = 0
    with pytest.raises(httpx.TransportError):  # noqa: PT012 - where it breaks is what is looked at
        async with client.stream("GET", f"/pypi/files/pkg/sha256-{digest}/unknown/pkg-1.tar.gz") as response:
            async for piece in response.aiter_raw():
                got += len(piece)
                cache.allowed = False
                held.held.set()
    assert 0 < got < len(data)
    assert "policy" in cache.cut[0].message


async def test_client_that_reads_nothing_is_cut(cache: Served, registry: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_S", 0.3)
    data = os.urandom(16 * 1024 * 1024)
    digest = hashlib.sha256(data).hexdigest()
    registry.says["/f/pkg-1.tar.gz"] = Said(data)
    words = {"files": [{"filename": "pkg-1.tar.gz", "url": "/f/pkg-1.tar.gz", "hashes": {"sha256": digest}}]}
    registry.says["/simple/pkg/"] = Said(json.dumps(words).encode(), headers={"Content-Type": "application/json"})
    async with opened(cache) as (_, writer):
        writer.write(f"GET /pypi/files/pkg/sha256-{digest}/unknown/pkg-1.tar.gz HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until(lambda: bool(cache.cut))
    assert "read nothing of the response" in cache.cut[0].message


async def test_idle_client_is_disconnected(cache: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "IDLE_S", 0.2)
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.2)
    for sent in (b"", PING, PING + b"GET /half"):
        async with opened(cache) as (reader, writer):
            writer.write(sent)
            assert await reader.read() == (PONG if PING in sent else b"")
    assert cache.cut == []


class Scripted:
    """A stream that ends in the middle, as one that is reset does."""

    def __init__(self, *items: object) -> None:
        self.items = list(items)
        self.written = b""
        self.ended = False

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item

    async def write(self, data: bytes) -> None:
        self.written += data

    def end(self) -> None:
        self.ended = True


async def test_link_message_in_the_stream_ends_the_connection(cache: Served) -> None:
    stream = Scripted(PING, {"not": "bytes"}, PING)
    await cache.cache.serve(stream, sandbox="x", allowed=lambda: True)
    assert (stream.written, stream.ended) == (PONG, True)


async def test_reset_stream_ends_the_connection(cache: Served) -> None:
    stream = Scripted(PING, SandlotError("gone"))
    with pytest.raises(SandlotError, match="gone"):
        await cache.cache.serve(stream, sandbox="x", allowed=lambda: True)
    assert stream.written == PONG


async def test_excess_requests_of_a_sandbox_do_not_delay_other_sandboxes(client: httpx.AsyncClient, cache: Served, registry: Upstream) -> None:
    held = asyncio.Event()
    for number in range(fairness.REQUESTS_PER_SANDBOX * 2):
        registry.says[f"/simple/held{number}/"] = Said(b"x", hold_at=0, held=held)
    registry.says["/registry/pkg"] = Said(b'{"versions": {}}', headers={"Content-Type": "application/json"})
    asked = [asyncio.create_task(client.get(f"/pypi/simple/held{number}/")) for number in range(fairness.REQUESTS_PER_SANDBOX * 2)]
    await until(lambda: len(registry.asked) == fairness.REQUESTS_PER_SANDBOX)
    cache.sandbox = "another"
    async with cache.client() as other:
        assert (await other.get("/npm/pkg")).status_code == 200
    assert len(registry.asked) == fairness.REQUESTS_PER_SANDBOX + 1
    held.set()
    await asyncio.gather(*asked)
    assert len(registry.asked) == fairness.REQUESTS_PER_SANDBOX * 2 + 1
