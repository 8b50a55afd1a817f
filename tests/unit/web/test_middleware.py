"""Around every request: its id, its size, its key, and what a defect looks like from outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from sandlot.core.records.metrics import Metrics
from sandlot.model.access import LOCAL, OwnerId, Principal, Quota
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.files import Entry
from sandlot.model.specs import MIB
from sandlot.server.composition import RunningService
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener, middleware, streaming
from sandlot.web.auth import OWNER
from sandlot.web.body_limits import BodyLimits
from sandlot.web.request_turns import RequestTurns
from tests.support.http import NO_TLS
from tests.support.scripted_app import KnownKeys, serve_scripted
from tests.support.scripted_node import ScriptedNode, entry
from tests.support.service import Bench, bench, client
from tests.support.until import until

CODE = "/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/code"


class NoKeys:
    """Knows nobody's."""

    def verify(self, secret: str) -> Principal | None:  # noqa: ARG002 - a verifier
        return None

    def working_for(self, owner: OwnerId) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002 - as above
        return contextlib.nullcontext()


async def test_every_answer_has_an_id_of_its_own_or_the_clients(local: httpx.AsyncClient) -> None:
    first, second = await local.get("/healthz"), await local.get("/nope")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert second.json()["request_id"] == second.headers["x-request-id"]
    assert (await local.get("/nope", headers={"X-Request-Id": "mine-1.2_3"})).json()["request_id"] == "mine-1.2_3"
    for wrong in ("a b", "x" * 65, "<script>"):
        assert (await local.get("/healthz", headers={"X-Request-Id": wrong})).headers["x-request-id"] != wrong


async def test_a_body_that_is_too_large_is_answered_and_the_connection_lives_on(local: httpx.AsyncClient) -> None:
    content = b'{"code": "' + b"x" * (10 * MIB) + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 65536):
            yield content[at : at + 65536]

    for sent in (content, pieces()):
        response = await local.post(CODE, content=sent, headers={"Content-Type": "application/json"})
        assert (response.status_code, response.json()["code"]) == (413, "too_large")
        assert "file" in response.json()["hint"]
        assert "connection" not in response.headers
        assert (await local.get("/healthz")).status_code == 200


async def test_a_body_without_end_is_cut_off_after_its_answer(
    served: RunningService, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "DRAIN_MAX_BYTES", MIB)
    sent, answered = await asyncio.to_thread(_send_without_end, served.settings.socket)
    assert sent < 100 * MIB
    assert answered.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answered
    assert (await local.get("/healthz")).status_code == 200


def _send_without_end(path: Path) -> tuple[int, bytes]:
    sent = 0
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(b"POST " + CODE.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\ncontent-type: application/json\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                sent += peer.send(b"x" * 65536)
        return sent, peer.recv(100_000)


async def test_over_tcp_nothing_is_read_without_a_key(at: Bench) -> None:
    _, secret = await at.service.api_keys.create("a")
    tcp = listener.tcp_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    async with serve_in_background(at.service, [tcp]), httpx.AsyncClient(base_url=url, verify=NO_TLS) as anybody:
        assert (await anybody.get("/healthz")).json()["status"] == "ok"
        for path in ("/v1/sandboxes", "/v1/version", "/metrics", "/nope"):
            response = await anybody.get(path)
            assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await anybody.post("/v1/sandboxes", json={}, headers={"X-API-Key": "wrong"})).status_code == 401
        known = {"Authorization": f"Bearer {secret}"}
        assert (await anybody.get("/v1/sandboxes", headers=known)).json() == {"sandboxes": [], "next_cursor": None}
        assert (await anybody.post("/v1/service/stop", headers=known)).status_code == 403
        await at.service.api_keys.revoke("a")
        assert (await anybody.get("/v1/sandboxes", headers=known)).status_code == 401


async def test_revoked_key_ends_its_open_requests(at: Bench) -> None:
    _, secret = await at.service.api_keys.create("stolen")
    begun = asyncio.Event()
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an application
        begun.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    framed = middleware.RequestMiddleware(
        app,
        keys=at.service.api_keys,
        body_limits=BodyLimits(upload_max_bytes=MIB),
        buffers=BufferShares(MIB),
        metrics=Metrics(),
        turns=RequestTurns(),
    )
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/v1/events", "headers": [(b"x-api-key", secret.encode())]}
    request = asyncio.create_task(framed(scope, receive, send))
    await begun.wait()
    await at.service.api_keys.revoke("stolen")
    await request
    assert sent[0]["status"] == 401


async def test_upload_beyond_the_quota_is_refused_before_it_arrives(scripted: ScriptedNode, folder: Path) -> None:
    keys = KnownKeys({"small": Principal(owner=OwnerId("0123456789ab"), name="small", quota=Quota(upload_bytes=1000))})
    tcp = listener.tcp_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{tcp.getsockname()[1]}"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 500):
            yield b"x" * 500

    scripted.script("files.write", write, write, write)  # the fourth upload is refused before its operation is called
    async with (
        serve_scripted(scripted, folder, listeners=[tcp], keys=keys),
        httpx.AsyncClient(base_url=url, headers={"X-API-Key": "small"}, trust_env=False, verify=NO_TLS) as http,
    ):

        async def upload(content: bytes | AsyncIterator[bytes]) -> httpx.Response:
            return await http.put("/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/files/content", params={"path": "/tmp/upload"}, content=content)

        for allowed in (b"x" * 1000, pieces(1000)):
            response = await upload(allowed)
            assert (response.status_code, response.json()["size_bytes"]) == (200, 1000)
        for too_large in (b"x" * 1500, pieces(1500)):
            refused = await upload(too_large)
            assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
            assert refused.json()["fields"] == {"quota": "upload_bytes", "limit": 1000, "used": 0, "requested": 1500}
            assert "retry-after" not in refused.headers, "waiting does not help"


async def write(path: str, chunks: AsyncIterable[bytes], **_: object) -> Entry:
    """Read an upload to its end."""
    return entry(path, size=sum([len(chunk) async for chunk in chunks]))


async def test_over_tcp_answers_are_not_delayed(scripted: ScriptedNode, folder: Path) -> None:
    seen: list[int] = []
    made = listener.SandlotHttpProtocol.connection_made

    class Watched(listener.SandlotHttpProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            made(self, transport)
            seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    tcp = listener.tcp_socket("127.0.0.1", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "SandlotHttpProtocol", Watched)
        async with serve_scripted(scripted, folder, listeners=[tcp]), httpx.AsyncClient(verify=NO_TLS) as anybody:
            await anybody.get(f"http://127.0.0.1:{tcp.getsockname()[1]}/healthz")
    assert seen
    assert all(seen)


async def test_a_defect_is_told_without_its_inside(scripted: ScriptedNode, local: httpx.AsyncClient) -> None:
    scripted.script("webhooks.list", KeyError("the secret"))
    with capture_logs() as logs:  # formatting the traceback of a whole service takes seconds
        response = await local.get("/v1/webhooks")
    assert any(entry.get("exc_info") for entry in logs), "the traceback is in the log"
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert (await local.get("/healthz")).status_code == 200


async def test_uploads_to_the_file_store_have_a_limit_of_their_own(folder: Path) -> None:
    async with bench(folder, replace(Settings(), upload_max_bytes=MIB)) as at, client(at.service) as http:

        async def more() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"y" * 65536

        for content in (b"y" * (MIB + 1), more()):
            response = await http.post("/v1/files?filename=a", content=content)
            assert (response.status_code, response.json()["code"]) == (413, "too_large")
            assert "SANDLOT_UPLOAD_MAX_BYTES" in response.json()["hint"]
        sandbox = await at.sandbox()
        url = f"/v1/sandboxes/{sandbox.id}/files/content?path=/workspace/a"
        for content in (b"y" * (MIB + 1), more()):
            assert (await http.put(url, content=content)).json()["size_bytes"] > MIB


async def test_refused_upload_of_a_client_with_a_key_is_read_so_that_the_client_reads_the_error(folder: Path) -> None:
    async with bench(folder) as at, client(at.service) as http:
        sandbox = await at.sandbox()
        sent = 0

        async def content() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(100):
                yield b"y" * 65536
                sent += 65536

        refused = await http.put(f"/v1/sandboxes/{sandbox.id}/files/content?path=/root/a", content=content())
        assert (refused.status_code, sent) == (403, 100 * 65536)


async def test_bodies_beyond_the_share_of_a_key_are_refused_until_there_is_room(at: Bench, http: httpx.AsyncClient) -> None:
    body = {"code": "x" * MIB}
    own, others = at.service.node.buffers.of(LOCAL), at.service.settings.buffer_bytes // 2 - MIB // 2
    own.take(others)
    refused = await http.post(CODE, json=body)
    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "busy", True)
    assert refused.headers["retry-after"] == "1"
    assert (await http.post(CODE, json={"code": "x" * 1000})).status_code == 404  # what is small is always taken
    assert at.service.node.buffers.of(OwnerId("another")).room_bytes > MIB
    own.give(others)
    assert (await http.post(CODE, json=body)).status_code == 404
    await until(lambda: at.service.node.buffers.taken_bytes == 0)


async def test_a_body_that_stops_half_way_is_given_up(
    scripted: ScriptedNode, served: RunningService, local: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.2)
    scripted.script("files.write", write)
    for method, path in (
        ("POST", "/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/code"),
        ("PUT", "/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/files/content?path=/tmp/x"),
    ):
        reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
        writer.write(f'{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{{"code": "'.encode())
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 408 "), answered
        assert b'"code": "timeout"' in answered
        writer.close()
    assert (await local.get("/healthz")).status_code == 200


async def test_no_beat_is_inside_of_an_event_that_its_client_takes_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.001)
    large = streaming.StreamEvent("output", {"data": "x" * (4 * middleware.CHUNK_BYTES)}).as_sse()
    sent = bytearray()
    beaten = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield large
            beaten.clear()
            await beaten.wait()  # the client is kept waiting, and told that it was not forgotten

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streaming.KeepAliveStreamResponse(pieces(), closed, media_type=streaming.SSE_MEDIA_TYPE, keep_alive=streaming.KEEP_ALIVE)(
            scope, receive, send
        )

    async def closed() -> None:
        pass

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        await asyncio.sleep(0.01)
        sent.extend(message.get("body", b""))
        if message.get("body") == streaming.KEEP_ALIVE:
            beaten.set()

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {"peer": OWNER}}
    async with asyncio.timeout(60):
        await middleware.RequestMiddleware(
            app, keys=NoKeys(), body_limits=BodyLimits(upload_max_bytes=MIB), buffers=BufferShares(MIB), metrics=Metrics(), turns=RequestTurns()
        )(scope, receive, send)
    told = bytes(sent)
    assert told.count(streaming.KEEP_ALIVE) >= 3
    assert told.replace(streaming.KEEP_ALIVE, b"") == 3 * large
    assert told.count(large) == 3


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_parts_of_responses_and_messages_count_for_their_key(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    owner = OwnerId("0123456789ab")
    keys = KnownKeys({"known": Principal(owner=owner, name="known")})
    counted: list[tuple[OwnerId | None, int]] = []

    async def pause(_: RequestTurns, owner: OwnerId | None, sent_bytes: int) -> None:
        counted.append((owner, sent_bytes))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an application
        if kind == "websocket":
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "bytes": b"x" * 1000})
            await send({"type": "websocket.send", "text": "x" * 2000})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await send({"type": "http.response.body", "body": b"x" * (middleware.CHUNK_BYTES + 1), "more_body": True})
        await send({"type": "http.response.body", "body": b"x" * 1000})

    async def receive() -> Message:
        return {"type": "websocket.connect" if kind == "websocket" else "http.request"}

    async def send(message: Message) -> None: ...

    monkeypatch.setattr(RequestTurns, "pause", pause)
    scope: dict[str, Any] = {"type": kind, "method": "GET", "path": "/v1/events", "headers": [(b"x-api-key", b"known")], "state": {}}
    framed = middleware.RequestMiddleware(
        app, keys=keys, body_limits=BodyLimits(upload_max_bytes=MIB), buffers=BufferShares(MIB), metrics=Metrics(), turns=RequestTurns()
    )
    await framed(scope, receive, send)
    assert counted == [(owner, 1000), (owner, 2000 if kind == "websocket" else middleware.CHUNK_BYTES)]


async def test_who_is_refused_while_still_sending_reads_why(scripted: ScriptedNode, served: RunningService) -> None:
    refusal = NotFoundError("No sandbox has this id.", code=ErrorCode.SANDBOX_NOT_FOUND)
    scripted.script("files.write", refusal, refusal)
    reader, writer = await asyncio.open_unix_connection(str(served.settings.socket))
    path = "/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/files/content?path=/workspace/a"
    for _ in range(2):
        writer.write(f"PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode())
        await asyncio.sleep(0.05)
        writer.write(b"x" * 1_000_000)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" not in head.lower()
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        assert b"sandbox_not_found" in await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
