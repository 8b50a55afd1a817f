"""A code context: a language, the kernel that keeps the variables, and the cells that wait for the kernel.

Invariants:
- One cell runs at a time; the others wait in order. The timeout of a cell starts with the cell, not with its request.
- An interrupt is SIGINT to the process group of the kernel, sent again after ``SIGNAL_AGAIN_S``. A kernel that does not react within
  ``KILL_AFTER_S`` is killed, with all processes that it started.
- After a kernel has died, the next cell starts a new kernel. The cell that was running reports the death.
- Queued cells are aborted when a cell with ``stop_on_error`` fails, and when the context is restarted or removed.

``context_state`` defines the states and transitions; this module performs the actions.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import context_state as states
from sandlot.guest.kernels.cell import kernel_death_message
from sandlot.guest.kernels.kernel import KernelEventHandler
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

SIGNAL_AGAIN_S, KILL_AFTER_S = 1.0, 2.0
FLUSH_REQUEST_S = 0.02
"""Seconds after the start of a cell at which its delayed output is requested. Most cells end earlier and are reported at once."""
CELL_START_S = 0.3
"""Maximum time for which an interrupt waits for the start of its cell. Before the start, the kernel may ignore a signal."""


class CodeContext(KernelEventHandler):
    """One code context.

    Args:
        loop: The guest's loop.
        identity: Environment and entropy of the sandbox.
        starter: Starts kernels.
        oom: Decides whether a kernel was killed for lack of memory.
        cells: Cells that are remembered.
        name: Id of the context.
        language: Language of the cells.
        cwd: Working directory of a new kernel.
        env: Variables in addition to those of the sandbox.
        on_activity: Called when a cell has started or ended.

    Attributes:
        cell: The running cell, or None.
        queue: Cells that wait.
        kernel: The kernel, even while it is ending; None without a kernel.
        state: A state of ``context_state``.
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
        """The last cell that was sent. Output of the pipes belongs to this cell."""
        self._execution_count = 0
        self._attempt = 0
        """Index in ``START_ORDER`` of the way to start the next kernel."""
        self._timer: Timer | None = None
        """Deadline of the present state: for the start of a kernel, for the end of a cell, or for the effect of an interrupt."""
        self._flush_timer: Timer | None = None

    @property
    def reported_state(self) -> str:
        """The state that clients see: one of ``schema.KERNEL_STATES``."""
        return states.REPORTED[self.state]

    @property
    def env(self) -> dict[str, str]:
        """Variables of the sandbox and the context."""
        return {**self._identity.env, **self._env}

    def describe(self) -> dict[str, Any]:
        """Return the context's record of ``kernel.list``."""
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
        """Queue a cell, which runs after the cells that were queued earlier."""
        self.queue.append(cell)
        self._run_next()

    def start(self) -> None:
        """Start a kernel if there is none.

        Raises:
            RpcError: The image cannot run the language, or the program cannot be started.
        """
        self._apply(states.KERNEL_NEEDED)

    def interrupt(self) -> bool:
        """Interrupt the running cell. Return True if there was a running cell."""
        if not states.has_interruptible_cell(self.state):
            return False
        self._interrupt("interrupt")
        return True

    def abort(self, cell: Cell, why: str) -> None:
        """End a queued cell without running it."""
        if cell in self.queue:
            self.queue.remove(cell)
            _abort(cell, why)

    def restart(self) -> None:
        """End the kernel and abort queued cells. The next cell starts a new kernel."""
        self._abort_queue("The context was restarted.")
        self._attempt = 0
        self.end_kernel("killed")

    def remove(self) -> None:
        """End the kernel and abort queued cells. The context is not used again."""
        self._abort_queue("The context was removed.")
        self._apply(states.REMOVE, "killed")

    def end_kernel(self, reason: str) -> None:
        """Kill the kernel, if there is one, and all processes that it started.

        Args:
            reason: Reason that the running cell reports: ``killed``, ``died``, ``oom`` or ``late``.
        """
        self._apply(states.KERNEL_ENDING, reason)

    def on_wake(self) -> None:
        """Send the kernel the environment of this wake, and entropy that copies of the kernel in other sandboxes do not get."""
        if self.kernel is not None:
            self.kernel.wake(self.env, self._identity.fresh_entropy(), "")  # the working directory stays as cells have set it

    def on_copied(self) -> None:
        """Abort queued cells, because their clients wait for the sandbox that this one is a copy of."""
        self._abort_queue("This sandbox is a copy, and the cell belongs to the original.")
        self._last_cell = self.cell

    # -- events of the kernel ------------------------------------------------------------------------------------------

    def cell_of(self, id_: str | None) -> Cell | None:
        """Return the cell with an id, or the running cell if ``id_`` is None. The result is None if this context has no such cell."""
        if id_ is None or (self.cell is not None and self.cell.id == id_):
            return self.cell
        return self._cells.get(id_, of_context=self.name)

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """Handle a message of the kernel. The first message completes the start of the kernel."""
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
        """Send new output to the clients of the cell."""
        if self._last_cell is not None:
            self._last_cell.pump()

    def on_violation(self) -> None:
        """End a kernel that violates the protocol."""
        self.end_kernel("died")

    def on_exit(self, status: int, peak_bytes: int) -> None:
        """End the kernel's remaining processes after its main process has ended."""
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.end_kernel("oom" if was_killed and self._oom.explains(peak_bytes) else "died")

    def on_killed(self, reason: str) -> None:
        """End the remaining processes of a kernel that was killed for lack of memory. Other kills are reported by :meth:`on_exit`."""
        if reason == "oom":
            self.end_kernel(reason)

    def on_gone(self) -> None:
        """Handle the end of the kernel, and start a new kernel if cells wait."""
        self._apply(states.KERNEL_GONE)
        self._run_next()

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, event: str, detail: str = "") -> bool:
        """Apply an event: change the state and perform the actions of the transition. Return True if the event had an effect.

        Args:
            event: An event of ``context_state``.
            detail: Reason for the end of a kernel, or status of a cell.

        Raises:
            RpcError: A kernel had to be started, and cannot be.
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
        """Send the next queued cell, or start a kernel for it."""
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

    def _signal(self) -> None:
        self._signal_kernel()
        self._set_timer(SIGNAL_AGAIN_S, self._signal_again)

    def _signal_again(self) -> None:
        self._signal_kernel()
        self._set_timer(KILL_AFTER_S - SIGNAL_AGAIN_S, lambda: self.end_kernel("killed"))

    def _signal_kernel(self) -> None:
        if self.kernel is not None and self.cell is not None:
            # node handles a signal only when its event loop runs. A thread of the kernel reads messages all the time.
            self.kernel.interrupt(self.cell, by_message=self.language == "javascript")

    def _end_kernel(self, reason: str) -> None:
        self._cancel_timers()
        if self.kernel is not None:
            self.kernel.end(reason)
            self._ignore_backpressure()

    def _ignore_backpressure(self) -> None:
        """Continue reading the kernel even if clients do not read, so that the end of the cell arrives."""
        if self.cell is not None:
            self.cell.outputs.ignores_backpressure = True
        if self.kernel is not None:
            self.kernel.resume_reading()

    def _finish_cell(self, status: str) -> None:
        if self.cell is not None:
            self._close_cell(self.cell, self.cell.interrupt_cause if self.cell.interrupt_cause == "timeout" else status)

    def _fail_cell(self) -> None:
        if self.cell is not None and self.kernel is not None:
            reason, was_interrupted = self.kernel.end_reason, bool(self.cell.interrupt_cause)
            self.cell.fail("KernelDied", kernel_death_message(reason, self.language, began=True, late=was_interrupted))
            self._close_cell(self.cell, "killed" if reason == "died" and was_interrupted else reason)

    def _close_cell(self, cell: Cell, status: str) -> None:
        self.cell = None
        self._cancel_timers()
        cell.finish(status, self._execution_count)
        if cell.stop_on_error and status != "ok":
            self._abort_queue("An earlier cell failed.")
        self._on_activity()

    def _retry_start(self) -> None:
        """Use the next way to start a kernel. After the last way, fail the first queued cell with the reason."""
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
"""Action -> method that performs it. ``FINISH_CELL`` and ``END_KERNEL`` are not listed, because their methods take an argument."""
