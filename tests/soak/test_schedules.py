"""A thousand schedules of calls that race on a node in memory.

``SANDLOT_SOAK_SEED`` is the first seed; without it, other schedules run each time. ``python -m tests.support.schedules SEED`` runs one of them again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.schedules import ScheduleError, run_schedule

SCHEDULES = 1000


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_schedules_keep_what_was_confirmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("SANDLOT_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    with capsys.disabled():
        print(f"\nseeds {first} to {first + SCHEDULES - 1}")
    failed: dict[int, str] = {}
    for seed in range(first, first + SCHEDULES):
        try:
            run_schedule(seed, tmp_path / str(seed))
        except ScheduleError as error:
            failed[seed] = str(error)
    assert not failed, f"{len(failed)} seeds failed: {[*failed]}\n\n{next(iter(failed.values()))}"
