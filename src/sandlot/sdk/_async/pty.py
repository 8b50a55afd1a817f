"""Interactive terminals in a sandbox, over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlencode

from sandlot.sdk import requests, responses, websocket
from sandlot.sdk._async import backend
from sandlot.sdk._async.commands import send_signal
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.processes import CommandResult

SHELL = ("/bin/bash",)
"""The service starts sh if the template has no bash."""


class AsyncPty:
    """The terminals of one sandbox, as ``sandbox.pty``."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/processes"

    @backend.awaitable_context
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
        """Start a program on a new terminal and connect to it.

        Args:
            cmd: A shell command, or a list of program and arguments. Default: an interactive bash.
            rows: Height of the terminal in characters.
            cols: Width of the terminal in characters.
            envs: Environment variables of the program. Default of ``TERM``: ``xterm-256color``.
            cwd: Working directory, relative to that of the sandbox. Default: that of the sandbox.
            user: Name or uid of the user; default: that of the sandbox.
            timeout: Seconds until the whole session is killed. Default: no limit.
            tag: Text by which ``commands.list`` shows the process.

        Raises:
            NotFoundError: ``program_not_found`` or ``working_directory_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        body = requests.process_body(cmd, envs=envs, cwd=cwd, user=user, timeout=timeout, background=True, stdin=None, stdin_open=False, tag=tag)
        response = await self._transport.request("POST", self._path, body={**body, "pty": {"rows": rows, "cols": cols}})
        return await self.connect(str(response["id"]), offset=0)

    @backend.awaitable_context
    async def connect(
        self,
        id: str,  # noqa: A002 - the word of the API
        *,
        offset: int | None = None,
        rows: int | None = None,
        cols: int | None = None,
    ) -> AsyncTerminal:
        """Connect to an existing terminal; other connections to it stay.

        Args:
            id: Id of the process.
            offset: Byte of the output to start at, such as :attr:`AsyncTerminal.offset`. Default: the oldest that the sandbox keeps.
            rows: With ``cols``, new height of the terminal.
            cols: With ``rows``, new width of the terminal.

        Raises:
            NotFoundError: ``process_not_found``.
            ConflictError: The process has no terminal.
        """
        path = f"{self._path}/{requests.path_segment(id)}"
        query = urlencode(requests.omit_none(stdout_from=offset, rows=rows, cols=cols))
        terminal = AsyncTerminal(self._transport, path, id, await self._transport.web_socket(f"{path}/terminal{'?' if query else ''}{query}"))
        try:
            await terminal._start()  # noqa: SLF001 - a class of this module
        except BaseException:
            await terminal.aclose()
            raise
        return terminal


class AsyncTerminal:
    """A connection to a program on a terminal. Iterate over it for the output as bytes. The program continues when the connection is closed.

    One thread may read while another one sends.
    """

    def __init__(self, transport: AsyncTransport, path: str, process: str, socket: backend.Socket) -> None:
        self._transport = transport
        self._path = path
        self._socket = socket
        self._end: dict[str, Any] | None = None
        self._pid: int | None = None
        self.id = process
        """Id of the process, for ``pty.connect`` and ``commands``."""
        self.offset = 0
        """Position of the next bytes in the whole output."""
        self.lost_bytes = 0
        """Number of bytes that the sandbox no longer kept when they were read."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def pid(self) -> int | None:
        """Process id (PID) inside the sandbox."""
        return self._pid

    @property
    def result(self) -> CommandResult | None:
        """Result of the program without its output, once its end was read; None before."""
        return None if self._end is None else structure(CommandResult, self._end)

    async def _start(self) -> None:
        """Read the first message, which has the PID and the position of the output."""
        while self._pid is None and self._end is None:
            await self._next()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while (piece := await self.read()) is not None:
            yield piece

    async def read(self) -> bytes | None:
        """Wait for the next output. Returns None when the program has ended.

        Raises:
            SandboxEndedError: The sandbox has ended.
            UnavailableError: The connection broke; ``pty.connect(id, offset=terminal.offset)`` continues.
        """
        while self._end is None:
            if piece := await self._next():
                return piece
        return None

    async def send(self, data: str | bytes) -> None:
        """Send input; waits while the program does not read."""
        raw = requests.encode_text(data) if isinstance(data, str) else bytes(data)
        with websocket.translated(self._transport.target):
            for at in range(0, len(raw), backend.CHUNK_BYTES):
                await self._socket.send(raw[at : at + backend.CHUNK_BYTES])

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal; the program receives SIGWINCH."""
        await self._control({"resize": {"rows": rows, "cols": cols}})

    async def send_eof(self) -> None:
        """Send the end of input, as Ctrl-D does at the beginning of a line."""
        await self._control({"eof": True})

    async def kill(self, signal: str | int = "SIGKILL") -> bool:
        """Send a signal to all processes of the terminal. Returns False if the program has ended."""
        return await send_signal(self._transport, self._path, signal)

    async def wait(self) -> CommandResult:
        """Wait for the end of the program and skip its output."""
        while await self.read() is not None:
            pass
        result = self.result
        assert result is not None  # noqa: S101 - read() returns None only after the result
        return result

    async def aclose(self) -> None:
        """Close the connection; the program continues."""
        await self._socket.close()

    async def _control(self, message: Mapping[str, Any]) -> None:
        with websocket.translated(self._transport.target):
            await self._socket.send(json.dumps(message))

    async def _next(self) -> bytes:
        """Receive one message and return its output, which may be empty."""
        with websocket.translated(self._transport.target):
            message = await self._socket.recv()
        if not isinstance(message, str):
            self.offset += len(message)
            return bytes(message)
        event = json.loads(message)
        match event.get("event"):
            case "started":
                self._pid, self.offset = int(event["pid"]), int(event["offset"])
            case "lost":
                self.lost_bytes += int(event["lost_bytes"])
                self.offset += int(event["lost_bytes"])
            case "exit":
                self._end = event
            case "failure":
                raise responses.error_from_problem(event)
            case str():
                pass  # an event of a newer service
            case _:
                raise websocket.invalid_message_error(self._transport.target)
        return b""
