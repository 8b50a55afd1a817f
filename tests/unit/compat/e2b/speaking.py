"""Speaks with a sandbox's inside as E2B's clients do, for tests of what these never send."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sandlot.compat.e2b.envd import connect_rpc

HERE = "/e2b"
PROCESS, FILES = f"{HERE}/process.Process", f"{HERE}/filesystem.Filesystem"

Json = dict[str, Any]


def envelope(message: object, flags: int = 0) -> bytes:
    raw = message if isinstance(message, bytes) else json.dumps(message).encode()
    return bytes((flags,)) + len(raw).to_bytes(4, "big") + raw


def unpacked(raw: bytes) -> list[tuple[int, Json]]:
    """Flags and messages of an answer, all of it."""
    told: list[tuple[int, Json]] = []
    while raw:
        size = int.from_bytes(raw[1:5], "big")
        told.append((raw[0], json.loads(raw[5 : 5 + size])))
        raw = raw[5 + size :]
    return told


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Inside:
    """One sandbox's inside.

    Args:
        http: A client of the service.
        sandbox: Its id.
        headers: Sent with everything.
    """

    def __init__(self, http: httpx.AsyncClient, sandbox: str, **headers: str) -> None:
        self.http = http
        self.sandbox = sandbox
        self.headers = {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983", **headers}

    async def ask(self, method: str, message: object, status: int = 200, **headers: str) -> Json:
        """What a unary method answers."""
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        response = await self.http.post(method, content=raw, headers={"Content-Type": connect_rpc.UNARY, **self.headers, **headers})
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == connect_rpc.UNARY
        body: Json = response.json()
        return body

    async def refused(self, method: str, message: object, code: str, status: int, **headers: str) -> str:
        """The message of the failure that a unary method answers."""
        told = await self.ask(method, message, status, **headers)
        assert (set(told), told["code"]) == ({"code", "message"}, code), told
        return str(told["message"])

    async def all(self, method: str, *messages: object, body: bytes | None = None, **headers: str) -> tuple[list[Json], Json]:
        """What a streaming method tells to its end, and its last envelope."""
        content = b"".join(envelope(message) for message in messages) if body is None else body
        response = await self.http.post(method, content=content, headers={"Content-Type": connect_rpc.STREAM, **self.headers, **headers})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == connect_rpc.STREAM
        *told, (flags, last) = unpacked(response.content)
        assert (flags, {each for each, _ in told} <= {0}) == (connect_rpc.END, True)
        return [message for _, message in told], last

    async def failed(self, method: str, *messages: object, body: bytes | None = None, **headers: str) -> Json:
        """The error that a streaming method ends with."""
        _, last = await self.all(method, *messages, body=body, **headers)
        error: Json = last["error"]
        assert set(error) == {"code", "message"}
        return error

    async def run(self, *argv: str, user: str = "", **more: Any) -> tuple[bytes, bytes, Json]:  # noqa: ANN401 - JSON
        """What a command wrote, and its end."""
        message = started(*argv, **more)
        headers = {"Authorization": f"Basic {b64(f'{user}:'.encode())}"} if user else {}
        told, last = await self.all(f"{PROCESS}/Start", message, body=None, **headers)
        assert last == {}, last
        return output(told, "stdout"), output(told, "stderr"), told[-1]["event"]["end"]

    @asynccontextmanager
    async def following(self, method: str, message: object, **headers: str) -> AsyncIterator[AsyncIterator[Json]]:
        """What a streaming method tells, as it comes."""
        sent = {"Content-Type": connect_rpc.STREAM, **self.headers, **headers}
        async with self.http.stream("POST", method, content=envelope(message), headers=sent) as response:
            assert response.status_code == 200
            yield _arriving(response)


async def _arriving(response: httpx.Response) -> AsyncIterator[Json]:
    rest = b""
    async for piece in response.aiter_raw():
        rest += piece
        while len(rest) >= 5 and len(rest) >= 5 + int.from_bytes(rest[1:5], "big"):
            size = int.from_bytes(rest[1:5], "big")
            yield json.loads(rest[5 : 5 + size])
            rest = rest[5 + size :]


def started(*argv: str, env: Mapping[str, str] | None = None, cwd: str | None = None, **more: Any) -> Json:  # noqa: ANN401 - JSON
    """A message that starts a command."""
    config: Json = {"cmd": argv[0], "args": list(argv[1:]), "envs": dict(env or {})}
    return {"process": config if cwd is None else {**config, "cwd": cwd}, "stdin": False, **more}


def output(told: Iterable[Json], name: str) -> bytes:
    """What was written to one stream."""
    data = (message["event"].get("data", {}) for message in told)
    return b"".join(base64.b64decode(each[name]) for each in data if name in each)
