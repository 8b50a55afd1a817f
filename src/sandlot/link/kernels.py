"""The link's calls of contexts and cells."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.link import parse, parse_cells
from sandlot.link.calls import CellCall
from sandlot.link.session import Session, new_call_id
from sandlot.link.types import KernelInfo
from sandlot.model.ids import ProcessId, new_process_id


class Kernels(Session):
    """What a host asks of a guest's kernels."""

    async def create_kernel(self, id: str, language: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> KernelInfo:  # noqa: A002 - the word
        """Make a context, or find the one of that id.

        Args:
            id: Its id.
            language: python, bash or javascript.
            cwd: Absolute folder that it starts in; None is the workspace.
            env: Added to the sandbox's environment.

        Raises:
            SandlotError: There are too many, or the image has nothing that runs the language.
        """
        return await self.ask("kernel.create", {"kernel": id, "language": language, "cwd": cwd, "env": dict(env or {})}, parse_cells.kernel)

    async def kernels(self) -> list[KernelInfo]:
        """Every context."""
        return list(await self.ask("kernel.list", {}, parse_cells.kernels))

    async def remove_kernel(self, id: str) -> None:  # noqa: A002 - the word
        """End a context; what waits in it is aborted.

        Raises:
            NotFoundError: There is none.
        """
        await self.ask("kernel.remove", {"kernel": id}, parse.nothing)

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
        id: ProcessId | None = None,  # noqa: A002 - the word
    ) -> CellCall:
        """Have a kernel execute code; cells of one kernel wait for each other.

        Args:
            code: In the kernel's language.
            kernel: The context's id.
            language: Makes the context where there is none of that id; None needs one that is there, or is the default.
            env: Environment for this cell.
            timeout_s: Seconds from its beginning until it is interrupted; None is never.
            silent: Whether its last expression is shown to nobody, and it counts for nothing.
            store_history: Whether it counts.
            stop_on_error: Whether those that wait behind it are aborted where it fails.
            id: The execution's id, where the caller chose one.
        """
        self.check_usable()
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
        return CellCall(self._pump, "kernel.execute", args, execution=execution, call_id=bytes.fromhex(execution))

    async def attach_cell(
        self,
        id: ProcessId,  # noqa: A002 - the word
        *,
        events_from: int = 0,
        stdout_from: int | None = 0,
        stderr_from: int | None = 0,
        wait: bool = True,
    ) -> CellCall:
        """Follow a cell that was begun before, running or ended.

        Args:
            id: The execution.
            events_from: How many events the caller has seen: started, displays, clears and errors.
            stdout_from: The byte offset to go on from; None is the oldest that is kept.
            stderr_from: The same.
            wait: Whether until its end; otherwise what there is by now, and the status is ``running`` where it is not done.
        """
        self.check_usable()
        args = {"execution": id, "events_from": events_from, "stdout_from": stdout_from, "stderr_from": stderr_from, "wait": wait}
        return CellCall(self._pump, "kernel.attach", args, execution=id, call_id=new_call_id())

    async def interrupt(self, kernel: str = "default", execution: ProcessId | None = None) -> bool:
        """Interrupt a kernel's cell, as Ctrl-C would; whether there was one.

        Args:
            kernel: The context's id; of no weight where an execution is given.
            execution: Only that one, which is aborted where it waits still.
        """
        return await self.ask("kernel.interrupt", {"kernel": kernel, "execution": execution}, parse.running)

    async def restart(self, kernel: str = "default") -> None:
        """End a kernel; the next cell finds a new one without variables."""
        await self.ask("kernel.restart", {"kernel": kernel}, parse.nothing)
