"""Terminals in a sandbox: a shell, or anything that wants one, over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlencode

from sandlot.model.errors import InternalError
from sandlot.sdk import requests, responses, websocket
from sandlot.sdk._async import backend
from sandlot.sdk._async.commands import send_signal
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.processes import CommandResult

SHELL = ("/bin/bash",)
"""The service takes sh where an image has no bash."""


class AsyncPty:
    """The terminals of one sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/processes"

    async def create(
        self,
        cmd: str | Sequence[str] = SHELL,
        *,
        rows: int = 24,
        cols: int = 80,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        tag: str | None = None,
    ) -> AsyncTerminal:
        """Start a program on a terminal, by default a shell, and look at it.

        Args:
            cmd: Text for a shell, or a list of program and arguments.
            rows: Of the terminal.
            cols: The same.
            envs: Added to the sandbox's environment; ``TERM`` is ``xterm-256color`` unless given.
            cwd: Folder to run in, absolute; by default ``/workspace``.
            user: ``user`` (the default) or ``root``.
            timeout: Seconds until its whole session is killed; None sets no limit but the sandbox's.
            tag: A word of your own by which ``commands.list`` tells it.

        Raises:
            SandboxEndedError: The sandbox ended, now or before.
            InvalidRequestError: The command, environment, folder, size or timeout is one that the sandbox cannot take.
        """
        body = requests.process_body(cmd, envs=envs, cwd=cwd, user=user, timeout=timeout, background=True, stdin=None, stdin_open=False, tag=tag)
        answer = await self._transport.request("POST", self._path, body={**body, "pty": {"rows": rows, "cols": cols}})
        return await self.connect(str(answer["process"]), offset=0)

    async def connect(
        self,
        id: str,  # noqa: A002 - the word of the API
        *,
        offset: int | None = None,
        rows: int | None = None,
        cols: int | None = None,
    ) -> AsyncTerminal:
        """Look at a terminal that is there already; others that look at it do so still.

        Args:
            id: The process.
            offset: Where in its output to go on, such as :attr:`AsyncTerminal.offset`; by default the oldest that is kept.
            rows: With ``cols``, its size from now on.
            cols: The same.

        Raises:
            NotFoundError: There is no such process.
            ConflictError: It has no terminal.
        """
        path = f"{self._path}/{requests.path_segment(id)}"
        query = urlencode(requests.omit_none(stdout_from=offset, rows=rows, cols=cols))
        terminal = AsyncTerminal(self._transport, path, id, await self._transport.web_socket(f"{path}/terminal{'?' if query else ''}{query}"))
        try:
            await terminal.begin()
        except BaseException:
            await terminal.aclose()
            raise
        return terminal


class AsyncTerminal:
    """A program on a terminal, looked at. Iterate it for what it shows, as bytes; it lives on when this is closed.

    Of two threads one may read and the other send.
    """

    def __init__(self, transport: AsyncTransport, path: str, process: str, socket: backend.Socket) -> None:
        self._transport = transport
        self._path = path
        self._socket = socket
        self._end: dict[str, Any] | None = None
        self._pid: int | None = None
        self.id = process
        """The process's id, for ``pty.connect`` and ``commands``."""
        self.offset = 0
        """Where in the whole output the next bytes begin."""
        self.lost_bytes = 0
        """How many bytes were no longer kept when they were asked for."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def pid(self) -> int | None:
        """Its process id inside the sandbox."""
        return self._pid

    @property
    def result(self) -> CommandResult | None:
        """How it ended, once that was seen; its output is not in it."""
        return None if self._end is None else structure(CommandResult, self._end)

    async def begin(self) -> None:
        """Wait for the service's first word; whoever made it has."""
        while self._pid is None and self._end is None:
            await self._next()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while (piece := await self.read()) is not None:
            yield piece

    async def read(self) -> bytes | None:
        """What it shows next; None once it has ended.

        Raises:
            SandboxEndedError: The sandbox ended.
            UnavailableError: The connection broke; the program goes on, and ``pty.connect(id, offset=terminal.offset)`` goes back to it.
        """
        while self._end is None:
            if piece := await self._next():
                return piece
        return None

    async def send(self, data: str | bytes) -> None:
        """Type something; waits where the program does not read."""
        raw = requests.encode_text(data) if isinstance(data, str) else bytes(data)
        with websocket.translated(self._transport.target):
            for at in range(0, len(raw), backend.CHUNK_BYTES):
                await self._socket.send(raw[at : at + backend.CHUNK_BYTES])

    async def resize(self, rows: int, cols: int) -> None:
        """Give it another size; the program hears of it (SIGWINCH)."""
        await self._control({"resize": {"rows": rows, "cols": cols}})

    async def send_eof(self) -> None:
        """End the input, as Ctrl-D does at the beginning of a line."""
        await self._control({"eof": True})

    async def kill(self, signal: str | int = "SIGKILL") -> bool:
        """Send a signal to everything on the terminal; False when it is gone."""
        return await send_signal(self._transport, self._path, signal)

    async def wait(self) -> CommandResult:
        """Wait until it ends; what it shows until then is passed over."""
        while await self.read() is not None:
            pass
        result = self.result
        assert result is not None  # noqa: S101 - what read() says
        return result

    async def aclose(self) -> None:
        """Look away; the program lives on. Idempotent."""
        await self._socket.close()

    async def _control(self, message: Mapping[str, Any]) -> None:
        with websocket.translated(self._transport.target):
            await self._socket.send(json.dumps(message))

    async def _next(self) -> bytes:
        """One message: the bytes that it brought, if any."""
        with websocket.translated(self._transport.target):
            message = await self._socket.recv()
        if not isinstance(message, str):
            self.offset += len(message)
            return bytes(message)
        told = json.loads(message)
        match told.get("event"):
            case "started":
                self._pid, self.offset = int(told["pid"]), int(told["offset"])
            case "lost":
                self.lost_bytes += int(told["bytes"])
                self.offset += int(told["bytes"])
            case "exit":
                self._end = told
            case "failure":
                raise responses.error_from_problem(told)
            case str():
                pass  # a newer service's
            case _:
                raise InternalError("The service sent a message that is none.", hint="Check that SANDLOT_URL is the address of a Sandlot service.")
        return b""
