"""The service is killed again and again under load, and no client loses anything that it was told of.

Real sandboxes of both kinds of isolation, a service that is a process of its own, clients in threads that check every answer. Each kill is
aimed at something that is under way and told with all that was; ``tests/soak`` has more of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.fatal import DIE_AFTER
from tests.support.localservice import ISOLATIONS, LocalService
from tests.support.ordeal import Client, Ordeal
from tests.support.ordealwork import Cells, Flood, Lives, Store, Tenant, Terminal, Upload
from tests.support.traces import NOTHING, settle, traces

pytestmark = pytest.mark.slow

MB = 1 << 20
AIM_S = 20.0
"""For the moment that a kill waits for; where it does not come, the kill comes anyway, and says so."""


@dataclass(frozen=True, slots=True)
class Kill:
    """When to kill.

    Args:
        what: What a client must be at.
        value: How far.
        delay_s: How much later, at random up to this.
        writes: Instead: the service kills itself after so many more writes of a transfer to a guest.
        again: Kill the next one too, while it starts.
    """

    what: str
    value: int = 0
    delay_s: float = 0.0
    writes: int = 0
    again: bool = False


KILLS = (
    Kill("cell", delay_s=0.2),
    Kill("upload", 8 * MB),
    Kill("create", delay_s=0.05),
    Kill("small upload", writes=100),
    Kill("flood"),
    Kill("delete", delay_s=0.01),
    Kill("create", delay_s=0.4, again=True),
    Kill("cell", delay_s=0.3),
    Kill("command", delay_s=0.02),
    Kill("upload", writes=1800),
    Kill("keep", 500_000),
    Kill("keep", delay_s=0.3),
    Kill("terminal"),
    Kill("upload", 18 * MB),
    Kill("create"),
    Kill("cell", delay_s=0.5, again=True),
    Kill("terminal", delay_s=0.05),
    Kill("small upload", delay_s=0.02),
)
"""20 with the two that come again."""

EVERY_DAY = (
    Kill("cell", delay_s=0.2),
    Kill("small upload", writes=100),
    Kill("create", delay_s=0.05, again=True),
    Kill("delete", delay_s=0.01),
    Kill("flood"),
    Kill("command", delay_s=0.02),
    Kill("keep", 500_000),
    Kill("terminal"),
)
"""One at each thing that may be under way, and one that comes again."""


@pytest.fixture
def service() -> Iterator[LocalService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    env = {"SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS), "PYTHONPATH": path}
    made = LocalService(folder, env, program="tests.support.fatal")
    try:
        yield made
    finally:
        try:
            made.end(signal.SIGKILL)
            made.start()
            for left in made.client.sandboxes.list():  # of a test that failed
                made.client.sandboxes.kill(left.id)
            settle(lambda: len(made.traces().cgroups), 0)
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(EVERY_DAY, id="at each thing once", marks=pytest.mark.timeout(600)),
        pytest.param(10 * KILLS, id="200 times", marks=[pytest.mark.soak, pytest.mark.timeout(3500)]),
    ],
)
def test_clients_lose_nothing_when_the_service_is_killed(service: LocalService, kills: Sequence[Kill], capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SANDLOT_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    source, said = random.Random(seed), [f"seed {seed}"]
    service.start()
    ordeal = Ordeal(service.data_dir / "sandlot.sock")
    clients = clients_of(ordeal, seed)
    for client in clients:
        client.start()
    for client in clients:
        assert client.ready.wait(120), client.doing
    try:
        for number, kill in enumerate(kills):
            if ordeal.failures:
                break
            said.append(f"{number + 1:3d} {strike(service, ordeal, kill, source)}: " + "; ".join(f"{each.name} {each.doing}" for each in clients))
            if kill.again:
                begun(service, source.uniform(0.1, 1.2))
                ordeal.killed_at_s.append(time.monotonic())
            service.start()
    finally:
        ordeal.stopped.set()
        for client in clients:
            client.join(120)
    said += [f"{each.name}: {each.steps} steps, {each.cuts} times cut" for each in clients]
    with capsys.disabled():
        print("", *said, *ordeal.failures, sep="\n")
    assert ordeal.failures == []
    assert [each.doing for each in clients] == ["is done"] * len(clients)
    assert [each.name for each in clients if not each.cuts] == []
    nothing_is_left(service, clients)


def clients_of(ordeal: Ordeal, seed: int) -> list[Client]:
    """Who does what, and where."""
    return [
        Cells(ordeal, "cells", seed + 1, isolation="gvisor"),
        Cells(ordeal, "cells in a container", seed + 2, isolation="container"),
        Flood(ordeal, "flood", seed + 3, isolation="gvisor", limits={"cpus": 0.25, "memory_bytes": 256 * MB, "disk_bytes": 64 * MB}),
        Upload(ordeal, "upload", seed + 4, isolation="gvisor"),
        Terminal(ordeal, "terminal", seed + 7, isolation="container"),
        Lives(ordeal, "lives", seed + 5),
        Store(ordeal, "file store", seed + 6),
    ]


def strike(service: LocalService, ordeal: Ordeal, kill: Kill, source: random.Random) -> str:
    """Wait for the moment and kill; what was aimed at."""
    ordeal.aim(kill.what, kill.value)
    came = "" if ordeal.hit(AIM_S) else ", which did not come"
    if kill.writes:
        file = service.data_dir / DIE_AFTER
        file.with_suffix(".new").write_text(str(kill.writes), encoding="ascii")
        file.with_suffix(".new").replace(file)
        ends_s = time.monotonic() + AIM_S
        while service.is_alive() and time.monotonic() < ends_s:
            time.sleep(0.005)
        file.unlink(missing_ok=True)
    else:
        time.sleep(source.uniform(0, kill.delay_s))
    ordeal.killed_at_s.append(time.monotonic())
    itself = not service.is_alive()
    service.end(signal.SIGKILL)
    return f"{kill.what} {kill.value or ''}{came}{f', after {kill.writes} writes' if itself else ''}{', and again' if kill.again else ''}"


def begun(service: LocalService, after_s: float) -> None:
    """Start it, and kill it before it is ready, or soon after."""
    service.launch()
    time.sleep(after_s)
    service.end(signal.SIGKILL)


def nothing_is_left(service: LocalService, clients: Sequence[Client]) -> None:
    """Every sandbox that there is, is one that a client has; when those are gone, so is all that was on the host. Events have no gap."""
    own = {each.sandbox for each in clients if isinstance(each, Tenant)}
    assert {each.id for each in service.client.sandboxes.list()} == own
    # A delete is answered when the processes are dead, and what the last kills left half-made is swept behind the requests.
    settle(lambda: len(service.refs()), len(own))
    for sandbox in own:
        service.client.sandboxes.kill(sandbox)
    settle(service.traces, NOTHING)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), base_url="http://sandlot", timeout=60) as http:
        told: list[tuple[int, str, str]] = []
        cursor: str | None = None
        while cursor is not None or not told:
            page = http.get("/v1/events", params={"limit": 200, **({"cursor": cursor} if cursor else {})}).json()
            told += [(each["sequence"], each["type"], each["sandbox"]) for each in page["events"]]
            cursor = page["next_cursor"]
    assert [sequence for sequence, _, _ in told] == list(range(1, len(told) + 1))
    made = own | {id_ for each in clients if isinstance(each, Lives) for id_ in each.ids}
    assert made - {sandbox for _, type_, sandbox in told if type_ == "sandbox.created"} == set()
    assert made - {sandbox for _, type_, sandbox in told if type_ == "sandbox.ended"} == set()
    assert service.end() == 0, service.log()
    settle(lambda: traces(service.data_dir), NOTHING)
    assert [record for record in service.records() if record.get("level") in {"error", "critical"}] == []
