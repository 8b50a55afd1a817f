"""Which rows are measured by what, and that none keeps another from being measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from sandlot.cli.bench import plan
from sandlot.cli.bench.harness import BenchHarness, RowFailedError
from sandlot.cli.bench.report import ROWS
from sandlot.cli.main import dispatch
from sandlot.model.errors import ErrorCode, UnsupportedError

if TYPE_CHECKING:
    from sandlot.cli.bench.baselines import NativeBaselines
    from sandlot.sdk import AsyncClient


def test_every_row_is_measured_by_one_step() -> None:
    assert sorted(key for step in plan.STEPS for key in step.keys) == sorted(ROWS)


def test_steps_are_those_that_the_rows_need() -> None:
    assert plan.steps(None) == plan.STEPS
    assert [step.keys for step in plan.steps(["wake", "noop"])] == [("noop",), ("hibernate", "wake")]
    with pytest.raises(ValueError, match=r"no row 'nonsense'.*noop, stat, create_cold"):
        plan.steps(["noop", "nonsense"])


def test_a_row_that_there_is_none_of_is_a_wrong_use(capfd: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["bench", "--only", "noop,nonsense"]) == 2
    assert "no row 'nonsense'" in capfd.readouterr().err


def harness(made: list[dict[str, int] | None]) -> BenchHarness:
    """Return a run that reads start paths from a list instead of a service."""

    class ScriptedHarness(BenchHarness):
        async def start_paths(self) -> dict[str, int] | None:
            return made.pop(0)

    return ScriptedHarness(cast("AsyncClient", None), cast("NativeBaselines", None), label="test")


def step(work: Callable[[BenchHarness], None], *keys: str) -> plan.Step:
    async def do(harness: BenchHarness) -> None:
        await asyncio.sleep(0)
        work(harness)

    return plan.Step(do, keys)


async def at_rest(_harness: BenchHarness) -> None:
    """The service makes nothing ahead."""
    await asyncio.sleep(0)


async def test_a_row_that_cannot_be_measured_says_why_and_the_next_is_measured() -> None:
    def unsupported(harness: BenchHarness) -> None:
        harness.add("fork_1", 1.0)
        raise UnsupportedError("A container takes no snapshot.", code=ErrorCode.UNSUPPORTED, hint="Choose gvisor.")

    def cannot(_: BenchHarness) -> None:
        raise RowFailedError("A cell failed.")

    used, said = harness([None] * 6), list[str]()
    steps = (step(unsupported, "fork_1"), step(cannot, "run_code"), step(lambda harness: harness.add("noop", 2.0), "noop"))
    await plan.measure(used, steps, None, said.append, at_rest)
    assert {key: (row.why, row.values) for key, row in used.samples.items()} == {
        "fork_1": ("A container takes no snapshot. Choose gvisor.", []),
        "run_code": ("A cell failed.", []),
        "noop": (None, [2.0]),
    }
    assert said == ["fork_1", "run_code", "noop"]
