"""Promise: while bombs go off in some sandboxes, others answer, and the service neither grows nor loses a descriptor.

Each call has a fixed and generous deadline: no sandbox is starved, but nothing is said about speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from sandlot import Sandbox
from tests.support.bombs import PREAMBLE
from tests.support.bystanders import outcome
from tests.support.localservice import ISOLATIONS, LocalService
from tests.support.traces import NOTHING, memory_bytes, settle

NEIGHBOURS = 6
DEADLINE_S = 30.0
"""For one call of a neighbour; seen: less than half a second, on two cores with nothing else to do."""
ROUNDS = 3
"""Of calls of each neighbour while the bombs go off."""
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


GVISOR, CONTAINER = ISOLATIONS
TOGETHER = (
    ("memory", GVISOR),
    ("memory", CONTAINER),
    ("forks of root", GVISOR),
    ("threads", CONTAINER),
    ("disk", GVISOR),
    ("descriptors", CONTAINER),
    ("output", GVISOR),
    ("every processor", CONTAINER),
    ("calls into the kernel", GVISOR),
    ("syncing", CONTAINER),
)
"""Bombs that go off at once in every run, and the isolation of their sandboxes."""
GROUPS = 4
ALL = [tuple((name, isolation) for name in list(BOMBS)[group::GROUPS] for isolation in ISOLATIONS) for group in range(GROUPS)]
"""Every bomb on both isolation types."""


def use(sandbox: Sandbox) -> tuple[list[str], float]:
    """Use a neighbour; return wrong results of its calls, and the seconds of the longest call."""
    longest_s, wrong = 0.0, []
    calls: tuple[tuple[Callable[[], object], object], ...] = (
        (lambda: sandbox.commands.run(["echo", "here"], timeout=60).stdout, "here\n"),
        (lambda: sandbox.run_code("mine", timeout=60).text, "42"),
        (lambda: sandbox.files.read("/workspace/mine"), "mine"),
    )
    for call, right in calls * ROUNDS:
        began_s = time.monotonic()
        found = outcome(call)
        longest_s = max(longest_s, time.monotonic() - began_s)
        if found != right:
            wrong.append(repr(found))
    return wrong, longest_s


@pytest.fixture(scope="module")
def isolation() -> str:
    """Bombs and neighbours have either isolation type, whatever is the service's default."""
    return GVISOR


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


@pytest.mark.parametrize("bombs", [TOGETHER, *(pytest.param(group, marks=pytest.mark.soak) for group in ALL)])
def test_neighbours_respond_during_bombs(service: LocalService, neighbours: list[Sandbox], bombs: Sequence[tuple[str, str]]) -> None:
    refs = service.refs()
    memory_before = memory_bytes(service.pid)
    with ExitStack() as ending:
        bombed = [ending.enter_context(service.create(isolation=isolation, memory="256M", disk="16M", pids=64)) for _, isolation in bombs]
        for sandbox, (name, _) in zip(bombed, bombs, strict=True):
            user, program = BOMBS[name]
            sandbox.commands.run(["python3", "-SI", "-c", f"{PREAMBLE}\n{program}"], user=user, background=True)
        with ThreadPoolExecutor(len(neighbours)) as pool:
            used = list(pool.map(use, neighbours))
    assert [wrong for wrong, _ in used if wrong] == []
    assert max(longest_s for _, longest_s in used) < DEADLINE_S
    assert memory_bytes(service.pid) - memory_before < FLAT_BYTES
    settle(lambda: service.traces(keep=refs), NOTHING)


def test_service_keeps_no_memory_or_descriptor_after_bombs(service: LocalService, neighbours: list[Sandbox]) -> None:
    """After all of them: the last of this file."""
    opened = service.descriptors()
    memory_before = memory_bytes(service.pid)
    for sandbox in neighbours:
        assert sandbox.run_code("mine").text == "42"
        assert sandbox.commands.run("yes | head -c 3000000").stdout_omitted_bytes
    settle(service.descriptors, opened)
    assert memory_bytes(service.pid) - memory_before < FLAT_BYTES
