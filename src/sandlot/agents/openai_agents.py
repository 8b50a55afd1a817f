"""Sandlot for the OpenAI Agents SDK: function tools, and a provider of its sandboxes with terminals and ports.

``RunConfig(sandbox=SandboxRunConfig(client=SandlotSandboxClient(), options=SandlotSandboxClientOptions()))`` gives a ``SandboxAgent`` a sandbox for
a run. The state of a session never contains an API key. The sandbox is the boundary: paths are not checked on the host.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from sandlot.agents.extras import extra
from sandlot.agents.sandbox_tools import AsyncSandboxTools
from sandlot.model.errors import SANDBOX_GONE, ErrorCode, SandlotError
from sandlot.sdk import AsyncCommandHandle, AsyncSandbox, AsyncTerminal, Output
from sandlot.toolset.output import Image, ToolResult
from sandlot.toolset.tools import Tool

with extra("openai-agents", "agents"):
    from agents import FunctionTool, ToolOutputImage, ToolOutputText
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        ExposedPortUnavailableError,
        PtySessionNotFoundError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import (
        PTY_PROCESSES_MAX,
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        process_id_to_prune_from_meta,
        resolve_pty_write_yield_time_ms,
    )
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session import SandboxSession
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User

TIMEOUT_S: Final = 3600.0
PROGRAM_NOT_FOUND: Final = 127
START_YIELD_S: Final = 10.0
WRITE_YIELD_S: Final = 0.25
_SUDO: Final = ("sudo", "-u")
"""Prefix of a command that another user runs: ``sudo -u USER -- COMMAND``."""


def function_tools(tools: AsyncSandboxTools) -> list[FunctionTool]:
    """Return the tools of a sandbox for ``Agent``."""
    return [_function_tool(tools, each) for each in tools.tools]


def _function_tool(tools: AsyncSandboxTools, tool: Tool) -> FunctionTool:
    async def invoke(_: Any, arguments: str) -> Any:  # noqa: ANN401 - of the SDK
        return _content(await tools.call(tool.name, arguments))

    return FunctionTool(tool.name, tool.description, tool.input_schema, invoke, strict_json_schema=False)


def _content(result: ToolResult) -> str | list[ToolOutputText | ToolOutputImage]:
    if not result.images:
        return result.text
    return [
        ToolOutputImage(image_url=f"data:{each.media_type};base64,{each.data}") if isinstance(each, Image) else ToolOutputText(text=each.text)
        for each in result.content
    ]


class SandlotSandboxClientOptions(BaseSandboxClientOptions):
    """Sandbox of a session.

    Args:
        template: Template to start from; ``snapshot`` of a Sandlot sandbox takes its place.
        snapshot: Id or name of a snapshot to start from.
        timeout: Seconds until the timeout of the sandbox.
        network: Network mode.
        exposed_ports: Ports that the session may resolve to addresses outside.
        envs: Environment variables.
    """

    type: Literal["sandlot"] = "sandlot"
    template: str | None = None
    snapshot: str | None = None
    timeout: float = TIMEOUT_S
    network: str | None = None
    exposed_ports: tuple[int, ...] = ()
    envs: dict[str, str] | None = None


class SandlotSandboxSessionState(SandboxSessionState):
    """State of a session, which can be saved and resumed."""

    type: Literal["sandlot"] = "sandlot"  # type: ignore[mutable-override]  # as the package wants it
    sandbox_id: str
    options: SandlotSandboxClientOptions


class SandlotSandboxClient(BaseSandboxClient[SandlotSandboxClientOptions]):
    """Provider of sandboxes.

    Args:
        connection: ``client``, or ``url`` and ``api_key``, as for ``AsyncSandbox.create``.
    """

    backend_id = "sandlot"

    def __init__(self, **connection: Any) -> None:  # noqa: ANN401 - passed on
        self._connection = connection

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandlotSandboxClientOptions,
    ) -> SandboxSession:
        """Create a sandbox for a session."""
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        sandbox, key = await self._create(options, manifest), uuid4()
        state = SandlotSandboxSessionState(
            session_id=key,
            snapshot=resolve_snapshot(snapshot, str(key)),
            manifest=manifest,
            exposed_ports=options.exposed_ports,
            sandbox_id=sandbox.id,
            options=options,
        )
        return self._wrap_session(SandlotSandboxSession(state, sandbox))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Do nothing: the shutdown of the session has ended its sandbox."""
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Connect to the sandbox of a state, or create another one if it has ended; the session then restores the workspace."""
        if not isinstance(state, SandlotSandboxSessionState):
            raise TypeError(f"The state is of {state.type!r}.")
        state.assert_path_grants_rebound()
        try:
            sandbox = await AsyncSandbox.connect(state.sandbox_id, **self._connection)
        except SandlotError as error:
            if error.code not in SANDBOX_GONE:
                raise
            sandbox = await self._create(state.options, state.manifest)
            state.sandbox_id, state.workspace_root_ready = sandbox.id, False
        session = SandlotSandboxSession(state, sandbox)
        session._set_start_state_preserved(state.workspace_root_ready)  # noqa: SLF001 - as the providers of the package do
        return self._wrap_session(session)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state in a saved payload."""
        return self._deserialize_session_state_payload(payload, SandlotSandboxSessionState)

    async def _create(self, options: SandlotSandboxClientOptions, manifest: Manifest) -> AsyncSandbox:
        named = {"template": options.template, "snapshot": options.snapshot, "timeout": options.timeout, "network": options.network}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        envs = {**(options.envs or {}), **await manifest.environment.resolve()}
        return await AsyncSandbox.create(**given, envs=envs, **self._connection)


class SandlotSandboxSession(BaseSandboxSession):
    """A session in one sandbox."""

    state: SandlotSandboxSessionState  # type: ignore[mutable-override]  # as the providers of the package do

    def __init__(self, state: SandlotSandboxSessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox
        self._terminals: dict[int, _Process] = {}

    async def running(self) -> bool:
        """Return True if the sandbox runs."""
        try:
            return await self.sandbox.is_running()
        except SandlotError:
            return False

    async def _prepare_backend_workspace(self) -> None:
        await self.sandbox.files.make_dir(self._root)

    async def _shutdown_backend(self) -> None:
        with suppress(SandlotError):  # it has ended, or its timeout ends it
            await self.sandbox.kill()

    @property
    def _root(self) -> str:
        return self.state.manifest.root

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        stdout, stderr = bytearray(), bytearray()

        def keep(piece: Output) -> None:
            (stdout if piece.stream == "stdout" else stderr).extend(piece.data)

        argv, user = _without_sudo(command)
        try:
            result = await self.sandbox.commands.run(argv, cwd=self._cwd(), user=user, timeout=timeout, on_output=keep)
        except SandlotError as error:
            if error.code is ErrorCode.PROGRAM_NOT_FOUND:
                return ExecResult(stdout=b"", stderr=f"{error.message}\n".encode(), exit_code=PROGRAM_NOT_FOUND)
            raise ExecTransportError(command=command, cause=error, message=str(error)) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=bytes(stdout), stderr=bytes(stderr), exit_code=result.exit_code)

    def _cwd(self) -> str | None:
        return self._root if self.state.workspace_root_ready else None

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file."""
        target = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self.sandbox.files.read(target.as_posix(), "bytes", user=_name(user)))
        except SandlotError as error:
            if error.code is ErrorCode.PATH_NOT_FOUND:
                raise WorkspaceReadNotFoundError(path=path, cause=error) from error
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        target = await self._validate_path_access(path)
        content = bytearray()
        try:
            async with await self.sandbox.files.read(target.as_posix(), "stream") as stream:
                async for chunk in stream:
                    content += chunk
                    if len(content) >= max_bytes:
                        break
        except SandlotError as error:
            if error.code is ErrorCode.PATH_NOT_FOUND:
                raise WorkspaceReadNotFoundError(path=path, cause=error) from error
            raise WorkspaceArchiveReadError(path=path, cause=error) from error
        return bytes(content[:max_bytes])

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, and create missing parent directories."""
        target = await self._validate_path_access(path, for_write=True)
        payload = data.read()
        try:
            await self.sandbox.files.write(target.as_posix(), payload, user=_name(user))
        except SandlotError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar archive."""
        excludes = [f"--exclude=./{path.as_posix()}" for path in sorted(self._persist_workspace_skip_relpaths())]
        archive = await self._exec_internal("tar", *excludes, "-C", self._root, "-cf", "-", ".")
        if archive.exit_code:
            raise WorkspaceArchiveReadError(path=Path(self._root), context={"stderr": archive.stderr.decode("utf-8", "replace")})
        return io.BytesIO(archive.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Extract a tar archive into the workspace, in the sandbox."""
        archive = f"/tmp/workspace-{self.state.session_id.hex}.tar"  # noqa: S108 - in the sandbox
        await self.sandbox.files.make_dir(self._root)
        await self.sandbox.files.write(archive, data.read())
        result = await self._exec_internal("tar", "-C", self._root, "--no-same-owner", "-xf", archive)
        await self.sandbox.files.remove(archive)
        if result.exit_code:
            raise WorkspaceArchiveWriteError(path=Path(self._root), context={"stderr": result.stderr.decode("utf-8", "replace")})

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            url = urlsplit(await self.sandbox.get_url(port))
        except SandlotError as error:
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable", context={"detail": str(error)}, cause=error
            ) from error
        is_tls = url.scheme == "https"
        return ExposedPortEndpoint(host=url.hostname or "", port=url.port or (443 if is_tls else 80), tls=is_tls, query=url.query)

    def supports_pty(self) -> bool:
        """Return True: programs keep running between calls."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a program, and return its output of the first seconds."""
        argv, name = _without_sudo(self._prepare_exec_command(*command, shell=shell, user=user))
        options: dict[str, Any] = {"cwd": self._cwd(), "user": name, "timeout": timeout}
        try:
            program: AsyncTerminal | AsyncCommandHandle
            if tty:
                program = await self.sandbox.pty.create(argv, **options)
            else:
                program = await self.sandbox.commands.run(argv, background=True, **options)
        except SandlotError as error:
            raise ExecTransportError(command=command, cause=error, message=str(error)) from error
        process_id = allocate_pty_process_id({*self._terminals})
        await self._make_room()
        self._terminals[process_id] = process = _Process(program)
        yield_ms = clamp_pty_yield_time_ms(int(1000 * (START_YIELD_S if yield_time_s is None else yield_time_s)))
        return await self._update(process_id, process, yield_ms, max_output_tokens)

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        """Write to a terminal, and return its new output."""
        process = self._terminals.get(session_id)
        if process is None:
            raise PtySessionNotFoundError(session_id=session_id)
        if chars:
            await process.send(chars)
        wanted_ms = int(1000 * (WRITE_YIELD_S if yield_time_s is None else yield_time_s))
        yield_ms = resolve_pty_write_yield_time_ms(yield_time_ms=wanted_ms, input_empty=not chars)
        return await self._update(session_id, process, yield_ms, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """End all programs."""
        for process_id in [*self._terminals]:
            await self._terminals.pop(process_id).end()

    async def _update(self, process_id: int, process: _Process, yield_ms: int, max_tokens: int | None) -> PtyExecUpdate:
        output, tokens, is_closed = await process.collect(yield_ms, max_tokens)
        if is_closed:
            self._terminals.pop(process_id, None)
            await process.end()
        return PtyExecUpdate(None if is_closed else process_id, output, process.exit_code if is_closed else None, tokens)

    async def _make_room(self) -> None:
        if len(self._terminals) >= PTY_PROCESSES_MAX:
            meta = [(key, process.used_at, process.is_done) for key, process in self._terminals.items()]
            pruned = process_id_to_prune_from_meta(meta)
            if pruned is not None:
                await self._terminals.pop(pruned).end()


class _Process:
    """A running program whose output is collected in a task."""

    def __init__(self, program: AsyncTerminal | AsyncCommandHandle) -> None:
        self._program = program
        self._chunks: deque[bytes] = deque()
        self._lock = asyncio.Lock()
        self._notify = asyncio.Event()
        self.exit_code: int | None = None
        self.is_done = False
        self.used_at = time.monotonic()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for piece in self._program:
                self._chunks.append(piece.data if isinstance(piece, Output) else piece)
                self._notify.set()
            result = self._program.result
            self.exit_code = None if result is None else result.exit_code
        except SandlotError as error:
            self._chunks.append(f"\n{error}\n".encode())
            self.exit_code = -1
        self.is_done = True
        self._notify.set()

    async def send(self, chars: str) -> None:
        """Write to the terminal."""
        if not isinstance(self._program, AsyncTerminal):
            raise RuntimeError("stdin is not available for this process")  # noqa: TRY004 - as the other providers say it
        await self._program.send(chars)

    async def collect(self, yield_ms: int, max_tokens: int | None) -> tuple[bytes, int | None, bool]:
        """Return the new output, its number of tokens, and True if the program has ended."""
        self.used_at = time.monotonic()
        return await collect_pty_output(
            output_chunks=self._chunks,
            output_lock=self._lock,
            output_notify=self._notify,
            is_done=lambda: self.is_done,
            yield_time_ms=yield_ms,
            max_output_tokens=max_tokens,
        )

    async def end(self) -> None:
        """End the program."""
        with suppress(SandlotError):
            if not self.is_done:
                await self._program.kill()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if isinstance(self._program, AsyncTerminal):
            await self._program.aclose()


def _without_sudo(command: Sequence[str | Path]) -> tuple[list[str], str | None]:
    """Return a command without its prefix for another user, and that user."""
    argv = [str(each) for each in command]
    if len(argv) > 4 and tuple(argv[:2]) == _SUDO and argv[3] == "--":  # noqa: PLR2004 - sudo -u USER -- PROGRAM
        return argv[4:], argv[2]
    return argv, None


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user
