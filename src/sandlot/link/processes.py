"""The calls ``process.*``: start, attach to, signal and list the processes of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import Call, StreamedOutputCall
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.transport import FrameTransport
from sandlot.link.types import ProcessResult
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.model.executions import Output, OutputGap, ProcessInfo
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.specs import ProcessSpec, User
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError


class ProcessCall(StreamedOutputCall[ProcessResult, Output | OutputGap]):
    """A call that starts a process or attaches to a process. Iterate over the call to receive the output of the process, then ``await result()``.

    Args:
        transport: Sends and receives the frames.
        name: ``process.start`` or ``process.attach``.
        args: Arguments of the call.
        process: Id of the process.
        call_id: Id of the call, 16 bytes. For ``process.start``, the process id consists of these bytes in hexadecimal.
        stdin: True if :meth:`write` may be called.
        waits: True if the result arrives when the process ends; False if the result arrives as soon as the process has started.
    """

    def __init__(
        self, transport: FrameTransport, name: str, args: dict[str, Any], *, process: ProcessId, call_id: bytes, stdin: bool, waits: bool = True
    ) -> None:
        self.id = process
        self._pid = 0
        self._waits = waits
        self._has_stdin = stdin
        self._has_started = asyncio.Event()
        self._offsets = {schema.STDOUT: args.get("stdout_from") or 0, schema.STDERR: args.get("stderr_from") or 0}
        super().__init__(transport, name, args, self._parse_result, call_id=call_id, keeps_sending=stdin)

    @property
    def pid(self) -> int:
        """Pid of the process inside the sandbox; 0 until :meth:`started` has returned."""
        return self._pid

    async def started(self) -> Self:
        """Wait until the process runs.

        Raises:
            SandlotError: The process could not be started.
        """
        await self._wait_first_message(self._has_started)
        if not self._pid:
            self.outcome.result()
        return self

    async def write(self, data: bytes) -> None:
        """Write to the standard input of the process. Wait while the process does not read.

        Raises:
            ConflictError: The standard input of the process is not open, or the process has ended.
            SandlotError: The link has ended.
        """
        if not self._has_stdin:
            raise ConflictError(
                "The standard input of the process is not open.", code=ErrorCode.CONFLICT, hint="Start the process with an open standard input."
            )
        await self._stream.send(data)

    def close_stdin(self) -> None:
        """Close the standard input of the process."""
        self._has_stdin = False
        self._stream.end_sending()

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if name == "lost":
            self._on_gap(fields, credit)
            return
        if self._pid:
            raise ProtocolError(f"the start of process {self.id} was reported twice")
        self._pid = parse.pid(fields["pid"])
        self._transport.connection.consumed(self._stream.id, credit)
        self._has_started.set()

    def _parse_result(self, given: object) -> ProcessResult:
        result = parse.process_result(self.id, given)
        if self._waits and result.reason is None:
            raise ProtocolError(f"the result of process {self.id} arrived, but says that the process has not ended")
        if self._pid not in {0, result.pid} or (self._waits and not self._pid):
            started = f"the process was reported as started with pid {self._pid or 'none'}"
            raise ProtocolError(f"the result of process {self.id} has pid {result.pid}, but {started}")
        self._pid = result.pid
        return result

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._has_started.set()


class InputCall(Call[None]):
    """A call that writes to the standard input of a process, and that learns from the guest how many of its bytes have arrived.

    The call ends when the input is closed: by :meth:`close_stdin`, by another call, by the process itself, or because the process has ended.

    Args:
        transport: Sends and receives the frames.
        process: Id of the process.

    Attributes:
        arrived_bytes: Number of bytes of this call that the guest has received.
        stdin_bytes: Number of input bytes that the guest has received from all calls of the process, when it last reported.
    """

    def __init__(self, transport: FrameTransport, process: ProcessId) -> None:
        self.arrived_bytes = 0
        self.stdin_bytes = 0
        self._has_opened = False
        self._changed = asyncio.Event()
        super().__init__(transport, "process.input", {"process": process}, self._parse_result, call_id=new_call_id(), keeps_sending=True)

    @property
    def is_open(self) -> bool:
        """True until the guest has reported that the input is closed, or the link has ended."""
        return not self._is_over and not self._has_result

    async def opened(self) -> Self:
        """Wait for the first report of the guest. The input may have been closed before; ``is_open`` is then False.

        Raises:
            NotFoundError: The guest does not remember the process.
            SandlotError: The link has ended.
        """
        await self._wait_until(lambda: self._has_opened)
        return self

    async def write(self, data: bytes) -> None:
        """Send bytes to the process. Wait while the process does not read.

        Raises:
            ConflictError: The input is closed.
            SandlotError: The link has ended.
        """
        await self._stream.send(data)

    async def arrived(self) -> bool:
        """Wait until the guest has received all bytes that were written. Return False if the input was closed before.

        Raises:
            SandlotError: The link has ended.
        """
        await self._wait_until(lambda: self.arrived_bytes == self._stream.sent_bytes)
        return self.arrived_bytes == self._stream.sent_bytes

    def close_stdin(self) -> None:
        """Close the standard input of the process. The process reads the end of the input after the bytes that were written."""
        self._stream.end_sending()

    async def aclose(self) -> None:
        """Send nothing more, and drop what is not sent. The input stays open. Idempotent."""
        self.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition is true or the input is closed.

        Raises:
            SandlotError: The call has failed.
        """
        while not is_true() and self.is_open:
            self._changed.clear()
            await self._changed.wait()
        if not is_true() and not self._has_result:
            self.outcome.result()

    def _on_event_message(self, _name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        self._report(fields)
        self._transport.connection.consumed(self._stream.id, credit)

    def _parse_result(self, given: object) -> None:
        self._report(parse.fields_of("process.input", schema.CALLS["process.input"]["result"], given))

    def _report(self, fields: Mapping[str, Any]) -> None:
        self.arrived_bytes = parse.number("received bytes", fields["received"], self._stream.sent_bytes, self.arrived_bytes)
        self.stdin_bytes = parse.number("stdin bytes", fields["stdin_bytes"], schema.LIMITS["count"], self.stdin_bytes)
        self._has_opened = True
        self._changed.set()

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._changed.set()


class ProcessRequests:
    """Requests about processes, available as ``link.processes``.

    Args:
        session: Session of the link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session

    async def start(self, spec: ProcessSpec, *, id: ProcessId | None = None, attach: bool = True) -> ProcessCall:  # noqa: A002 - the field is called id
        """Start a process, and return when the process runs.

        Args:
            spec: Process to start.
            id: Id of the process; None creates an id. If the guest already has a process with this id, the call attaches to that process.
            attach: True to receive output until the process ends. False to receive no output; ``result()`` then returns at once, and the ``reason``
                of the result is None.

        Raises:
            SandlotError: The process could not be started, for example because the program or the folder does not exist.
        """
        process = id or new_process_id()
        args = {
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd,
            "user": (spec.user or User.USER).value,
            "stdin": spec.stdin,
            "timeout_s": spec.timeout_s,
            "attach": attach,
            "rows": spec.rows,
            "cols": spec.cols,
            "hidden": spec.hidden,
            "measured": spec.measured,
        }
        self._session.check_usable()
        call_id, stdin = bytes.fromhex(process), spec.stdin or spec.pty
        call = ProcessCall(self._session.transport, "process.start", args, process=process, call_id=call_id, stdin=stdin, waits=attach)
        return await call.started()

    async def attach(self, id: ProcessId, *, stdout_from: int | None = 0, stderr_from: int | None = 0) -> ProcessCall:  # noqa: A002 - the field is called id
        """Attach to a process that was started earlier, even if the process has ended.

        Args:
            id: Id of the process.
            stdout_from: Offset of the first byte of standard output to send; None begins with the oldest byte that the guest keeps. Requested bytes
                that the guest no longer keeps are reported as ``OutputGap``.
            stderr_from: Offset of the first byte of standard error to send; otherwise like ``stdout_from``.

        Raises:
            NotFoundError: The guest does not remember the process.
        """
        self._session.check_usable()
        args = {"process": id, "stdout_from": stdout_from, "stderr_from": stderr_from}
        call = ProcessCall(self._session.transport, "process.attach", args, process=id, call_id=new_call_id(), stdin=True)
        return await call.started()

    async def wait(self, id: ProcessId) -> ProcessResult:  # noqa: A002 - the field is called id
        """Wait until a process ends, without a timeout, and return the result of the process. The output of the process is not read.

        Args:
            id: Id of the process.

        Raises:
            NotFoundError: The guest does not remember the process.
            SandlotError: The link has ended.
        """
        self._session.check_usable()
        call = Call(self._session.transport, "process.wait", {"process": id}, partial(parse.process_end, id), call_id=new_call_id())
        try:
            return await call.wait()
        finally:
            call.abandon()

    async def open_input(self, id: ProcessId) -> InputCall:  # noqa: A002 - the field is called id
        """Open a call that writes to the standard input of a process, and return when the guest has reported the state of the input.

        Args:
            id: Id of the process.

        Raises:
            NotFoundError: The guest does not remember the process.
            SandlotError: The link has ended.
        """
        self._session.check_usable()
        call = InputCall(self._session.transport, id)
        try:
            return await call.opened()
        except BaseException:
            call.abandon()
            raise

    async def signal(self, id: ProcessId, signal: int) -> bool:  # noqa: A002 - the field is called id
        """Send a signal to a process, its session and its descendants. Return True if the process was running.

        Args:
            id: Id of the process.
            signal: Number of the signal.
        """
        return await self._session.request("process.signal", {"process": id, "signal": signal}, parse.running)

    async def resize(self, id: ProcessId, rows: int, cols: int) -> bool:  # noqa: A002 - the field is called id
        """Set the size of the terminal of a process. Return True if the process was running.

        Raises:
            ConflictError: The process has no terminal.
        """
        return await self._session.request("process.resize", {"process": id, "rows": rows, "cols": cols}, parse.running)

    async def get(self, id: ProcessId) -> ProcessInfo:  # noqa: A002 - the field is called id
        """Return the state of one process.

        Raises:
            NotFoundError: The guest does not remember the process.
        """
        return await self._session.request("process.get", {"process": id}, partial(parse.process_known, id))

    async def list(self) -> tuple[ProcessInfo, ...]:
        """Return the processes that the guest remembers, at most the newest 1,024. Hidden processes of the service are left out."""
        return await self._session.request("process.list", {}, parse.processes)

    async def forget(self, id: ProcessId) -> None:  # noqa: A002 - the field is called id
        """Make the guest drop the result and the output of a process that has ended.

        Raises:
            ConflictError: The process still runs.
            NotFoundError: The guest does not remember the process.
        """
        await self._session.request("process.forget", {"process": id}, parse.nothing)
