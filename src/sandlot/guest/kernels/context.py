"""A context: a language, a kernel that keeps its state, and the cells that wait for it.

Laws:
- One cell at a time; the others wait in order. A cell's timeout begins when the cell does, not when it is sent.
- An interrupt is SIGINT to the kernel's group, said again after ``AGAIN_S`` for those to whom the first did not get through;
  whoever does not heed it in ``GRACE_S`` is killed, with all that it has started.
- A kernel that died is started anew by the next cell; the cell that it died in says so. Its children die with it.
- What waits is aborted where a cell before it that asked for that fails, or the context is restarted or removed.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import family
from sandlot.guest.kernels.cells import epitaph
from sandlot.guest.kernels.kernel import Kernel, Owner
from sandlot.guest.kernels.starts import LATE, Starts
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol.fast_imports import deque, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.kernels.cells import Cell
    from sandlot.guest.kernels.service import Kernels
    from sandlot.guest.kernels.services import KernelServices
    from sandlot.guest.loop import Timer

AGAIN_S, GRACE_S = 1.0, 2.0
BELL_S = 0.02
"""When a kernel is asked for what it has kept back of a cell: most cells are over by then, and are told in one piece."""
BEGUN_S = 0.3
"""How long an interrupt waits for a kernel to say that it has begun the cell: before that it may not hear of it."""


class Context(Owner):
    """One of them.

    Args:
        guest: The guest.
        kernels: All of them.
        name: Its id.
        language: Of its cells.
        cwd: Where its kernel starts.
        env: Added to the sandbox's environment.
    """

    __slots__ = (
        "_bell",
        "_guest",
        "_has_begun",
        "_is_up",
        "_kernels",
        "_starts",
        "_timer",
        "_verdict",
        "_why",
        "cell",
        "count",
        "cwd",
        "env",
        "is_removed",
        "kernel",
        "language",
        "last",
        "name",
        "queue",
    )

    def __init__(self, guest: KernelServices, kernels: Kernels, name: str, language: str, cwd: str, env: dict[str, str]) -> None:
        self._guest = guest
        self._kernels = kernels
        self.name = name
        self.language = language
        self.cwd = cwd
        self.env = env
        self.kernel: Kernel | None = None
        self.cell: Cell | None = None
        self.last: Cell | None = None
        self.queue: deque[Cell] = deque()
        self.count = 0
        self.is_removed = False
        self._is_up = False
        self._has_begun = False
        self._starts = Starts(guest, kernels, self)
        self._timer: Timer | None = None
        self._bell: Timer | None = None
        self._why = ""
        self._verdict = ""

    @property
    def state(self) -> str:
        """A word of schema.KERNEL_STATES."""
        if self.cell is not None:
            return "busy"
        if self.kernel is not None:
            return "idle" if self._is_up else "starting"
        return "starting" if self._starts.is_taking else "stopped"

    def describe(self) -> dict[str, Any]:
        """A record of ``kernel.list``."""
        return {
            "kernel": self.name,
            "language": self.language,
            "cwd": self.cwd,
            "state": self.state,
            "execution_count": self.count,
            "pid": None if self.kernel is None else self.kernel.pid,
        }

    def environment(self) -> dict[str, str]:
        """What its kernel has."""
        return build_environment(lookup_account("user"), self._guest.identity.env, self.env)

    # -- what the host asks -------------------------------------------------------------------------------------------

    def submit(self, cell: Cell) -> None:
        """Run a cell after those before it."""
        self.queue.append(cell)
        self._next()

    def interrupt(self) -> bool:
        """Interrupt the cell that runs; whether there was one."""
        if self.cell is None or self._verdict:
            return False
        if not self._why:
            self._interrupt("interrupt")
        return True

    def abort(self, cell: Cell, why: str) -> None:
        """A cell that waits will not run."""
        if cell in self.queue:
            self.queue.remove(cell)
            _abort(cell, why)

    def restart(self) -> None:
        """End the kernel; what waits is aborted, and the next cell starts a new one."""
        self._abort_all("The context was restarted before its turn came.")
        self._starts.forget()
        self._end()

    def remove(self) -> None:
        """It will not be used again."""
        self.is_removed = True
        self._abort_all("The context was removed before its turn came.")
        self._end()

    def _end(self) -> None:
        if self.cell is not None:
            self.cell.outputs.rushes = True
        self.kill("killed")

    def woken(self) -> None:
        """The sandbox begins a life: a kernel that lived before parts from its clones in randomness and environment."""
        if self.kernel is not None:
            self._wake(self.kernel, "")  # it stays where its cells have gone

    def part(self) -> None:
        """The sandbox is a copy from now on: nobody here waits for cells that have not begun."""
        self._abort_all("It waited in the sandbox that this one is a copy of.")
        self.last = self.cell

    # -- the kernel's life --------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """See to it that there is a kernel, or will be.

        Raises:
            RpcError: The image has nothing that runs the language, or it does not start.
        """
        if self.kernel is None and not self._starts.is_taking:
            self._starts.begin()

    def adopt(self, kernel: Kernel) -> None:
        """This is its kernel from now on."""
        self.kernel = kernel
        self.count = 0
        self._is_up = False
        self._verdict = ""
        self._starts.watch(self.queue[0].timeout_s if self.queue else None)
        self._wake(kernel, self.cwd)
        kernel.serve(self)

    def _wake(self, kernel: Kernel, cwd: str) -> None:
        kernel.wake({**self._guest.identity.env, **self.env}, self._guest.identity.fresh_entropy(), cwd)

    def kill(self, verdict: str) -> None:
        """Kill the kernel and its family; its cell says so by the verdict."""
        if self.kernel is not None and not self._verdict:
            self._verdict = verdict
            self.kernel.kill()
            self._hurry(self.kernel)

    def reaped(self, status: int, peak_bytes: int) -> None:
        """The kernel's process ended by itself, or was killed by somebody else; its children end with it."""
        if self.kernel is None:
            return
        if not self._verdict:
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            self._verdict = "oom" if killed and self._kernels.memory.explains(peak_bytes) else "died"
        self.kernel.ended()
        self._hurry(self.kernel)

    def _hurry(self, kernel: Kernel) -> None:
        """The kernel is gone: its end is told and the next one begins, also where nobody reads what it said."""
        if self.cell is not None:
            self.cell.outputs.rushes = True
        kernel.read_on()

    def on_broken(self) -> None:
        """It breaks the wire."""
        self.kill("died")

    def on_over(self) -> None:
        """The kernel is gone, and all that it said was handed on."""
        kernel, self.kernel = self.kernel, None
        verdict, self._verdict = self._verdict, ""
        was_up, self._is_up = self._is_up, False
        self._quiet()
        if was_up:
            self._starts.forget()
        if self.cell is not None:
            self.cell.fail("KernelDied", epitaph(verdict, self.language, began=True, late=bool(self._why)))
            self._finish("killed" if verdict == "died" and self._why else verdict)
        elif not was_up and kernel is not None:
            self._never_started(kernel, verdict)
        self._next()

    def _never_started(self, kernel: Kernel, verdict: str) -> None:
        """A program ended before it was a kernel: try again, or say so to the cell that waits."""
        if verdict == "killed" or self._starts.failed(verdict):
            return
        if self.queue:
            cell = self.queue.popleft()
            text = kernel.started_text
            if text:
                cell.outputs.buffers[2].append(text.encode())
            status = "died" if verdict == LATE else verdict
            cell.fail("KernelDied", epitaph(status, self.language, began=False, late=verdict == LATE))
            cell.finish(status, 0)

    # -- cells --------------------------------------------------------------------------------------------------------

    def refused(self, refusal: RpcError) -> None:
        """There is no kernel to be had."""
        self._refuse(refusal)
        self._next()

    def _refuse(self, refusal: RpcError) -> None:
        if self.queue:
            cell = self.queue.popleft()
            cell.fail("KernelError", refusal.message)
            cell.finish("died", 0)

    def _next(self) -> None:
        """Begin the next cell, where there is one and a kernel for it."""
        while self.queue and self.cell is None and not self.is_removed:
            if self.kernel is None:
                try:
                    self.boot()
                except RpcError as refusal:
                    self._refuse(refusal)
                    continue
            if self.kernel is None or not self._is_up or self._verdict:
                return
            self._begin(self.kernel, self.queue.popleft())

    def _begin(self, kernel: Kernel, cell: Cell) -> None:
        self.cell = self.last = cell
        self._why = ""
        self._has_begun = False
        cell.begin()
        cell.on_sent = kernel.read_on
        kernel.direct(cell)
        if cell.timeout_s is not None:
            self._timer = self._guest.loop.call_later(cell.timeout_s, lambda: self._interrupt("timeout"))
        kernel.send(
            {"op": "execute", "cell": cell.id, "code": cell.code, "env": cell.env, "silent": cell.silent, "store_history": cell.store_history}
        )
        self._bell = self._guest.loop.call_later(BELL_S, kernel.ring)
        self._kernels.memory.watch()

    def _interrupt(self, why: str) -> None:
        if self.cell is None or self.kernel is None or self._verdict:
            return
        self._why = why
        # Whoever is interrupted must be able to say so, also where nobody has read what it said before.
        self.cell.outputs.rushes = True
        self.kernel.read_on()
        if self._has_begun:
            self._signal()
        else:
            self.kernel.ring()
            self._set_timer(BEGUN_S, self._signal)

    def _signal(self) -> None:
        if self.kernel is not None:
            self._interrupt_kernel(self.kernel)
            self._set_timer(AGAIN_S, self._signal_again)

    def _interrupt_kernel(self, kernel: Kernel) -> None:
        if self.language == "javascript" and self.cell is not None:
            # node hears of a signal only when its event loop turns; a thread of its kernel listens all the time.
            kernel.send({"op": "interrupt", "cell": self.cell.id})
        family.interrupt(kernel.pid)

    def _signal_again(self) -> None:
        if self.kernel is not None:
            self._interrupt_kernel(self.kernel)
            self._set_timer(GRACE_S - AGAIN_S, lambda: self.kill("killed"))

    def _set_timer(self, delay_s: float, callback: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._guest.loop.call_later(delay_s, callback)

    def _set_no_timer(self) -> None:
        for timer in (self._timer, self._bell):
            if timer is not None:
                timer.cancel()
        self._timer = self._bell = None

    def _quiet(self) -> None:
        """No timer of a cell or a kernel that is gone."""
        self._set_no_timer()
        self._starts.settle()

    def cell_of(self, id_: str | None) -> Cell | None:
        """The cell that a kernel speaks of, where it is one of this context's."""
        if id_ is None or (self.cell is not None and self.cell.id == id_):
            return self.cell
        return self._kernels.cell_of(id_, self.name)

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """The kernel said something."""
        if not self._is_up:
            self._is_up = True
            self._quiet()
            self._next()
        kind = message["event"]
        if kind == "ready":
            return
        cell = self.cell_of(message.pop("cell"))
        if cell is None:
            return
        if kind == "done":
            if cell is self.cell:
                self.count = message["count"]
                status = "ok" if message["ok"] else "error"
                self._finish("timeout" if self._why == "timeout" else status)
                self._next()
            return
        cell.tell(message, size)
        if kind == "started" and cell is self.cell and not self._has_begun:
            self._has_begun = True
            if self._why:
                self._signal()

    def on_piped(self) -> None:
        """One of the pipes gave something."""
        if self.last is not None:
            self.last.pump()

    def _finish(self, status: str) -> None:
        cell, self.cell = self.cell, None
        self._set_no_timer()
        if cell is None:
            return
        cell.finish(status, self.count)
        if cell.stop_on_error and status != "ok":
            self._abort_all("A cell before it failed.")
        self._kernels.finished()

    def _abort_all(self, why: str) -> None:
        while self.queue:
            _abort(self.queue.popleft(), why)


def _abort(cell: Cell, why: str) -> None:
    cell.fail("Aborted", f"It was not run. {why}")
    cell.finish("aborted", 0)
