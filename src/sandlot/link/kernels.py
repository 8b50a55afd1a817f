"""The calls ``kernel.*``: contexts and their cells. A context is a kernel of one language that keeps its state between cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandlot.link import parse
from sandlot.link.calls import StreamedOutputCall
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.transport import FrameTransport
from sandlot.link.types import CellResult, KernelInfo
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, Output, OutputGap
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.specs import CellSpec
from sandlot.protocol import schema

_PARSE_EVENT: Mapping[str, Callable[[object], CellStarted | Display | Cleared | CellError]] = {
    "started": parse.cell_started,
    "display": parse.display,
    "clear": parse.cleared,
    "error": parse.cell_error,
}


class CellCall(StreamedOutputCall[CellResult, Output | OutputGap | CellStarted | Display | Cleared | CellError]):
    """A call that executes a cell or attaches to a cell. Iterate over the call to receive output and displays of the cell, then ``await result()``.

    Args:
        transport: Sends and receives the frames.
        name: ``kernel.execute`` or ``kernel.attach``.
        args: Arguments of the call.
        execution: Id of the execution.
        call_id: Id of the call, 16 bytes. For ``kernel.execute``, the execution id consists of these bytes in hexadecimal.
    """

    def __init__(self, transport: FrameTransport, name: str, args: dict[str, Any], *, execution: ProcessId, call_id: bytes) -> None:
        self.id = execution
        self._offsets = {schema.STDOUT: args.get("stdout_from") or 0, schema.STDERR: args.get("stderr_from") or 0}
        super().__init__(transport, name, args, parse.cell_result, call_id=call_id)

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if name == "lost":
            self._on_gap(fields, credit)
        elif self._stream.has_room(credit):
            self._stream.put(_PARSE_EVENT[name](fields), credit)
        else:
            self.abandon(
                UnavailableError(
                    "The clients of the sandbox have not read earlier results, and there is no room for another large one.",
                    code=ErrorCode.BUSY,
                    hint="Read results as they arrive, or write large results to files.",
                )
            )


class KernelRequests:
    """Requests about contexts and their cells, available as ``link.kernels``.

    Args:
        session: Session of the link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session

    async def create(self, id: str, language: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> KernelInfo:  # noqa: A002 - the field is called id
        """Create a context. If a context with this id exists, return that context.

        Args:
            id: Id of the context.
            language: python, javascript, typescript, bash or r.
            cwd: Absolute path of the folder in which the kernel starts; None for the workspace.
            env: Environment variables for the kernel, in addition to the environment of the sandbox.

        Raises:
            SandlotError: The sandbox has too many contexts, the image cannot run the language, or the context exists and has another language.
        """
        return await self._session.request("kernel.create", {"kernel": id, "language": language, "cwd": cwd, "env": dict(env or {})}, parse.kernel)

    async def list(self) -> tuple[KernelInfo, ...]:
        """Return all contexts of the sandbox."""
        return await self._session.request("kernel.list", {}, parse.kernels)

    async def remove(self, id: str) -> None:  # noqa: A002 - the field is called id
        """Remove a context and end its kernel. Cells that wait for the kernel are aborted.

        Raises:
            NotFoundError: The context does not exist and is not a default context.
        """
        await self._session.request("kernel.remove", {"kernel": id}, parse.nothing)

    async def execute(
        self,
        cell: CellSpec,
        *,
        id: ProcessId | None = None,  # noqa: A002 - the field is called id
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
    ) -> CellCall:
        """Execute a cell. Cells of one kernel run one after the other.

        Args:
            cell: The cell. Its context must exist, unless it is a default context: default contexts are created when they are needed.
            id: Id of the execution; None creates an id. If the guest already has an execution with this id, the call attaches to that execution.
            silent: True: do not show the result of the last expression, and do not increase the execution count of the context.
            store_history: True: increase the execution count of the context, unless ``silent`` is True.
            stop_on_error: True to abort the cells that wait for the context if this cell fails.
        """
        self._session.check_usable()
        execution = id or new_process_id()
        args = {
            "kernel": cell.context_id,
            "language": cell.language,
            "code": cell.code,
            "env": dict(cell.env),
            "timeout_s": cell.timeout_s,
            "silent": silent,
            "store_history": store_history,
            "stop_on_error": stop_on_error,
        }
        return CellCall(self._session.transport, "kernel.execute", args, execution=execution, call_id=bytes.fromhex(execution))

    async def attach(
        self,
        id: ProcessId,  # noqa: A002 - the field is called id
        *,
        events_from: int = 0,
        stdout_from: int | None = 0,
        stderr_from: int | None = 0,
        wait: bool = True,
    ) -> CellCall:
        """Attach to a cell that was sent to the guest earlier, even if the cell has ended.

        Args:
            id: Id of the execution.
            events_from: Number of events to skip, counted from the start of the cell. Events are the start of the cell, its displays, its errors and
                its requests to clear the output.
            stdout_from: Offset of the first byte of standard output to send; None begins with the oldest byte that the guest keeps.
            stderr_from: Offset of the first byte of standard error to send; None begins with the oldest byte that the guest keeps.
            wait: True to receive output and events until the cell ends. False to receive only the output and events that exist now; if the cell has
                not ended, the status of the result is then ``running``.
        """
        self._session.check_usable()
        args = {"execution": id, "events_from": events_from, "stdout_from": stdout_from, "stderr_from": stderr_from, "wait": wait}
        return CellCall(self._session.transport, "kernel.attach", args, execution=id, call_id=new_call_id())

    async def interrupt(self, kernel: str = "default", execution: ProcessId | None = None) -> bool:
        """Interrupt the running cell of a kernel, as Ctrl-C does. Return True if there was a cell to interrupt.

        Args:
            kernel: Id of the context. Ignored if ``execution`` is given.
            execution: Id of the execution to interrupt, or to abort if it has not started. None interrupts the running cell of ``kernel``.
        """
        return await self._session.request("kernel.interrupt", {"kernel": kernel, "execution": execution}, parse.running)

    async def restart(self, kernel: str = "default") -> None:
        """End the kernel of a context, and abort the cells that wait for the kernel. The next cell starts a new kernel without variables."""
        await self._session.request("kernel.restart", {"kernel": kernel}, parse.nothing)
