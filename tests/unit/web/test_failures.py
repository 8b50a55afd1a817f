"""Failures in the middle of a response or of a WebSocket: which of them are defects, and what the log has of the others."""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Message
from structlog.testing import capture_logs

from sandlot.core.records.metrics import Metrics
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ErrorCode, SandboxEndedError
from sandlot.model.specs import MIB
from sandlot.web import errors
from sandlot.web.auth import OWNER
from sandlot.web.body_limits import BodyLimits
from sandlot.web.errors import ResponseInterruptedError
from sandlot.web.middleware import RequestMiddleware
from sandlot.web.request_turns import RequestTurns
from sandlot.web.streaming import SSE_MEDIA_TYPE, KeepAliveStreamResponse
from tests.support.scripted_app import KnownKeys
from tests.support.service import Bench, bench, client
from tests.support.until import until

Logs = list[MutableMapping[str, Any]]


async def close() -> None:
    """Release nothing."""


class Exchange:
    """A request to an app with one route.

    Args:
        respond: The route.
        is_flood: The client sends a body without an end while it reads the response.
    """

    def __init__(self, respond: Callable[[Request], Awaitable[Response]], *, is_flood: bool = False) -> None:
        app = FastAPI()
        app.router.add_route("/x", respond)
        errors.install_error_handlers(app)
        limits = BodyLimits(upload_max_bytes=MIB, json_max_bytes=MIB)
        self._app = RequestMiddleware(
            app, keys=KnownKeys(), body_limits=limits, buffers=BufferShares(64 * MIB), metrics=Metrics(), turns=RequestTurns()
        )
        self._flood = asyncio.Event()
        self._is_flood = is_flood
        self.sent: list[Message] = []

    async def run(self) -> Logs:
        """Return the log of the request, whose response is interrupted."""
        scope: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}, "state": {"peer": OWNER}, "method": "GET", "path": "/x"}
        scope |= {"raw_path": b"/x", "query_string": b"", "root_path": "", "headers": [(b"transfer-encoding", b"chunked")]}
        with capture_logs() as logs, pytest.raises(ResponseInterruptedError):
            await self._app(scope, self._receive, self._send)
        return logs

    async def _receive(self) -> Message:
        await self._flood.wait()
        return {"type": "http.request", "body": bytes(64 * 1024), "more_body": True}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if message.get("body") and self._is_flood:
            self._flood.set()
        await asyncio.sleep(0)


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0)


async def _cut(error: Exception) -> AsyncIterator[bytes]:
    yield b"x"
    raise error


def check(logs: Logs, code: str) -> None:
    """Check that a failure is in the line of its request, and nowhere else."""
    assert [(each["event"], each["code"], "exc_info" in each) for each in logs] == [("request", code, False)]


async def test_oversize_body_ends_a_response_that_has_begun_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(20 * MIB))

    async def stream(_request: Request) -> Response:
        return StreamingResponse(_endless())

    async def events(_request: Request) -> Response:
        return KeepAliveStreamResponse(_endless(), close, media_type=SSE_MEDIA_TYPE)

    async def download(_request: Request) -> Response:
        return FileResponse(file)

    for respond in (stream, events, download):
        exchange = Exchange(respond, is_flood=True)
        check(await exchange.run(), "too_large")
        assert exchange.sent[-1].get("more_body"), "nobody takes a part for the whole"


async def test_sandbox_that_ends_in_the_middle_of_a_response_is_no_defect() -> None:
    ended = SandboxEndedError("The sandbox has ended.", code=ErrorCode.SANDBOX_ENDED)

    async def stream(_request: Request) -> Response:
        return StreamingResponse(_cut(ended))

    async def events(_request: Request) -> Response:
        return KeepAliveStreamResponse(_cut(ended), close, media_type=SSE_MEDIA_TYPE)

    for respond in (stream, events):
        exchange = Exchange(respond)
        check(await exchange.run(), "sandbox_ended")
        assert exchange.sent[-1].get("more_body")


async def test_defect_in_the_middle_of_a_response_has_its_traceback() -> None:
    async def stream(_request: Request) -> Response:
        return StreamingResponse(_cut(KeyError("a defect")))

    defect, line = await Exchange(stream).run()
    assert (defect["event"], defect["exc_info"]) == ("request.defect", True)
    assert line["code"] == "internal"


async def test_client_of_a_websocket_that_breaks_the_protocol_is_no_defect(tmp_path: Path) -> None:
    async with bench(tmp_path) as at, client(at.service) as http:
        for last in (b"\xff\xff" * 8, b"\x81\xff" + b"\xff" * 1000, b""):
            with capture_logs() as logs:
                writer = await terminal(at, http)
                writer.write(b"\x82\x81" + bytes(4) + b"x" + last)  # the program repeats what it gets
                await writer.drain()
                writer.transport.abort()
                await until(functools.partial(_has_ended, logs))
            assert [each for each in logs if "exc_info" in each] == []


def _has_ended(logs: Logs) -> bool:
    return any(each["event"] == "socket" for each in logs)


async def terminal(at: Bench, http: httpx.AsyncClient) -> asyncio.StreamWriter:
    """Open a terminal with raw frames."""
    url = f"/v1/sandboxes/{(await at.sandbox()).id}/processes"
    process = (await http.post(url, json={"command": "cat", "pty": {}, "background": True})).json()["id"]
    reader, writer = await asyncio.open_unix_connection(str(at.service.settings.socket))
    head = f"GET {url}/{process}/terminal HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    writer.write(f"{head}Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return writer
