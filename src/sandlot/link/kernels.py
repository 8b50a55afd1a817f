"""The calls ``kernel.*``: contexts and their cells. A context is a language with a kernel that keeps state from cell to cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandlot.link import parse
from sandlot.link.calls import StreamedOutputCall
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.transport import FrameTransport
from sandlot.link.types import CellError, CellResult, CellStarted, Cleared, Display, KernelInfo, Output, OutputGap
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.protocol import schema

_PARSE_EVENT: Mapping[str, Callable[[object], CellStarted | Display | Cleared | CellError]] = {
    "started": parse.cell_started,
    "display": parse.display,
    "clear": parse.cleared,
    "error": parse.cell_error,
}


class CellCall(StreamedOutputCall[CellResult, Output | OutputGap | CellStarted | Display | Cleared | CellError]):
    """A cell that a kernel executes. Iterate for its output and displays, then ``await result()``.

    Args:
        transport: Sends and receives the frames.
        name: ``kernel.execute`` or ``kernel.attach``.
        args: Arguments of the call.
        execution: Id of the execution.
        call_id: Id of the call; for ``kernel.execute`` the bytes of the execution id.
    """

    def __init__(self, transport: FrameTransport, name: str, args: dict[str, Any], *, execution: ProcessId, call_id: bytes) -> None:
        self.id = execution
        self._offsets = {schema.STDOUT: args.get("stdout_from") or 0, schema.STDERR: args.get("stderr_from") or 0}
        super().__init__(transport, name, args, parse.cell_result, call_id=call_id)

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if name == "lost":
            self._on_gap(fields, credit)
        else:
            self._stream.put(_PARSE_EVENT[name](fields), credit)


class KernelRequests:
    """The methods of ``link.kernels``.

    Args:
        session: The link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session

    async def create(self, id: str, language: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> KernelInfo:  # noqa: A002 - the field is called id
        """Create a context. If a context with this id exists, return that context.

        Args:
            id: Id of the context.
            language: python, bash or javascript.
            cwd: Absolute path of the kernel's first working directory; None for the workspace.
            env: Variables in addition to the environment of the sandbox.

        Raises:
            SandlotError: There are too many contexts, or the image cannot run the language.
        """
        return await self._session.request("kernel.create", {"kernel": id, "language": language, "cwd": cwd, "env": dict(env or {})}, parse.kernel)

    async def list(self) -> tuple[KernelInfo, ...]:
        """Return all contexts."""
        return await self._session.request("kernel.list", {}, parse.kernels)

    async def remove(self, id: str) -> None:  # noqa: A002 - the field is called id
        """Remove a context and end its kernel. Cells that wait are aborted.

        Raises:
            NotFoundError: The context does not exist.
        """
        await self._session.request("kernel.remove", {"kernel": id}, parse.nothing)

    async def execute(
        self,
        code: str,
        *,
        kernel: str = "default",
        language: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        id: ProcessId | None = None,  # noqa: A002 - the field is called id
    ) -> CellCall:
        """Execute code in a kernel. Cells of one kernel run one after the other.

        Args:
            code: Source code in the language of the kernel.
            kernel: Id of the context.
            language: Language of a new context, which is created if it does not exist. None requires an existing context or the default context.
            env: Variables for this cell.
            timeout_s: Seconds from the start of the cell until it is interrupted; None sets no timeout.
            silent: True to display no result of the last expression and not to count the cell.
            store_history: True to count the cell.
            stop_on_error: True to abort the waiting cells of the kernel if this cell fails.
            id: Id of the execution; None creates an id.
        """
        self._session.check_usable()
        execution = id or new_process_id()
        args = {
            "kernel": kernel,
            "language": language,
            "code": code,
            "env": dict(env or {}),
            "timeout_s": timeout_s,
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
        """Follow a cell that was sent earlier, even if it has ended.

        Args:
            id: Id of the execution.
            events_from: Number of events to skip: started, displays, clears and errors.
            stdout_from: Offset of the first byte of standard output to send; None begins with the oldest byte that is kept.
            stderr_from: Offset for standard error, likewise.
            wait: True to follow the cell until it ends. False to get only the output and events so far; the status is ``running`` if the cell
                has not ended.
        """
        self._session.check_usable()
        args = {"execution": id, "events_from": events_from, "stdout_from": stdout_from, "stderr_from": stderr_from, "wait": wait}
        return CellCall(self._session.transport, "kernel.attach", args, execution=id, call_id=new_call_id())

    async def interrupt(self, kernel: str = "default", execution: ProcessId | None = None) -> bool:
        """Interrupt the running cell of a kernel, as Ctrl-C does. Return True if there was a cell to interrupt.

        Args:
            kernel: Id of the context. Ignored if ``execution`` is given.
            execution: Id of the only execution to interrupt. If this execution has not started, it is aborted.
        """
        return await self._session.request("kernel.interrupt", {"kernel": kernel, "execution": execution}, parse.running)

    async def restart(self, kernel: str = "default") -> None:
        """End the kernel of a context. The next cell starts a new kernel without variables."""
        await self._session.request("kernel.restart", {"kernel": kernel}, parse.nothing)
