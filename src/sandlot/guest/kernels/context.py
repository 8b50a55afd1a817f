"""A code context: a language, the kernel that keeps the variables, and the cells that wait for the kernel.

Invariants:
- A context runs one cell at a time. Other cells wait in the order of their requests. The timeout of a cell starts when the cell is sent to
  the kernel, not when the cell is requested.
- An interrupt sends SIGINT to the process group of the kernel, at each of ``SIGNAL_TIMES_S``. If the cell has not ended after ``KILL_AFTER_S``, the
  guest kills the kernel with all processes that it started.
- If a kernel dies, the cell that was running fails with an error that says why. The next cell starts a new kernel.
- Queued cells are aborted when a cell with ``stop_on_error`` fails, and when the context is restarted or removed.

``context_state`` defines the states of a context and the transitions between them. This module performs the actions of the transitions.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import context_state as states
from sandlot.guest.kernels.cell import kernel_death_message
from sandlot.guest.kernels.kernel import KernelEventHandler
from sandlot.guest.kernels.languages import NODE_LANGUAGES
from sandlot.guest.kernels.starter import START_ORDER, start_timeout_s
from sandlot.protocol.fast_imports import deque, signal
from sandlot.protocol.schema import STDERR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.cell import Cell
    from sandlot.guest.kernels.cell_store import CellStore
    from sandlot.guest.kernels.kernel import KernelProcess
    from sandlot.guest.kernels.oom import OomWatcher
    from sandlot.guest.kernels.starter import KernelStarter
    from sandlot.guest.loop import Loop, Timer

SIGNAL_TIMES_S, KILL_AFTER_S = (0.0, 1.0, 1.5), 2.0
"""Seconds after an interrupt at which the guest sends SIGINT, and after which it kills the kernel.

The first SIGINT is lost if a program of the cell is just being started, the second one ends that program, and the third one ends the code after it.
"""
FLUSH_REQUEST_S = 0.02
"""Seconds after which the guest requests delayed output from a kernel that runs a cell. Most cells end earlier, so no request is sent."""
CELL_START_S = 0.3
"""Maximum time in seconds that an interrupt waits for the kernel to report the start of the cell. Before the report, the kernel may ignore SIGINT."""


class CodeContext(KernelEventHandler):
    """One code context.

    Args:
        loop: The guest's loop.
        identity: The sandbox's identity, which includes its environment variables and entropy.
        starter: Starts kernels.
        oom: Decides whether a kernel was killed because the sandbox ran out of memory.
        cells: Store of the cells of all contexts.
        name: Id of the context.
        language: Language of the cells; a value of ``languages.DEFAULT_CONTEXTS``.
        cwd: Working directory in which each new kernel of the context starts.
        env: Environment variables of the context. They override the sandbox's variables of the same name.
        on_activity: Called when a cell of the context has started or ended.

    Attributes:
        cell: Cell that was sent to the kernel and has not ended; None if no cell runs.
        queue: Cells that wait for the kernel, oldest first.
        kernel: Kernel of the context, also while the kernel is ending; None if there is no kernel.
        state: State of the context: a constant of ``context_state``.
    """

    __slots__ = (
        "_attempt",
        "_cells",
        "_env",
        "_execution_count",
        "_flush_timer",
        "_identity",
        "_last_cell",
        "_loop",
        "_on_activity",
        "_oom",
        "_starter",
        "_timer",
        "cell",
        "cwd",
        "kernel",
        "language",
        "name",
        "queue",
        "state",
    )

    def __init__(
        self,
        loop: Loop,
        identity: SandboxIdentity,
        starter: KernelStarter,
        oom: OomWatcher,
        cells: CellStore,
        name: str,
        language: str,
        cwd: str,
        env: dict[str, str],
        on_activity: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._starter = starter
        self._oom = oom
        self._cells = cells
        self._on_activity = on_activity
        self._env = env
        self.name = name
        self.language = language
        self.cwd = cwd
        self.state = states.STOPPED
        self.kernel: KernelProcess | None = None
        self.cell: Cell | None = None
        self.queue: deque[Cell] = deque()
        self._last_cell: Cell | None = None
        """Last cell that was sent to the kernel. Output that the guest reads from the kernel's output pipes belongs to this cell."""
        self._execution_count = 0
        self._attempt = 0
        """Index in ``START_ORDER[language]`` of the way in which the next kernel is started."""
        self._timer: Timer | None = None
        """Timer of the present state: for the start of the kernel, the timeout of the cell, or the next step of an interrupt."""
        self._flush_timer: Timer | None = None

    @property
    def reported_state(self) -> str:
        """State of the context as clients see it: one of ``schema.KERNEL_STATES``."""
        return states.REPORTED[self.state]

    @property
    def env(self) -> dict[str, str]:
        """Environment variables of the sandbox, overridden by the variables of the context."""
        return {**self._identity.env, **self._env}

    def describe(self) -> dict[str, Any]:
        """Return the fields of this context in the responses to ``kernel.list`` and ``kernel.create``."""
        return {
            "kernel": self.name,
            "language": self.language,
            "cwd": self.cwd,
            "state": self.reported_state,
            "execution_count": self._execution_count,
            "pid": None if self.kernel is None else self.kernel.pid,
        }

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, cell: Cell) -> None:
        """Add a cell to the end of the queue. Send the cell to the kernel now if the kernel is idle."""
        self.queue.append(cell)
        self._run_next()

    def start(self) -> None:
        """Start a kernel without waiting for a cell. Does nothing if the context has a kernel or has requested one.

        Raises:
            RpcError: The image cannot run the language, or the program of the kernel cannot be started.
        """
        self._apply(states.KERNEL_NEEDED)

    def interrupt(self) -> bool:
        """Interrupt the running cell. Return False if no cell runs or the kernel is ending already."""
        if not states.has_interruptible_cell(self.state):
            return False
        self._interrupt("interrupt")
        return True

    def abort(self, cell: Cell, why: str) -> None:
        """End a queued cell without running it. Does nothing if the cell is not in the queue.

        Args:
            cell: The cell.
            why: Reason, as the last sentence of the cell's error message.
        """
        if cell in self.queue:
            self.queue.remove(cell)
            _abort(cell, why)

    def restart(self) -> None:
        """Kill the kernel and abort the queued cells, because a client restarts the context. The next cell starts a new kernel."""
        self._abort_queue("The context was restarted.")
        self._attempt = 0
        self.end_kernel("killed")

    def remove(self) -> None:
        """Kill the kernel and abort the queued cells, because a client removes the context. The caller must not use the context again."""
        self._abort_queue("The context was removed.")
        self._apply(states.REMOVE, "killed")

    def end_kernel(self, reason: str) -> None:
        """Kill the kernel and all processes that it started. Does nothing if there is no kernel or the kernel is ending already.

        Args:
            reason: Reason for the end, which the error of the running cell reports: ``killed``, ``died``, ``oom`` or ``late``. ``late`` means
                that the kernel did not start in time.
        """
        self._apply(states.KERNEL_ENDING, reason)

    def on_wake(self) -> None:
        """Send the kernel the new environment and fresh entropy after the sandbox was woken. Kernels in copies of the sandbox get other entropy."""
        if self.kernel is not None:
            self.kernel.wake(self.env, self._identity.fresh_entropy(), "")  # empty: keep the working directory that cells have set

    def on_copied(self) -> None:
        """Abort the queued cells, because this sandbox was created as a copy. The clients wait for these cells in the original sandbox."""
        self._abort_queue("This sandbox is a copy, and the cell belongs to the original.")
        self._last_cell = self.cell

    # -- events of the kernel ------------------------------------------------------------------------------------------

    def cell_of(self, id_: str | None) -> Cell | None:
        """Return the cell with an id. Return None if this context has no such cell.

        Args:
            id_: Id of the cell; None for the running cell.
        """
        if id_ is None or (self.cell is not None and self.cell.id == id_):
            return self.cell
        return self._cells.get(id_, of_context=self.name)

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """Handle an event that the kernel has sent: add the event to its cell, or end the cell. The first message completes the kernel's start.

        Args:
            message: Event as :func:`~sandlot.guest.kernels.kernel_events.parse_event` returns it.
            size: Encoded size of the message in bytes.
        """
        if self._apply(states.KERNEL_READY):
            self._run_next()
        kind = message["event"]
        if kind == "ready":
            return
        cell = self.cell_of(message.pop("cell"))
        if cell is None:
            return
        if kind != "done":
            cell.add_event(message, size)
            if kind == "started" and cell is self.cell:
                self._apply(states.CELL_STARTED)
        elif cell is self.cell:
            self._execution_count = message["count"]
            self._apply(states.CELL_DONE, "ok" if message["ok"] else "error")
            self._run_next()

    def on_output(self) -> None:
        """Send output that was read from the kernel's pipes to the followers of the last cell that was sent to the kernel."""
        if self._last_cell is not None:
            self._last_cell.pump()

    def on_violation(self) -> None:
        """Kill the kernel, because it has sent an invalid message, or has closed its socket without ending."""
        self.end_kernel("died")

    def on_exit(self, status: int, peak_bytes: int) -> None:
        """Kill the processes that the kernel has left behind, because the process of the kernel itself has ended.

        Args:
            status: Wait status of the kernel's process.
            peak_bytes: Largest resident memory of the kernel's process in bytes.
        """
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.end_kernel("oom" if was_killed and self._oom.explains(peak_bytes) else "died")

    def on_killed(self, reason: str) -> None:
        """Kill all processes of the kernel, if the guest has killed the kernel's own process for lack of memory.

        Args:
            reason: ``oom`` for lack of memory, ``pids`` for too many processes. For ``pids``, nothing is done here: :meth:`on_exit` handles the end.
        """
        if reason == "oom":
            self.end_kernel(reason)

    def on_gone(self) -> None:
        """Release the kernel, because it has ended and all its output was read. Start a new kernel if cells are queued."""
        self._apply(states.KERNEL_GONE)
        self._run_next()

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, event: str, detail: str = "") -> bool:
        """Change the state of the context and perform the actions of the transition. Return False if the event has no effect in this state.

        Args:
            event: An event of ``context_state``.
            detail: For the action ``END_KERNEL``, the reason for the end; for ``FINISH_CELL``, the status of the cell.

        Raises:
            RpcError: The event requires a new kernel, which cannot be started.
        """
        before = self.state
        self.state, actions = states.step(before, event)
        has_effect = bool(actions) or self.state != before
        for action in actions:
            if action == states.FINISH_CELL:
                self._finish_cell(detail)
            elif action == states.END_KERNEL:
                self._end_kernel(detail)
            else:
                _ACTIONS[action](self)
        return has_effect

    def _run_next(self) -> None:
        """Send the first queued cell to the kernel, or start a kernel for the cell. Fail each cell for which no kernel can be started."""
        while self.queue:
            try:
                self._apply(states.CELL_QUEUED)
            except RpcError as error:
                self._refuse_first(error)
            else:
                return

    def _start_kernel(self) -> None:
        try:
            self._starter.start(self.language, self.env, self.cwd, self._attempt, self._on_created, self._on_refused)
        except RpcError:
            self._apply(states.START_REFUSED)
            raise

    def _on_created(self, kernel: KernelProcess, attempt: int) -> None:
        self.kernel = kernel
        self._attempt = attempt
        self._apply(states.KERNEL_CREATED)

    def _on_refused(self, error: RpcError) -> None:
        self._apply(states.START_REFUSED)
        self._refuse_first(error)
        self._run_next()

    def _refuse_first(self, error: RpcError) -> None:
        if self.queue:
            cell = self.queue.popleft()
            cell.fail("KernelError", error.message)
            cell.finish("died", 0)

    def _serve_kernel(self) -> None:
        if self.kernel is not None:
            self._execution_count = 0
            self._set_timer(start_timeout_s(self.queue[0].timeout_s if self.queue else None), lambda: self.end_kernel("late"))
            self.kernel.wake(self.env, self._identity.fresh_entropy(), self.cwd)
            self.kernel.serve(self)

    def _settle_start(self) -> None:
        self._attempt = 0
        self._cancel_timers()

    def _discard_kernel(self) -> None:
        if self.kernel is not None:
            self.kernel.discard()
            self.kernel = None

    def _send_cell(self) -> None:
        if self.kernel is None:
            return
        cell = self.cell = self._last_cell = self.queue.popleft()
        cell.begin()
        cell.on_sent = self.kernel.resume_reading
        if cell.timeout_s is not None:
            self._set_timer(cell.timeout_s, lambda: self._interrupt("timeout"))
        self.kernel.execute(cell)
        self._flush_timer = self._loop.call_later(FLUSH_REQUEST_S, self.kernel.request_flush)
        self._on_activity()

    def _interrupt(self, cause: str) -> None:
        if self._apply(states.INTERRUPT) and self.cell is not None:
            self.cell.interrupt_cause = cause
            self._ignore_backpressure()

    def _defer_signal(self) -> None:
        if self.kernel is not None:
            self.kernel.request_flush()
            self._set_timer(CELL_START_S, self._signal)

    def _signal(self, sent: int = 0) -> None:
        self._signal_kernel()
        if SIGNAL_TIMES_S[sent + 1 :]:
            self._set_timer(SIGNAL_TIMES_S[sent + 1] - SIGNAL_TIMES_S[sent], lambda: self._signal(sent + 1))
        else:
            self._set_timer(KILL_AFTER_S - SIGNAL_TIMES_S[sent], lambda: self.end_kernel("killed"))

    def _signal_kernel(self) -> None:
        if self.kernel is not None and self.cell is not None:
            # node handles a signal only when its event loop runs, but a thread of this kernel reads messages even if the loop is busy.
            self.kernel.interrupt(self.cell, by_message=self.language in NODE_LANGUAGES)

    def _end_kernel(self, reason: str) -> None:
        self._cancel_timers()
        if self.kernel is not None:
            self.kernel.end(reason)
            self._ignore_backpressure()

    def _ignore_backpressure(self) -> None:
        """Read from the kernel from now on, even if followers of the cell do not read, so that the message about the end of the cell can arrive."""
        if self.cell is not None:
            self.cell.outputs.ignores_backpressure = True
        if self.kernel is not None:
            self.kernel.resume_reading()

    def _finish_cell(self, status: str) -> None:
        if self.cell is not None:
            self._close_cell(self.cell, self.cell.interrupt_cause if self.cell.interrupt_cause == "timeout" else status)

    def _fail_cell(self) -> None:
        if self.cell is not None and self.kernel is not None:
            reason, cause = self.kernel.end_reason, self.cell.interrupt_cause
            timeout_s = self.cell.timeout_s if cause == "timeout" else None
            self.cell.fail("KernelDied", kernel_death_message(reason, self.language, began=True, late=bool(cause), timeout_s=timeout_s))
            if cause and reason in {"died", "killed"}:
                reason = "timeout" if cause == "timeout" else "killed"
            self._close_cell(self.cell, reason)

    def _close_cell(self, cell: Cell, status: str) -> None:
        self.cell = None
        self._cancel_timers()
        cell.finish(status, self._execution_count)
        if cell.stop_on_error and status != "ok":
            self._abort_queue("An earlier cell failed.")
        self._on_activity()

    def _retry_start(self) -> None:
        """Handle a kernel that has ended before its first message.

        If the kernel died, select the next way to start a kernel in ``START_ORDER``. Fail the first queued cell if there is no further way, if the
        kernel did not start in time, or if the sandbox ran out of memory.
        """
        kernel = self.kernel
        if kernel is None or kernel.end_reason == "killed":
            return
        if kernel.end_reason == "died" and self._attempt + 1 < len(START_ORDER[self.language]):
            self._attempt += 1
            return
        self._attempt = 0
        if self.queue:
            cell = self.queue.popleft()
            if kernel.startup_text:
                cell.outputs.buffers[STDERR].append(kernel.startup_text.encode())
            is_late = kernel.end_reason == "late"
            status = "died" if is_late else kernel.end_reason
            cell.fail("KernelDied", kernel_death_message(status, self.language, began=False, late=is_late))
            cell.finish(status, 0)

    def _release_kernel(self) -> None:
        self.kernel = None
        self._cancel_timers()

    def _set_timer(self, delay_s: float, callback: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, callback)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._flush_timer = None

    def _abort_queue(self, why: str) -> None:
        while self.queue:
            _abort(self.queue.popleft(), why)


def _abort(cell: Cell, why: str) -> None:
    cell.fail("Aborted", f"The cell was not run. {why}")
    cell.finish("aborted", 0)


_ACTIONS: dict[str, Callable[[CodeContext], None]] = {
    states.START_KERNEL: CodeContext._start_kernel,  # noqa: SLF001 - the class's own table
    states.SERVE_KERNEL: CodeContext._serve_kernel,  # noqa: SLF001
    states.DISCARD_KERNEL: CodeContext._discard_kernel,  # noqa: SLF001
    states.SETTLE_START: CodeContext._settle_start,  # noqa: SLF001
    states.SEND_CELL: CodeContext._send_cell,  # noqa: SLF001
    states.DEFER_SIGNAL: CodeContext._defer_signal,  # noqa: SLF001
    states.SIGNAL: CodeContext._signal,  # noqa: SLF001
    states.FAIL_CELL: CodeContext._fail_cell,  # noqa: SLF001
    states.RETRY_START: CodeContext._retry_start,  # noqa: SLF001
    states.RELEASE_KERNEL: CodeContext._release_kernel,  # noqa: SLF001
}
"""Action -> method that performs the action. ``FINISH_CELL`` and ``END_KERNEL`` are missing, because their methods need an argument."""
