# Made from src/sandlot/sdk/_async/commands.py by scripts/unasync.py; change that file, not this one.
"""Commands in a sandbox: run to their end, or left in the background."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from types import EllipsisType
from typing import Any, Literal, overload

from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.sdk import requests, responses
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.processes import CommandResult, Output, ProcessInfo
from sandlot.sdk.transcript import Transcript


class Commands:
    """The commands of one sandbox."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/processes"

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.Data | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
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
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool | str | bytes | None = None,
        timeout: float | None = None,
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
    ) -> CommandHandle: ...

    def run(  # noqa: PLR0913 - all by name, and each the field's
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.Data | bool | None = None,
        timeout: float | EllipsisType | None = ...,
        track: Sequence[str] | None = None,
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_output: backend.Callback[Output] | None = None,
    ) -> CommandResult | CommandHandle:
        """Run a command.

        A command that fails, or is killed for running too long, is a result like any other: look at ``exit_code`` and ``reason``.

        Args:
            cmd: Text for a shell (bash where the image has it), or a list of program and arguments, which no shell sees.
            background: Return at once with a handle instead of waiting for the end.
            envs: Added to the sandbox's environment.
            cwd: Folder to run in, absolute; by default ``/workspace``.
            user: ``user`` (the default) or ``root``.
            stdin: What it reads on standard input: text, bytes, a file object or pieces of bytes, sent as fast as it reads. In the background also
                True: standard input stays open for :meth:`CommandHandle.send_stdin`. By default it reads ``/dev/null``.
            timeout: Seconds until its process group is killed, 60 by default; None, the default in the background, sets no limit but the sandbox's.
            track: Folders: the result tells which files below them it created or changed. Only in the foreground.
            tag: A word of your own by which :meth:`list` tells it.
            on_stdout: Called with each piece of text of standard output as it arrives; in the background by :meth:`CommandHandle.wait`.
            on_stderr: The same for standard error.
            on_output: Called with each piece of either stream as bytes, as it arrives. Only in the foreground.

        Returns:
            The result; in the background, a handle.

        Raises:
            SandboxEndedError: The sandbox ended, now or before.
            InvalidRequestError: The command, environment, folder or timeout is one that Linux or the sandbox cannot take.
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
            return structure(CommandResult, self._transport.request("POST", self._path, body=body, read_timeout_s=None))
        return self._stream(body, rest, on_stdout, on_stderr, on_output)

    def list(self) -> builtins.list[ProcessInfo]:
        """The processes that were started here and that the sandbox remembers."""
        answer = self._transport.request("GET", self._path)
        return structure_list(ProcessInfo, answer, "processes")

    def start(
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool | str | bytes | None = None,
        timeout: float | None = None,
        tag: str | None = None,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
    ) -> CommandHandle:
        """Start a command and leave it in the background: :meth:`run` with ``background=True``."""
        return self.run(
            cmd,
            background=True,
            envs=envs,
            cwd=cwd,
            user=user,
            stdin=stdin,
            timeout=timeout,
            tag=tag,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )

    def get(self, id: str) -> ProcessInfo:  # noqa: A002 - the word of the API
        """What is known of one process.

        Raises:
            NotFoundError: There is none of this id.
        """
        return structure(ProcessInfo, self._transport.request("GET", f"{self._path}/{requests.path_segment(id)}"))

    def connect(
        self,
        id: str,  # noqa: A002 - the word of the API
        *,
        stdout_from: int = 0,
        stderr_from: int = 0,
    ) -> CommandHandle:
        """A handle for a process that was started before.

        Args:
            id: The process.
            stdout_from: Byte of its standard output that the handle reads first, such as another handle's ``stdout_offset``.
            stderr_from: The same of its standard error.

        Raises:
            NotFoundError: There is none of this id.
        """
        info = self.get(id)
        transcript = Transcript(id=info.id, pid=info.pid)
        transcript.stdout.offset, transcript.stderr.offset = stdout_from, stderr_from
        return self._handle(transcript)

    def kill(self, id: str, signal: str | int = "SIGKILL") -> bool:  # noqa: A002 - the word of the API
        """Send a signal to a process's whole group; False when it is gone."""
        return send_signal(self._transport, f"{self._path}/{requests.path_segment(id)}", signal)

    def restart(self, id: str) -> str:  # noqa: A002 - the word of the API
        """Kill a process where it still runs, and start it again in the background, with what it was started with; its new id."""
        return str((self._transport.request("POST", f"{self._path}/{requests.path_segment(id)}/restart"))["process"])

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
        answer = self._transport.request("POST", self._path, body=body)
        handle = self._handle(Transcript(id=str(answer["process"]), pid=answer.get("pid")), on_stdout, on_stderr)
        if stdin is not None:
            sent = 0
            for piece in backend.chunks(stdin):
                handle.send_stdin(piece, offset=sent)
                sent += len(piece)
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
                    tell(transcript, piece, on_stdout, on_stderr)
        tell_rest(transcript, on_stdout, on_stderr)
        if failures:
            raise failures[0]
        return finished_command(transcript)

    def _feed(self, process: str, stdin: backend.Data, failures: builtins.list[Exception]) -> None:
        path = f"{self._path}/{process}"
        sent = 0
        try:
            for piece in backend.chunks(stdin):
                # With its offset: a piece that is sent again, because the service was busy after it had come, is written once.
                write_stdin(self._transport, path, piece, sent)
                sent += len(piece)
        except Exception as error:  # noqa: BLE001 - raised where the caller is, whether it is ours or of the caller's own data
            if not _takes_no_more(error):
                failures.append(error)
        # What waits for its input has to see the end of it, whatever happened.
        with suppress(SandlotError):
            self._transport.request("DELETE", f"{path}/stdin")


def _takes_no_more(error: Exception) -> bool:
    """Whether a process ended, or closed its standard input, which is its own affair: its result tells."""
    return isinstance(error, SandlotError) and error.code in {ErrorCode.PROCESS_NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.SANDBOX_ENDED}


def _split(stdin: backend.Data) -> tuple[str | None, backend.Data | None]:
    """Small text travels inside of the request, everything else beside it."""
    if not isinstance(stdin, str | bytes):
        return None, stdin
    inline, raw = requests.split_stdin(stdin)
    return inline, (raw if inline is None else None)


class CommandHandle:
    """A command in the background. It lives on when the handle is dropped; ``commands.connect(id)`` gives another one.

    Iterating yields its output as it arrives, from where this handle stands, until the command ends.
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
        """The process's id."""
        return self._transcript.id

    @property
    def pid(self) -> int | None:
        """Its process id inside the sandbox."""
        return self._transcript.pid

    @property
    def stdout(self) -> str:
        """What this handle has read of its standard output so far."""
        return self._transcript.stdout.text()

    @property
    def stderr(self) -> str:
        """What this handle has read of its standard error so far."""
        return self._transcript.stderr.text()

    @property
    def stdout_offset(self) -> int:
        """Where this handle stands in its standard output: what ``commands.connect(id, stdout_from=...)`` goes on from."""
        return self._transcript.stdout.offset

    @property
    def stderr_offset(self) -> int:
        """The same of its standard error."""
        return self._transcript.stderr.offset

    @property
    def result(self) -> CommandResult | None:
        """The result, once :meth:`wait`, :meth:`poll` or an iteration has seen the end."""
        return self._transcript.command_result()

    def __iter__(self) -> Generator[Output]:
        return self._output(follow=True)

    def output(self, *, follow: bool = True) -> Generator[Output]:
        """Its output from where this handle stands, piece by piece.

        Args:
            follow: Until the command ends; otherwise only what there is by now.
        """
        return self._output(follow=follow)

    def wait(self, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None) -> CommandResult:
        """Wait for its end.

        Args:
            on_stdout: Called with each piece of text of its standard output; by default what was given at the start.
            on_stderr: The same for standard error.

        Returns:
            Its result, with the output that this handle has read.

        Raises:
            SandboxEndedError: The sandbox ended first.
        """
        self._tell(follow=True, on_stdout=on_stdout, on_stderr=on_stderr)
        return finished_command(self._transcript)

    def poll(self) -> CommandResult | None:
        """Read what there is now, without waiting for more; the result, if it has ended."""
        self._tell(follow=False)
        return self.result

    def kill(self, signal: str | int = "SIGKILL") -> bool:
        """Send a signal to its whole process group; False when it is gone."""
        return send_signal(self._transport, self._path, signal)

    def send_stdin(self, data: str | bytes, *, offset: int | None = None) -> int:
        """Write to its standard input, which it must have been started with (``stdin=True``); returns once the sandbox has taken it.

        Args:
            data: What to write.
            offset: Where in the whole input that begins. With it the same can be sent again, for example after the connection broke: what has
                come there before is not written twice.

        Returns:
            How many bytes have come for its input so far: the offset of the next write.

        Raises:
            ConflictError: It takes no input (any more), or something before ``offset`` is missing.
        """
        return write_stdin(self._transport, self._path, data, offset)

    def close_stdin(self) -> None:
        """End its standard input."""
        self._transport.request("DELETE", f"{self._path}/stdin")

    def _output(self, *, follow: bool) -> Generator[Output]:
        transcript = self._transcript
        if transcript.end is not None:
            return
        rested = True
        while rested:
            rested = False
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
                rested = True

    def _tell(self, *, follow: bool, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None) -> None:
        on_stdout, on_stderr = on_stdout or self._on_stdout, on_stderr or self._on_stderr
        with closing(self._output(follow=follow)) as pieces:
            for piece in pieces:
                tell(self._transcript, piece, on_stdout, on_stderr)
        if self._transcript.end is not None:
            tell_rest(self._transcript, on_stdout, on_stderr)


def tell(transcript: Transcript, piece: Output, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Give a callback the whole characters of a piece."""
    if text := transcript.stream(piece.stream).decode(piece.data):
        backend.call(on_stdout if piece.stream == "stdout" else on_stderr, text)


def tell_rest(transcript: Transcript, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Give the callbacks what never became a whole character."""
    for stream, text in transcript.remainders():
        backend.call(on_stdout if stream == "stdout" else on_stderr, text)


def finished_command(transcript: Transcript) -> CommandResult:
    """The result of a command whose events have ended.

    Raises:
        UnavailableError: They ended without one.
    """
    result = transcript.command_result()
    if result is None:
        raise cut_short("command")
    return result


def cut_short(what: str) -> UnavailableError:
    """The error for a stream of events that ended before its last event."""
    return UnavailableError(
        f"The service ended the stream before the {what} did.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Whether it still runs is not known; `commands.list()` tells.",
    )


def send_signal(transport: Transport, path: str, signal: str | int) -> bool:
    """Signal a process; False when it is gone."""
    try:
        answer = transport.request("POST", f"{path}/signal", body={"signal": signal})
    except NotFoundError as error:
        if error.code is not ErrorCode.PROCESS_NOT_FOUND:
            raise
        return False
    return bool(answer.get("running", True))


def write_stdin(transport: Transport, path: str, data: str | bytes, offset: int | None = None) -> int:
    """Write to a process's standard input; it may take as long as the process takes to read."""
    content = requests.encode_text(data) if isinstance(data, str) else data
    answer = transport.request("POST", f"{path}/stdin", params=requests.omit_none(offset=offset), content=content, read_timeout_s=None)
    return int(answer.get("stdin_bytes", 0))
