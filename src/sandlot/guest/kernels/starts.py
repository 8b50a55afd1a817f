"""How a context comes by its kernel: the one that waits, one that is started for it, or the plain one.

Laws:
- A python kernel that ends before its first word is started once more as it was, and then plainly; the plain one says so itself. A
  JavaScript one is started plainly at once.
- The plain one is for one kernel: the next is tried as usual.
- A kernel that does not say a word in time is killed: as long as the cell that waits for it may run, within bounds.
"""

from __future__ import annotations

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.ends import Ends
from sandlot.guest.kernels.kernel import Kernel
from sandlot.guest.kernels.services import KernelChild
from sandlot.guest.process.accounts import lookup_account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.kernels.context import Context
    from sandlot.guest.kernels.service import Kernels
    from sandlot.guest.kernels.services import KernelServices
    from sandlot.guest.loop import Timer

START_S, LEAST_START_S = 30.0, 10.0
LATE = "late"
"""The verdict on a kernel that took too long to start."""
PLAIN_AFTER = {"python": 2, "javascript": 1}
"""From so many failures on, a kernel is the plain one."""


class Starts:
    """The starts of one context's kernels.

    Args:
        guest: The guest.
        kernels: All contexts.
        context: Whose kernels these are.
    """

    __slots__ = ("_context", "_failures", "_guest", "_kernels", "_timer", "is_taking")

    def __init__(self, guest: KernelServices, kernels: Kernels, context: Context) -> None:
        self._guest = guest
        self._kernels = kernels
        self._context = context
        self._failures = 0
        self._timer: Timer | None = None
        self.is_taking = False
        """Whether one was asked for that is made ahead."""

    def begin(self) -> None:
        """See to it that there will be a kernel.

        Raises:
            RpcError: The image has nothing that runs the language, or it does not start.
        """
        if self._context.language == "python" and not self._failures:
            self.is_taking = True
            if self._kernels.spares.take({**self._guest.identity.env, **self._context.env}, self._given):
                return
            self.is_taking = False
        self._start()

    def watch(self, timeout_s: float | None) -> None:
        """A kernel is there, which has not said anything yet.

        Args:
            timeout_s: Of the cell that waits for it.
        """
        patience_s = max(LEAST_START_S, min(START_S, timeout_s or START_S))
        self._timer = self._guest.loop.call_later(patience_s, lambda: self._context.kill(LATE))

    def settle(self) -> None:
        """The kernel has said something, or is gone. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """Whatever kept the usual kernel from starting may be gone."""
        self._failures = 0

    def failed(self, verdict: str) -> bool:
        """A kernel ended before its first word; whether another start may go better.

        Args:
            verdict: What became of it.
        """
        self._failures += 1
        again = verdict == "died" and self._failures <= PLAIN_AFTER.get(self._context.language, 0)
        if not again:
            self.forget()
        return again

    def _given(self, kernel: Kernel | None) -> None:
        """The spare one, or none."""
        self.is_taking = False
        context = self._context
        if context.is_removed or context.kernel is not None:
            if kernel is not None:
                kernel.discard()
            return
        if kernel is not None:
            context.adopt(kernel)
            return
        try:
            self._start()
        except RpcError as refusal:
            context.refused(refusal)

    def _start(self) -> None:
        context = self._context
        plain = 0 < PLAIN_AFTER.get(context.language, 0) <= self._failures
        argv = languages.argv(context.language, context.environment(), plain=plain)
        env = {**self._guest.identity.env, **context.env}
        rings = context.language == "python"
        context.adopt(start_kernel(self._guest, self._kernels, argv, env, context.cwd, rings=rings))


def start_kernel(guest: KernelServices, kernels: Kernels, argv: list[str], env: dict[str, str], cwd: str, *, rings: bool) -> Kernel:
    """Start a kernel's program as ``user``.

    Args:
        guest: Objects of the guest.
        kernels: All contexts.
        argv: The program; the number of its socket is added, and that of its bell.
        env: As ``Kernel.env``.
        cwd: Its folder.
        rings: Whether it has a bell.

    Raises:
        RpcError: It cannot be started.
    """
    ends = Ends(rings=rings)
    try:
        theirs = [ends.theirs.fileno(), *([ends.bell_theirs] if rings else [])]
        pipes = (guest.spawner.dev_null, ends.out_theirs, ends.err_theirs)
        pid = guest.spawner.spawn([*argv, *map(str, theirs)], lookup_account("user"), pipes, None, env=env, cwd=cwd, keep=theirs)
        guest.children.add(pid, KernelChild(kernels, pid))
    except BaseException:
        ends.close()
        raise
    finally:
        ends.given()
    return Kernel(guest, pid, ends, kernels.new_number(), env)
