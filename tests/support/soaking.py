"""A soak: many clients use a service at random for a while, on every kind of isolation, and nothing may go wrong or be left.

Laws:
- Everything that is done at random comes from one seed, which is told.
- Whatever a client does has results that it knows beforehand. Anything else is a failure, told with what that client did before.
- Only what chaos explains is excused: a service that was killed meanwhile, one that is full, a sandbox that its own bomb ended.
- A sandbox outlives its service: after a restart it runs and has its files, unless what was done in it may have ended it.
- Nothing takes longer than ``PATIENCE_S``: that is a hang, and a failure.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from sandlot.sdk import Client
from tests.support.localservice import ISOLATIONS, TEMPLATE, LocalService
from tests.support.soakwork import WORK, Unexpected, Work, expect
from tests.support.traces import memory_bytes

PATIENCE_S = 240.0
"""For one step of a client, on a machine that does much else."""
HISTORY = 40
GROWTH_BYTES = 96 << 20
"""What a service may have grown by at its end: what it keeps of ended sandboxes, and what its allocator does not give back."""
SIZES = ("96M", "128M", "192M")


@dataclass
class Tally:
    """What happened, shared by all clients."""

    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lives: list[tuple[float, int, int]] = field(default_factory=list)
    """Of each service process: seconds, bytes of memory after its start, bytes before its end."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """One more."""
        with self.lock:
            self.done[what] += 1

    def table(self) -> str:
        """The figures, for people."""
        return "\n".join(f"{number:7d}  {what}" for what, number in sorted(self.done.items()))


class Chaos:
    """Ends the service now and then and starts it again. ``epoch`` is moved before the one and after the other."""

    def __init__(self, service: LocalService, tally: Tally, seed: int, pause_s: float) -> None:
        self.epoch = 0
        self.down = False
        self._service = service
        self._tally = tally
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._memory_bytes = memory_bytes(service.pid)
        self._began_s = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``."""
        while not stop.wait(self._pause_s * self._random.uniform(0.5, 1.5)):
            self.restart(signal.SIGKILL if self._random.random() < 0.8 else signal.SIGTERM)

    def restart(self, number: signal.Signals) -> None:
        """End the service, once, and start it again."""
        assert self._service.is_alive(), self._service.log()
        self.measure()
        self.down, self.epoch = True, self.epoch + 1
        status = self._service.end(number)
        if number == signal.SIGTERM and status:
            self._tally.failures.append(f"the service ended with {status} at SIGTERM\n{self._service.log()}")
        self._tally.count(f"service {number.name}")
        self._service.start()
        self._began_s, self._memory_bytes = time.monotonic(), memory_bytes(self._service.pid)
        self.down, self.epoch = False, self.epoch + 1

    def measure(self) -> None:
        """Look at the service's memory at the end of its life."""
        now = memory_bytes(self._service.pid)
        self._tally.lives.append((time.monotonic() - self._began_s, self._memory_bytes, now))
        if now - self._memory_bytes > GROWTH_BYTES:
            self._tally.failures.append(f"the service grew from {self._memory_bytes >> 20} to {now >> 20} MiB")


class Calm:
    """No chaos at all."""

    epoch = 0
    down = False


class Worker:
    """One client: makes a sandbox, does some things in it, ends it in some way, again and again.

    Args:
        client: How it reaches the service.
        chaos: What may happen to the service meanwhile.
        tally: Where it counts.
        seed: Where its choices come from.
        work: What it may do.
    """

    def __init__(self, client: Client, chaos: Chaos | Calm, tally: Tally, seed: int, work: Sequence[Work] = WORK) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.history: deque[str] = deque(maxlen=HISTORY)
        self.since_s = time.monotonic()
        self._work = work
        self._chaos = chaos
        self._tally = tally

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``, or the first failure of anybody."""
        try:
            while not stop.is_set() and not self._tally.failures:
                self._one_sandbox(stop)
        except BaseException:  # noqa: BLE001 - told with what came before
            self._fail(traceback.format_exc())
        finally:
            self.client.close()

    def _one_sandbox(self, stop: threading.Event) -> None:
        isolation, memory = self.random.choice(ISOLATIONS), self.random.choice(SIZES)
        made: list[Sandbox] = []

        def create() -> None:
            made.append(Sandbox.create(TEMPLATE, client=self.client, isolation=isolation, memory=memory, disk="64M", pids=48, cpus=0.5, timeout=600))

        if not self._step(f"create {isolation}", create):
            time.sleep(self.random.uniform(0.1, 1.0))
            return
        sandbox, lives = made[0], True
        mark = f"{self.random.getrandbits(60):x}"
        marked = self._step("mark", lambda: sandbox.files.write("/home/user/mark", mark))
        for _ in range(self.random.randint(1, 8)):
            work = self.random.choices(self._work, weights=[each.weight for each in self._work])[0]
            epoch = self._chaos.epoch
            lives = self._step(f"{work.name} {isolation}", lambda work=work: work.do(sandbox, self.random, self.client), work) and not work.last  # type: ignore[misc]
            if epoch != self._chaos.epoch and marked and not (work.may_end or work.last):
                lives = self._survived(sandbox, mark)
            if not lives or stop.is_set():
                break
        while not self._step(f"kill {isolation}", lambda: self.client.sandboxes.kill(sandbox.id)) and not self._tally.failures:
            time.sleep(0.1)
        if self.random.random() < 0.2:
            self._step(f"kill again {isolation}", lambda: self.client.sandboxes.kill(sandbox.id))

    def _survived(self, sandbox: Sandbox, mark: str) -> bool:
        def look() -> None:
            expect(sandbox.info().state, "running")
            expect(sandbox.files.read("/home/user/mark"), mark)

        while not self._step("survived", look) and not self._tally.failures:
            time.sleep(0.1)
        return True

    def _step(self, what: str, do: Callable[[], object], work: Work | None = None) -> bool:
        """Do one thing; whether it was done, and the sandbox may be used further."""
        epoch, down = self._chaos.epoch, self._chaos.down
        self.since_s = time.monotonic()
        self.history.append(f"{time.strftime('%H:%M:%S')} {what}")
        try:
            do()
        except SandlotError as error:
            verdict = self._excuse(error, chaotic=down or epoch != self._chaos.epoch or self._chaos.down, work=work)
            self.history[-1] += f" -> {error.code} {dict(error.fields).get('reason', '')} ({verdict or 'NOT EXCUSED'})"
            if verdict is None:
                self._fail(f"{error!r} {dict(error.fields)}")
            self._tally.count(f"{what}: {verdict}")
            return False
        except (Unexpected, AssertionError):
            # A service that is killed meanwhile cuts answers short; one that lives must give what was asked for.
            if not (down or epoch != self._chaos.epoch):
                raise
            self._tally.count(f"{what}: cut by a restart")
            return False
        finally:
            self.since_s = time.monotonic()
        self._tally.count(what)
        return True

    def _excuse(self, error: SandlotError, *, chaotic: bool, work: Work | None) -> str | None:
        if chaotic and error.code in {ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_STOPPING}:
            return "cut by a restart"
        if chaotic and error.code is ErrorCode.SANDBOX_ENDED and work is not None and (work.may_end or work.last):
            return "ended while its service was away"
        if error.code is ErrorCode.BUSY:
            return "full"
        if error.code is ErrorCode.SANDBOX_ENDED and work is not None and str(error.fields.get("reason")) in work.may_end:
            return f"ended {error.fields.get('reason')}"
        return None

    def _fail(self, why: str) -> None:
        lines = "\n".join(self.history)
        self._tally.failures.append(f"{why}\nwhat this client did before:\n{lines}")


def soak(service: LocalService, *, seconds: float, seed: int, clients: int = 6, chaos_pause_s: float = 15.0) -> Tally:
    """Let clients loose on a service that runs, and wait until they are done; the service runs afterwards.

    Args:
        service: It.
        seconds: How long.
        seed: Where all that is random comes from.
        clients: How many at once.
        chaos_pause_s: About how long a service lives.
    """
    tally, stop, calm = Tally(), threading.Event(), threading.Event()
    chaos = Chaos(service, tally, seed, chaos_pause_s)
    workers = [Worker(Client(data_dir=service.data_dir, autostart=False), chaos, tally, seed + number + 1) for number in range(clients)]
    threads = [threading.Thread(target=worker.run, args=(stop,), daemon=True) for worker in workers]

    def rage() -> None:
        try:
            chaos.run(calm)
        except BaseException:  # noqa: BLE001 - told like any failure
            tally.failures.append(traceback.format_exc())

    raging = threading.Thread(target=rage, daemon=True)
    for thread in (*threads, raging):
        thread.start()
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s and not tally.failures:
        time.sleep(0.5)
        _watch(workers, threads, tally, service)
    calm.set()
    raging.join(120)
    stop.set()
    while any(thread.is_alive() for thread in threads) and not any("hangs" in why for why in tally.failures):
        time.sleep(0.2)
        _watch(workers, threads, tally, service)
    if not tally.failures:
        chaos.measure()
    return tally


def crowd(service: LocalService, clients: Sequence[Client], *, seconds: float, seed: int, looks: int = 5) -> tuple[Tally, list[int]]:
    """Let a crowd do what no sandbox ends of, and look at the service's memory meanwhile.

    Args:
        service: It.
        clients: Each is one of them.
        seconds: How long.
        seed: Where all that is random comes from.
        looks: How often its memory is looked at, evenly.

    Returns:
        What happened, and bytes at each look.
    """
    tally, stop, seen = Tally(), threading.Event(), list[int]()
    work = [each for each in WORK if not (each.may_end or each.last)]
    workers = [Worker(client, Calm(), tally, seed + number, work) for number, client in enumerate(clients)]
    threads = [threading.Thread(target=worker.run, args=(stop,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for _ in range(looks):
        ends_s = time.monotonic() + seconds / looks
        while time.monotonic() < ends_s and not tally.failures:
            time.sleep(0.5)
            _watch(workers, threads, tally, service)
        seen.append(memory_bytes(service.pid))
    stop.set()
    while any(thread.is_alive() for thread in threads) and not any("hangs" in why for why in tally.failures):
        time.sleep(0.2)
        _watch(workers, threads, tally, service)
    return tally, seen


def _watch(workers: Sequence[Worker], threads: Sequence[threading.Thread], tally: Tally, service: LocalService) -> None:
    for worker, thread in zip(workers, threads, strict=True):
        spent_s = time.monotonic() - worker.since_s
        if thread.is_alive() and spent_s > PATIENCE_S:
            frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the way to another thread's stack
            where = "".join(traceback.format_stack(frame)) if frame is not None else ""
            tally.failures.append(f"a client hangs for {spent_s:.0f} s\n{where}\n" + "\n".join(worker.history))
            with suppress(Exception):
                tally.failures.append(service.log())
            return
