"""The steps of a run and their order.

Invariants:
- Rows of one existing sandbox are measured first and rows of many sandboxes last, so that the cleanup after these disturbs no other row.
- A row that fails reports the reason, and the other rows are still measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from sandlot.cli.bench import calls, create, idle, suspend
from sandlot.cli.bench.harness import BenchHarness, RowFailedError, increase
from sandlot.cli.bench.report import ROWS, Samples
from sandlot.sdk import SandlotError

ROW_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that are measured together.

    Args:
        work: Fills the samples of the rows.
        keys: Keys of the rows in :data:`~sandlot.cli.bench.report.ROWS`.
        alone: End the kept sandboxes of the run first.
    """

    work: Callable[[BenchHarness], Awaitable[None]]
    keys: tuple[str, ...]
    alone: bool = False


STEPS = (
    Step(calls.noop, ("noop",)),
    Step(calls.stat, ("stat",)),
    Step(calls.run_code, ("run_code",)),
    Step(calls.command, ("command",)),
    Step(calls.kernel_new, ("kernel_new",)),
    Step(suspend.pause_resume, ("pause_resume",)),
    Step(calls.transfer, ("upload_mb_s", "download_mb_s")),
    Step(idle.idle_mib, ("idle_mib_base", "idle_mib_code"), alone=True),
    Step(idle.idle_cpu, ("idle_cpu_pct",)),
    Step(calls.install_pandas, ("install_pandas",)),
    Step(create.claim_run_code, ("claim_run_code",)),
    Step(create.claim_command, ("claim_command",)),
    Step(create.tti_sequential, ("tti_sequential",)),
    Step(create.tti_staggered, ("tti_staggered",)),
    Step(create.tti_burst, ("tti_burst",)),
    Step(create.restore_base, ("restore_base",)),
    Step(create.restore_code, ("restore_code",)),
    Step(create.create_cold, ("create_cold",)),
    Step(create.creates_per_s, ("creates_per_s",)),
    Step(suspend.snapshot, ("snapshot",)),
    Step(suspend.fork_1, ("fork_1",)),
    Step(suspend.fork_parent_stop, ("fork_parent_stop",)),
    Step(suspend.hibernate, ("hibernate", "wake")),
    Step(suspend.fork_10, ("fork_10",)),
)
"""All steps, in the order of a run."""


def steps(only: Collection[str] | None) -> tuple[Step, ...]:
    """Return the steps that measure some rows; all steps for None.

    Raises:
        ValueError: A key is not that of a row.
    """
    if only is not None and (unknown := sorted(set(only) - ROWS.keys())):
        raise ValueError(f"There is no row {unknown[0]!r}. Rows: {', '.join(ROWS)}.")
    return tuple(step for step in STEPS if only is None or not set(only).isdisjoint(step.keys))


async def measure(
    harness: BenchHarness,
    chosen: tuple[Step, ...],
    only: Collection[str] | None,
    show: Callable[[str], None],
    ready: Callable[[BenchHarness], Awaitable[None]],
) -> None:
    """Do steps and fill the samples of the run.

    Args:
        harness: The run.
        chosen: Steps to do.
        only: Requested rows, as in :func:`steps`.
        show: Called with the names of the rows before each step.
        ready: Waits until the service is idle; called before each step.
    """
    for step in chosen:
        wanted = [key for key in step.keys if only is None or key in only]
        for key in step.keys:
            harness.samples[key] = Samples()
        show(", ".join(wanted))
        before = await harness.start_paths()
        harness.excluded = {}
        why = await _attempt(harness, step, ready)
        after = await harness.start_paths()
        for key in step.keys:
            if key not in wanted:
                del harness.samples[key]
                continue
            if why is not None:
                harness.samples[key].why = why
                harness.samples[key].values.clear()
            if before is not None and after is not None:
                harness.sources[key] = increase(harness.excluded, increase(before, after))


async def _attempt(harness: BenchHarness, step: Step, ready: Callable[[BenchHarness], Awaitable[None]]) -> str | None:
    """Do a step; return None, or the reason of its failure."""
    try:
        async with asyncio.timeout(ROW_TIMEOUT_S):
            if step.alone:
                await harness.end_kept_sandboxes()
            await ready(harness)
            await step.work(harness)
    except SandlotError as error:
        return f"{error.message} {error.hint}".strip()
    except RowFailedError as error:
        return str(error)
    except TimeoutError:
        return f"The row took longer than {ROW_TIMEOUT_S:.0f} s."
    return None
