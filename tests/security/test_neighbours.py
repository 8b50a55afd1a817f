"""Promise: while bombs go off in some sandboxes, ten others answer, and the service neither grows nor loses a descriptor.

Each call has a fixed and generous deadline: no sandbox is starved, but nothing is said about speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from sandlot import Sandbox, SandlotError
from tests.support.bombs import PREAMBLE
from tests.support.localservice import ISOLATIONS, LocalService, local_service
from tests.support.traces import NOTHING, memory_bytes, settle

NEIGHBOURS = 10
DEADLINE_S = 30.0
"""For one call of a neighbour; seen: less than half a second, on two cores with nothing else to do."""
EXPLODES_S = 3
GROUPS = 4
"""Bombs go off in as many groups, those of a group at once: each has a sandbox of either isolation type."""
FLAT_BYTES = 64 << 20

BOMBS = {
    "memory": ("user", "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))"),
    "forks": ("user", "while True:\n    try: os.fork()\n    except OSError: pass"),
    "forks of root": ("root", "while True:\n    try: os.fork()\n    except OSError: pass"),
    "threads": ("user", "while True:\n    try: threading.Thread(target=hold).start()\n    except RuntimeError: pass"),
    "disk": (
        "user",
        "while True:\n    with open('/tmp/big', 'wb', buffering=0) as file:\n        until_refused(lambda _: file.write(bytes(1 << 20)))",
    ),
    "files": ("user", "os.chdir('/tmp')\nfor n in itertools.count(): os.close(os.open(str(n % 20000), os.O_CREAT | os.O_WRONLY))"),
    "descriptors": ("user", "held = []\nwhile True:\n    try: held.append(os.open('/dev/null', 0))\n    except OSError: pass"),
    "terminals": ("user", "held = []\nwhile True:\n    try: held.append(os.openpty())\n    except OSError: time.sleep(0.01)"),
    "output": ("user", "while True: os.write(1, b'y' * 65536)"),
    "every processor": ("root", "for _ in range(30):\n    if not os.fork(): break\ntry: os.nice(-20)\nexcept OSError: pass\nwhile True: pass"),
    "signals": ("root", "for _ in range(4): os.fork()\nwhile True:\n    try: os.kill(-1, signal.SIGCHLD)\n    except OSError: pass"),
    "calls into the kernel": ("user", "for _ in range(8): os.fork()\nwhile True: os.sched_yield()"),
    "syncing": (
        "user",
        "while True:\n    with open('/tmp/f', 'wb') as file:\n        file.write(bytes(1 << 20))\n        os.fsync(file.fileno())\n    os.sync()",
    ),
}


class Neighbour(threading.Thread):
    """One that uses its own sandbox all the time, and notes how long the longest call took."""

    def __init__(self, sandbox: Sandbox, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._sandbox = sandbox
        self._over = over
        self.calls = 0
        self.longest_s = 0.0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            calls: tuple[tuple[Callable[[], object], object], ...] = (
                (lambda: self._sandbox.commands.run(["echo", "here"], timeout=60).stdout, "here\n"),
                (lambda: self._sandbox.run_code("mine", timeout=60).text, "42"),
                (lambda: self._sandbox.files.read("/workspace/mine"), "mine"),
            )
            for call, right in calls:
                began_s = time.monotonic()
                try:
                    found: object = call()
                except SandlotError as error:
                    found = error
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.calls += 1
                if found != right:
                    self.wrong.append(repr(found))
            self._over.wait(0.2)


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """A service for both isolation types, because bombs and neighbours are of either."""
    with local_service(isolation=ISOLATIONS[0]) as running:
        yield running


@pytest.fixture(scope="module")
def neighbours(service: LocalService) -> Iterator[list[Sandbox]]:
    """Half of each kind."""
    made = []
    for number in range(NEIGHBOURS):
        made.append(service.create(isolation=ISOLATIONS[number % len(ISOLATIONS)], memory="128M", disk="32M", pids=32, timeout=3600))
        assert made[-1].run_code("mine = 42").ok
        made[-1].files.write("/workspace/mine", "mine")
    yield made
    for one in made:
        one.kill()


@pytest.mark.parametrize("group", range(GROUPS))
def test_others_answer_while_a_bomb_goes_off(service: LocalService, neighbours: list[Sandbox], group: int) -> None:
    refs = service.refs()
    memory_before = memory_bytes(service.pid)
    over = threading.Event()
    threads = [Neighbour(sandbox, over) for sandbox in neighbours]
    with ExitStack() as ending:
        for name in list(BOMBS)[group::GROUPS]:
            user, program = BOMBS[name]
            for isolation in ISOLATIONS:
                bombed = ending.enter_context(service.create(isolation=isolation, memory="256M", disk="64M", pids=64))
                bombed.commands.run(["python3", "-SI", "-c", f"{PREAMBLE}\n{program}"], user=user, background=True)
        for thread in threads:
            thread.start()
        time.sleep(EXPLODES_S)
        over.set()
        for thread in threads:
            thread.join(10 * DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert [thread.wrong for thread in threads if thread.wrong] == []
    assert min(thread.calls for thread in threads) >= 3
    assert max(thread.longest_s for thread in threads) < DEADLINE_S
    assert memory_bytes(service.pid) - memory_before < FLAT_BYTES
    settle(lambda: service.traces(keep=refs), NOTHING)


def test_the_service_is_as_it_was(service: LocalService, neighbours: list[Sandbox]) -> None:
    """After all of them: the last of this file."""
    opened = service.descriptors()
    memory_before = memory_bytes(service.pid)
    for _ in range(2):
        for sandbox in neighbours:
            assert sandbox.run_code("mine").text == "42"
            assert sandbox.commands.run("yes | head -c 3000000").stdout_omitted
    settle(service.descriptors, opened)
    assert memory_bytes(service.pid) - memory_before < FLAT_BYTES
