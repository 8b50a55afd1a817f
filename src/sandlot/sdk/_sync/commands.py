# Generated from src/sandlot/sdk/_async/commands.py by scripts/unasync.py; change that file.
"""Commands and processes in a sandbox, in the foreground and in the background."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from types import EllipsisType
from typing import Any, Literal, overload

from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.sdk import requests, responses
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.processes import CommandResult, Output, PrintedUrl, ProcessInfo
from sandlot.sdk.transcript import Transcript


class Commands:
    """The commands and processes of one sandbox, as ``sandbox.commands``."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/processes"

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.Data | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        background: Literal[False] = False,
        check: bool = False,
        track: Sequence[str] | None = None,
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_output: backend.Callback[Output] | None = None,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool | str | bytes | None = None,
        timeout: float | None = None,
        background: Literal[True],
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
    ) -> CommandHandle: ...

    def run(  # noqa: PLR0913 - passed by name
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.Data | bool | None = None,
        timeout: float | EllipsisType | None = ...,
        background: bool = False,
        check: bool = False,
        track: Sequence[str] | None = None,
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_output: backend.Callback[Output] | None = None,
    ) -> CommandResult | CommandHandle:
        """Run a command.

        A command that fails or times out is a result: see ``exit_code``, ``timed_out`` and ``reason``.

        Args:
            cmd: A shell command (bash if the template has it, else sh), or a list of program and arguments that is run without a shell.
            envs: Environment variables for this command.
            cwd: Working directory, relative to that of the sandbox. Default: that of the sandbox.
            user: Name or uid of the user; default: that of the sandbox.
            stdin: Standard input: text, bytes, a file object or chunks of bytes, sent as fast as the command reads. In the background also True:
                standard input stays open for :meth:`CommandHandle.send_stdin`. Default: ``/dev/null``.
            timeout: Seconds until the command and its process group are killed. None: no limit. Default: 60, and no limit in the background.
            background: Return a handle at once instead of waiting for the end.
            check: Raise ``ExecutionFailedError`` if the command fails; only in the foreground.
            track: Directories below which ``files`` of the result lists created and changed files; only in the foreground.
            tag: Text by which :meth:`list` shows the process.
            on_stdout: Called with each piece of standard output as it arrives; of a background command, by :meth:`CommandHandle.wait`.
            on_stderr: The same for standard error.
            on_output: Called with each piece of either stream as bytes; only in the foreground.

        Raises:
            ExecutionFailedError: ``check`` is True and the command failed.
            NotFoundError: ``program_not_found`` or ``working_directory_not_found``.
            SandboxEndedError: The sandbox has ended.
        """
        inline, rest = (None, None) if stdin is None or isinstance(stdin, bool) else _split(stdin)
        limit_s = (None if background else DEFAULT_COMMAND_TIMEOUT_S) if isinstance(timeout, EllipsisType) else timeout
        stdin_open = rest is not None or (background and stdin is True)
        body = requests.process_body(
            cmd, envs=envs, cwd=cwd, user=user, timeout=limit_s, background=background, stdin=inline, stdin_open=stdin_open, tag=tag
        )
        body |= requests.omit_none(track=None if track is None else list(track))
        if background:
            return self._start(body, rest, on_stdout, on_stderr)
        if rest is None and on_stdout is None and on_stderr is None and on_output is None and self._transport.can_wait_silently:
            result = structure(CommandResult, self._transport.request("POST", self._path, body=body, read_timeout_s=None))
        else:
            result = self._stream(body, rest, on_stdout, on_stderr, on_output)
        return result.check() if check else result

    def list(self) -> builtins.list[ProcessInfo]:
        """List the processes that were started through the service and that the sandbox still keeps."""
        response = self._transport.request("GET", self._path)
        return structure_list(ProcessInfo, response, "processes")

    def get(self, id: str) -> ProcessInfo:  # noqa: A002 - the word of the API
        """Get a process by its id.

        Raises:
            NotFoundError: ``process_not_found``.
        """
        return structure(ProcessInfo, self._transport.request("GET", f"{self._path}/{requests.path_segment(id)}"))

    def connect(
        self,
        id: str,  # noqa: A002 - the word of the API
        *,
        stdout_from: int = 0,
        stderr_from: int = 0,
    ) -> CommandHandle:
        """Return a handle of a process that was started before.

        Args:
            id: Id of the process.
            stdout_from: Byte of standard output at which the handle starts, such as ``stdout_offset`` of another handle.
            stderr_from: The same for standard error.

        Raises:
            NotFoundError: ``process_not_found``.
        """
        info = self.get(id)
        transcript = Transcript(id=info.id, pid=info.pid)
        transcript.stdout.offset, transcript.stderr.offset = stdout_from, stderr_from
        return self._handle(transcript)

    def kill(self, id: str, signal: str | int = "SIGKILL") -> bool:  # noqa: A002 - the word of the API
        """Send a signal, by name or number, to the process group of a process. Returns False if the process has ended."""
        return send_signal(self._transport, f"{self._path}/{requests.path_segment(id)}", signal)

    def restart(self, id: str) -> str:  # noqa: A002 - the word of the API
        """Kill a process if it runs, start its command again in the background, and return the id of the new process."""
        return str((self._transport.request("POST", f"{self._path}/{requests.path_segment(id)}/restart"))["id"])

    def send_stdin(self, id: str, data: str | bytes, *, offset: int | None = None) -> int:  # noqa: A002 - the word of the API
        """Write to the standard input of a process that was started with ``stdin=True``; see :meth:`CommandHandle.send_stdin`."""
        return write_stdin(self._transport, f"{self._path}/{requests.path_segment(id)}", data, offset)

    def _handle(
        self, transcript: Transcript, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None
    ) -> CommandHandle:
        return CommandHandle(self._transport, f"{self._path}/{transcript.id}", transcript, on_stdout, on_stderr)

    def _start(
        self,
        body: dict[str, Any],
        stdin: backend.Data | None,
        on_stdout: backend.Callback[str] | None,
        on_stderr: backend.Callback[str] | None,
    ) -> CommandHandle:
        response = self._transport.request("POST", self._path, body=body)
        handle = self._handle(Transcript(id=str(response["id"]), pid=response.get("pid")), on_stdout, on_stderr)
        if stdin is not None:
            _write_input(self._transport, f"{self._path}/{handle.id}", stdin)
            handle.close_stdin()
        return handle

    def _stream(
        self,
        body: dict[str, Any],
        stdin: backend.Data | None,
        on_stdout: backend.Callback[str] | None,
        on_stderr: backend.Callback[str] | None,
        on_output: backend.Callback[Output] | None,
    ) -> CommandResult:
        transcript = Transcript()
        failures: builtins.list[Exception] = []
        with backend.beside() as start, self._transport.event_stream("POST", self._path, body=body) as events:
            for event in events:
                piece = transcript.feed(event)
                if event.name == "started" and stdin is not None:
                    start(self._feed, transcript.id, stdin, failures)
                if isinstance(piece, Output):
                    backend.call(on_output, piece)
                    deliver_output(transcript, piece, on_stdout, on_stderr)
        deliver_remainders(transcript, on_stdout, on_stderr)
        if failures:
            raise failures[0]
        return finished_command(transcript)

    def _feed(self, process: str, stdin: backend.Data, failures: builtins.list[Exception]) -> None:
        path = f"{self._path}/{process}"
        try:
            _write_input(self._transport, path, stdin)
        except Exception as error:  # noqa: BLE001 - raised again by the caller, also errors of the caller's own iterator
            if not _is_input_closed(error):
                failures.append(error)
        # The process must see the end of its input in any case, or it waits for ever.
        with suppress(SandlotError):
            self._transport.request("DELETE", f"{path}/stdin")


def _is_input_closed(error: Exception) -> bool:
    """Return True if the process has ended or closed its standard input, which is not an error of the run."""
    return isinstance(error, SandlotError) and error.code in {ErrorCode.PROCESS_NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.SANDBOX_ENDED}


def _split(stdin: backend.Data) -> tuple[str | None, backend.Data | None]:
    """Return small text for the body of the request, or data to send separately."""
    if not isinstance(stdin, str | bytes):
        return None, stdin
    inline, raw = requests.split_stdin(stdin)
    return inline, (raw if inline is None else None)


class CommandHandle:
    """A background command. The command continues when the handle is dropped; ``commands.connect(id)`` returns another handle.

    Iterating yields the output of the command from the position of the handle until the command ends.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        transcript: Transcript,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
    ) -> None:
        self._transport = transport
        self._path = path
        self._transcript = transcript
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr

    @property
    def id(self) -> str:
        """Id of the process, for ``commands.connect``."""
        return self._transcript.id

    @property
    def pid(self) -> int | None:
        """Process id (PID) inside the sandbox."""
        return self._transcript.pid

    @property
    def stdout(self) -> str:
        """Standard output that this handle has read so far."""
        return self._transcript.stdout.text()

    @property
    def stderr(self) -> str:
        """Standard error that this handle has read so far."""
        return self._transcript.stderr.text()

    @property
    def urls(self) -> tuple[PrintedUrl, ...]:
        """Previews of the loopback URLs in the output that this handle has read so far."""
        return tuple(self._transcript.urls)

    @property
    def stdout_offset(self) -> int:
        """Number of bytes of standard output that the handle has read, for ``commands.connect(id, stdout_from=...)``."""
        return self._transcript.stdout.offset

    @property
    def stderr_offset(self) -> int:
        """The same for standard error."""
        return self._transcript.stderr.offset

    @property
    def result(self) -> CommandResult | None:
        """Result of the command, once :meth:`wait`, :meth:`poll` or an iteration has read the end; None before."""
        return self._transcript.command_result()

    def __iter__(self) -> Generator[Output]:
        return self._output(follow=True)

    def output(self, *, follow: bool = True) -> Generator[Output]:
        """Iterate over the output from the position of the handle.

        Args:
            follow: Continue until the command ends; False stops at the end of the present output.
        """
        return self._output(follow=follow)

    def wait(
        self, *, check: bool = False, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None
    ) -> CommandResult:
        """Wait for the end of the command.

        Args:
            check: Raise ``ExecutionFailedError`` if the command failed.
            on_stdout: Called with each piece of standard output. Default: the callback given at the start.
            on_stderr: The same for standard error.

        Returns:
            The result, with the output that this handle has read.

        Raises:
            ExecutionFailedError: ``check`` is True and the command failed.
            SandboxEndedError: The sandbox has ended.
        """
        self._deliver(follow=True, on_stdout=on_stdout, on_stderr=on_stderr)
        result = finished_command(self._transcript)
        return result.check() if check else result

    def poll(self) -> CommandResult | None:
        """Read the present output, and return the result if the command has ended, else None."""
        self._deliver(follow=False)
        return self.result

    def kill(self, signal: str | int = "SIGKILL") -> bool:
        """Send a signal, by name or number, to the process group of the command. Returns False if the command has ended."""
        return send_signal(self._transport, self._path, signal)

    def send_stdin(self, data: str | bytes, *, offset: int | None = None) -> int:
        """Write to the standard input of a command that was started with ``stdin=True``, and wait until the sandbox has received the data.

        Args:
            data: Text or bytes.
            offset: Position of ``data`` in the whole input. Data that is sent again with its offset, for example after a broken connection, is
                written once.

        Returns:
            Number of bytes of input received so far, which is the offset of the next write.

        Raises:
            ConflictError: The command takes no input, or input before ``offset`` is missing.
        """
        return write_stdin(self._transport, self._path, data, offset)

    def close_stdin(self) -> None:
        """Close the standard input of the command."""
        self._transport.request("DELETE", f"{self._path}/stdin")

    def _output(self, *, follow: bool) -> Generator[Output]:
        transcript = self._transcript
        if transcript.end is not None:
            return
        is_cut = True
        while is_cut:
            is_cut = False
            params = {"stdout_from": transcript.stdout.offset, "stderr_from": transcript.stderr.offset, "follow": "true" if follow else "false"}
            try:
                with self._transport.event_stream("GET", f"{self._path}/output", params=params) as events:
                    for event in events:
                        piece = transcript.feed(event)
                        if isinstance(piece, Output):
                            yield piece
            except ConflictError as error:
                if not responses.cut_by_hibernation(error):
                    raise
                is_cut = True

    def _deliver(self, *, follow: bool, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None) -> None:
        on_stdout, on_stderr = on_stdout or self._on_stdout, on_stderr or self._on_stderr
        with closing(self._output(follow=follow)) as pieces:
            for piece in pieces:
                deliver_output(self._transcript, piece, on_stdout, on_stderr)
        if self._transcript.end is not None:
            deliver_remainders(self._transcript, on_stdout, on_stderr)


def deliver_output(transcript: Transcript, piece: Output, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Call the callback of a stream with the complete characters of a piece."""
    stream = transcript.stream(piece.stream)
    before_gap = stream.decode(b"", final=True) if piece.lost_bytes else ""
    if text := before_gap + stream.decode(piece.data):
        backend.call(on_stdout if piece.stream == "stdout" else on_stderr, text)


def deliver_remainders(transcript: Transcript, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Call the callbacks with the bytes at the end of the streams that are not complete characters."""
    for stream, text in transcript.remainders():
        backend.call(on_stdout if stream == "stdout" else on_stderr, text)


def finished_command(transcript: Transcript) -> CommandResult:
    """Return the result of a command whose event stream has ended.

    Raises:
        UnavailableError: The stream ended without a result.
    """
    result = transcript.command_result()
    if result is None:
        raise stream_cut_error("command")
    return result


def stream_cut_error(what: str) -> UnavailableError:
    """Return the error for an event stream that ended before its last event."""
    return UnavailableError(
        f"The service closed the stream before the {what} ended.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Call `commands.list()` to see what still runs.",
    )


def send_signal(transport: Transport, path: str, signal: str | int) -> bool:
    """Send a signal to a process. Returns False if the process has ended."""
    try:
        response = transport.request("POST", f"{path}/signal", body={"signal": signal})
    except NotFoundError as error:
        if error.code is not ErrorCode.PROCESS_NOT_FOUND:
            raise
        return False
    return bool(response.get("running", True))


def _write_input(transport: Transport, path: str, stdin: backend.Data) -> None:
    """Write a whole input. A request carries at most ``backend.INPUT_BYTES``, and one chunk more if the input is an iterable.

    The chunks of an iterable are sent as they come, and are kept until their request has ended: if it fails and can be repeated, they are sent
    again. With the offset, bytes that arrived already are not written twice.
    """
    rest, kept, sent = backend.chunks(stdin, backend.INPUT_BYTES), list[bytes](), 0
    failures: list[Exception] = []
    is_more = True

    def take() -> Iterator[bytes]:
        nonlocal is_more
        size = 0
        try:
            for chunk in rest:
                kept.append(chunk)
                size += len(chunk)
                yield chunk
                if size >= backend.INPUT_BYTES:
                    return
        except Exception as error:  # noqa: BLE001 - an error of the caller's own iterator ends the input, and is raised after it
            failures.append(error)
        is_more = False

    while is_more:
        kept.clear()
        try:
            write_stdin(transport, path, take(), sent)
        except SandlotError as error:
            # A request whose body pauses for two minutes times out.
            if not (error.retryable or isinstance(error, TimeoutExceededError) or responses.cut_by_hibernation(error)):
                raise
            write_stdin(transport, path, b"".join(kept), sent)
        sent += sum(map(len, kept))
    if failures:
        raise failures[0]


def write_stdin(transport: Transport, path: str, data: str | bytes | Iterable[bytes], offset: int | None = None) -> int:
    """Write to the standard input of a process; waits without limit while the process does not read."""
    content = requests.encode_text(data) if isinstance(data, str) else data
    response = transport.request("POST", f"{path}/stdin", params=requests.omit_none(offset=offset), content=content, read_timeout_s=None)
    return int(response.get("stdin_bytes", 0))
