"""Promise: whatever clients and their sandboxes do, and however often the service is killed, nothing is left of it in the end.

``scripts/soak`` runs this for half an hour, ``SANDLOT_SOAK_S=7200 scripts/soak`` for two hours, ``scripts/test --all`` for 5 s with three
clients; ``SANDLOT_SOAK_SEED`` makes the same choices again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.localservice import ISOLATIONS, LocalService
from tests.support.soaking import soak
from tests.support.traces import NOTHING, settle, traces

SHORT_S = 5
LONG_S = 1800
MARGIN_S = 900
"""For the last steps of the clients and for looking, on a busy machine."""


@pytest.fixture
def service() -> Iterator[LocalService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-soak-"))
    made = LocalService(folder, {"SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS)})
    try:
        yield made
    finally:
        try:
            made.end(signal.SIGKILL)
            made.start()
            for left in made.client.sandboxes.list():  # of a test that failed: they outlive their service
                made.client.sandboxes.kill(left.id)
            settle(lambda: len(made.traces().cgroups), 0)
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SHORT_S, id="short", marks=[pytest.mark.slow, pytest.mark.timeout(SHORT_S + MARGIN_S)]),
        pytest.param(
            int(os.environ.get("SANDLOT_SOAK_S", LONG_S)),
            id="long",
            marks=[pytest.mark.soak, pytest.mark.timeout(int(os.environ.get("SANDLOT_SOAK_S", LONG_S)) + MARGIN_S)],
        ),
    ],
)
def test_random_load_and_kills_leave_nothing(service: LocalService, seconds: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SANDLOT_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    service.start()
    for isolation in ISOLATIONS:
        service.create(isolation=isolation).kill()
    service.end()
    empty = _taken(service.data_dir)
    service.start()
    opened = service.descriptors()
    is_short = seconds <= SHORT_S
    tally = soak(service, seconds=seconds, seed=seed, clients=3 if is_short else 6, chaos_pause_s=3 if is_short else 30)
    with capsys.disabled():
        print(f"\nseed {seed}, {seconds} s, {sum(tally.done.values())} steps\n{tally.table()}")
        print("service, seconds: MiB at its start and end:", *(f"{lived:.0f}: {a >> 20}-{b >> 20}" for lived, a, b in tally.lives), sep="\n  ")
    assert tally.failures == [], f"seed {seed}\n" + "\n\n".join(tally.failures)
    for left in service.client.sandboxes.list():
        service.client.sandboxes.kill(left.id)
    settle(service.traces, NOTHING)
    settle(lambda: service.descriptors() - opened, Counter[str]())
    assert service.end() == 0, service.log()
    settle(lambda: traces(service.data_dir), NOTHING)
    assert _taken(service.data_dir) == empty
    assert [record for record in service.records() if record.get("level") in {"error", "critical"}] == []


def _taken(data_dir: Path) -> dict[str, int]:
    """Every file of a service that does not run, and the blocks that it takes; its log and its records excepted, which grow."""
    paths = sorted(path for path in data_dir.rglob("*") if path.name != "service.log" and not path.name.startswith("sandlot.db"))
    return {str(path.relative_to(data_dir)): path.lstat().st_blocks for path in paths}
