"""Kernels made ahead: a zygote that has imported what kernels import, and one kernel forked from it that waits for its context.

Laws:
- Started a second after the sandbox begins a life, when nothing else runs, or at the first need; an image without IPython gets none,
  but where it is asked for (``guest.warm``): what a template's snapshot holds need not be started by those that are restored from it.
- Ahead of any need none is begun while a command runs, and one that is importing stands still: sandboxes are for programs, too.
- A spare is given away only while what its zygote has imported is what lies on the disk, and only to who has the same environment
  in all that is read when a program starts. Otherwise kernels are started directly.
- The zygote runs as ``user`` and may say anything: a pid is taken for a kernel's only where it is a child of PID 1's, of that user,
  and known as nothing else.
- Whoever waits is answered: with a kernel, or with none after ``START_S``, or ``ANSWER_S`` where all is imported. A zygote that
  has not answered by then is ended, so that nobody else waits for it.
- Where memory is dearer than the next kernel (``guest.warm``, lean) the zygote ends when the spare is there. Another one is begun when
  somebody asks for a kernel and there is no spare, not before.
- What was made ahead in one life is kept for the next where a program that starts then would find the same. Its randomness is that
  of the life in which it is given away.
"""

from __future__ import annotations

import os

from sandlot.guest.kernels import languages
from sandlot.guest.kernels.ends import Ends
from sandlot.guest.kernels.kernel import Kernel
from sandlot.guest.kernels.services import KernelChild
from sandlot.guest.kernels.zygote import Zygote, may_be_forked
from sandlot.guest.loop import log
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol.fast_imports import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.kernels.service import Kernels
    from sandlot.guest.kernels.services import KernelServices
    from sandlot.guest.loop import Timer

    Taker = Callable[[Kernel | None], object]

AHEAD_S = 1.0
"""After the begin of a life, and after a command's end. Who lives as briefly is spared the imports: 0.3 to 1.5 s of a processor in gVisor."""
TRIES = 25
REFILL_S = 0.25
"""After a spare was taken: its first cell has the processors for itself."""
START_S, ANSWER_S = 15.0, 5.0
FAILURES = 3
"""A zygote that ended so often before it gave a kernel is not started again."""
LOOK_S, LOOKS = 0.005, 1000
LEAST_BYTES = 256 << 20
"""Where the sandbox has less memory, it is not spent ahead."""


class Spares:
    """The zygote, the spare, and who waits for one."""

    __slots__ = (
        "_asked",
        "_failures",
        "_forking",
        "_guest",
        "_is_lean",
        "_is_put_off",
        "_kernels",
        "_origin",
        "_patience",
        "_spare",
        "_timer",
        "_tries",
        "_waiting",
        "_warming",
        "_zygote",
    )

    def __init__(self, guest: KernelServices, kernels: Kernels) -> None:
        self._guest = guest
        self._kernels = kernels
        self._zygote: Zygote | None = None
        self._spare: Kernel | None = None
        self._forking: Ends | None = None
        self._asked: dict[str, int] | None = None
        self._waiting: deque[Taker] = deque()
        self._warming: list[Callable[[bool], object]] = []
        self._timer: Timer | None = None
        self._patience: Timer | None = None
        self._tries = 0
        self._failures = 0
        self._is_put_off = False
        self._is_lean = False
        self._origin: Zygote | None = None
        """What the spare was forked from, which may be gone: what it says of the environment and the disk holds for the spare."""

    def woken(self, env: dict[str, str], python: str | None) -> None:
        """The sandbox begins a life: make kernels ahead, where that is worth it.

        Args:
            env: All of the user's environment.
            python: The image's; None where it has none.
        """
        self._failures = self._tries = 0
        origin = self._zygote or self._origin
        if origin is not None and (origin.env, origin.python) != (languages.early(env), python):
            self.drop()
        if self._spare is not None:
            # Its context will say so again. But after a sleep a process takes its time to come to itself, and now nobody waits for it.
            self._spare.wake(dict(self._guest.identity.env), self._guest.identity.fresh_entropy(), "")
        if not self._is_lean and (self._is_affordable if self._zygote is not None or self._spare is not None else self._suits(env)):
            self._later(AHEAD_S)

    def warm(self, done: Callable[[bool], object], *, lean: bool = False) -> None:
        """Make the zygote and the spare now, whatever else runs.

        Args:
            done: Called once, with whether they are there and at rest.
            lean: Whether the zygote ends then.
        """
        self._is_lean = lean
        if self._zygote is None and self._spare is not None and lean:
            self._rehearse(self._spare, done)
            return
        zygote = self._zygote
        if zygote is None and self._python(self._environment()) is not None:
            zygote = self._begin()
        if zygote is None:
            done(False)
            return
        self._warming.append(done)
        zygote.hold(still=False)
        if self._spare is None:
            self._go_on()
        else:
            self._spare.when_heard(lambda: self._warmed(there=True))

    def _rehearse(self, spare: Kernel, done: Callable[[bool], object]) -> None:
        """Let it run a cell unheard: where it was restored since it was made, whatever it touches first takes its time."""
        before = spare.unread()
        spare.send({"op": "rehearse"})

        def look(left: int) -> None:
            if left and spare is self._spare and spare.unread() == before:
                self._guest.loop.call_later(LOOK_S, lambda: look(left - 1))
            else:
                done(spare is self._spare)

        look(LOOKS)

    def _warmed(self, *, there: bool) -> None:
        warming, self._warming = self._warming, []
        if warming and there and self._is_lean and self._zygote is not None and self._spare is not None and not self._waiting:
            self._origin, self._zygote = self._zygote, None
            self._origin.close()
        for done in warming:
            done(there)

    def take(self, env: dict[str, str], taker: Taker) -> bool:
        """Ask for a kernel.

        Args:
            env: The environment that it is to have.
            taker: Called with it, now or later; with None where there is none after all.

        Returns:
            Whether ``taker`` will be called, or was.
        """
        if languages.early(env) != languages.early(self._guest.identity.env):  # what an account has besides is none of these
            return False
        if self._zygote is None and self._spare is not None and self._origin is not None and self._is_affordable:
            if languages.changed(self._origin.seen) == self._origin.seen:
                spare, self._spare = self._spare, None
                taker(spare)
                return True
            self.drop()
        zygote = self._zygote
        if zygote is None and self._suits(self._environment()):
            zygote = self._begin()
        if zygote is None or not self._is_affordable:
            return False
        self._waiting.append(taker)
        zygote.hold(still=False)
        if self._patience is None:
            self._patience = self._guest.loop.call_later(ANSWER_S if zygote.is_warm else START_S, self._ended)
        self._go_on()
        return True

    def make_way(self) -> None:
        """A command runs: whoever imports for a need that may never come waits for its end."""
        zygote = self._zygote
        if zygote is not None and not zygote.is_warm and not self._waiting:
            zygote.hold(still=True)

    def commands_ended(self) -> None:
        """No command runs any more: go on with what was put off for them."""
        if self._zygote is not None:
            self._zygote.hold(still=False)
        elif self._is_put_off:
            self._later(AHEAD_S)
        elif self._spare is not None and self._origin is not None and languages.changed(self._origin.seen) != self._origin.seen:
            self.drop()  # a command has installed something: whoever asks next is to wait as little as can be
            self._later(AHEAD_S)

    def settle(self) -> None:
        """Nothing runs just now: refill."""
        if self._zygote is not None and self._spare is None and self._timer is None:
            self._later(REFILL_S)

    def reaped(self, pid: int) -> bool:
        """A child ended; whether it was one of these."""
        if self._zygote is not None and pid == self._zygote.pid:
            self._ended()
            return True
        if self._spare is not None and pid == self._spare.pid:
            spare, self._spare = self._spare, None
            spare.discard()
            self._warmed(there=False)
            return True
        return False

    def pids(self) -> list[int]:
        """What runs ahead."""
        return [each.pid for each in (self._zygote, self._spare) if each is not None]

    def drop(self) -> None:
        """End the zygote and the spare; who waits waits on."""
        zygote, self._zygote = self._zygote, None
        spare, self._spare = self._spare, None
        forking, self._forking = self._forking, None
        self._asked = self._origin = None
        self._is_lean = False
        if zygote is not None:
            zygote.close()
        if spare is not None:
            spare.discard()
        if forking is not None:
            forking.close()

    # -- when -----------------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._guest.loop.call_later(delay_s, self._ahead)

    def _ahead(self) -> None:
        """Make ready what somebody may need, where nothing else runs."""
        self._timer = None
        self._is_put_off = self._zygote is None and bool(self._guest.processes.running())
        if self._is_put_off:
            return
        self._tries += 1
        if self._tries < TRIES and (self._guest.processes.running() or (self._zygote is not None and self._kernels.is_busy())):
            self._later(AHEAD_S)
            return
        self._tries = 0
        if self._zygote is None and (self._spare is not None or not self._suits(self._environment()) or self._begin() is None):
            return
        self._go_on()

    @property
    def is_up(self) -> bool:
        """Whether there is a zygote or a spare, and so a python."""
        return self._spare is not None or (self._zygote is not None and self._zygote.is_up)

    @property
    def _is_affordable(self) -> bool:
        memory = self._kernels.memory
        return self._failures < FAILURES and not (memory.limit_bytes and memory.limit_bytes < LEAST_BYTES)

    def _python(self, env: dict[str, str]) -> str | None:
        """The image's, where there is memory for what is made ahead."""
        return languages.find_python(env) if self._is_affordable else None

    def _suits(self, env: dict[str, str]) -> bool:
        """Whether it pays without being asked for: whether the image has what takes its time to be imported."""
        python = self._python(env)
        return python is not None and any(os.path.isdir(f"{folder}/IPython") for folder in languages.site_places(python, env["HOME"]))

    def _environment(self) -> dict[str, str]:
        return build_environment(lookup_account("user"), self._guest.identity.env)

    def _look(self) -> dict[str, int]:
        """When the folders of what is installed last changed."""
        env = self._environment()
        return languages.site_places(languages.find_python(env) or "/usr/bin/python3", env["HOME"])

    # -- what -----------------------------------------------------------------------------------------------------------

    def _begin(self) -> Zygote | None:
        try:
            self._zygote = Zygote(self._guest, self._environment(), self._look(), self._on_message, self._ended)
        except Exception as error:  # noqa: BLE001 - kernels are started without one then
            log(f"no zygote: {error}")
            self._failures = FAILURES
            return None
        self._guest.children.add(self._zygote.pid, KernelChild(self._kernels, self._zygote.pid))
        return self._zygote

    def _go_on(self) -> None:
        """The next step for whoever waits, or towards a spare."""
        zygote = self._zygote
        if zygote is None or not zygote.is_up or self._forking is not None or self._asked is not None:
            return
        if languages.changed(zygote.seen) != zygote.seen:
            seen = self._look()  # there may be others
            if zygote.send({"op": "check"}):
                self._asked = seen
            else:
                self._ended()
        elif self._spare is not None:
            if self._waiting:
                spare, self._spare = self._spare, None
                self._give(spare)
        elif self._waiting or zygote.is_warm:  # a spare without what is still being imported would be a poor one
            self._fork(zygote)

    def _fork(self, zygote: Zygote) -> None:
        ends = Ends(rings=True)
        sent = zygote.send({"op": "fork"}, (ends.theirs.fileno(), ends.out_theirs, ends.err_theirs, ends.bell_theirs))
        ends.given()
        if sent:
            self._forking = ends
        else:
            ends.close()
            self._ended()

    def _give(self, kernel: Kernel) -> None:
        self._warmed(there=True)
        taker = self._waiting.popleft()
        if not self._waiting and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        taker(kernel)
        if self._waiting:
            self._go_on()
        else:
            self._later(REFILL_S)

    def _on_message(self, message: dict[str, Any]) -> None:
        zygote = self._zygote
        if zygote is None:
            return
        kind = message["event"]
        if kind in {"ready", "warm"}:
            zygote.is_up = True
            zygote.is_warm = kind == "warm" or message.get("warm") is not False
            self._go_on()
        elif kind == "fresh" and self._asked is not None:
            seen, self._asked = self._asked, None
            if message["fresh"]:
                zygote.seen = seen
            else:
                self.drop()
                if self._begin() is None:
                    self._give_up()
            self._go_on()
        elif kind == "forked" and self._forking is not None:
            ends, self._forking = self._forking, None
            pid = message["pid"]
            if not may_be_forked(pid) or pid in self._guest.children:
                ends.close()
                raise ValueError(pid)
            self._failures = 0
            kernel = Kernel(self._guest, pid, ends, self._kernels.new_number(), zygote.given)
            self._guest.children.add(pid, KernelChild(self._kernels, pid))
            if self._waiting:
                self._give(kernel)
            else:
                self._spare = kernel
                if self._warming:
                    kernel.when_heard(lambda: self._warmed(there=True))

    def _ended(self) -> None:
        """The zygote is gone, or makes no sense."""
        self._failures += 1
        self.drop()
        self._give_up()

    def _give_up(self) -> None:
        """Nobody waits any longer."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._warmed(there=False)
        waiting, self._waiting = self._waiting, deque()
        for taker in waiting:
            taker(None)
