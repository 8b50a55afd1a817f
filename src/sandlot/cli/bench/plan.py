"""Which rows are measured by what, and in which order.

Laws:
- Rows of a sandbox that is there come first, those of many sandboxes last: what these leave to be tidied disturbs nothing.
- A row that fails tells why and keeps no other from being measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from sandlot.cli.bench import calls, create, idle, suspend
from sandlot.cli.bench.harness import CannotError, Rig, grown
from sandlot.cli.bench.report import KINDS, Samples
from sandlot.sdk import SandlotError

ROW_PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured together.

    Args:
        work: Fills the samples of its rows.
        keys: Of :data:`~sandlot.cli.bench.report.KINDS`.
        alone: Whether the sandboxes that the run keeps are put away first.
    """

    work: Callable[[Rig], Awaitable[None]]
    keys: tuple[str, ...]
    alone: bool = False


STEPS = (
    Step(calls.noop, ("noop",)),
    Step(calls.stat, ("stat",)),
    Step(calls.run_code, ("run_code",)),
    Step(calls.command, ("command",)),
    Step(calls.kernel_new, ("kernel_new",)),
    Step(suspend.pause_resume, ("pause_resume",)),
    Step(calls.moved, ("upload_mb_s", "download_mb_s")),
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
"""In the order in which they are done."""


def steps(only: Collection[str] | None) -> tuple[Step, ...]:
    """Those that are needed for some rows, for all of them where none are named. Pure.

    Raises:
        ValueError: One is no row; the message says which there are.
    """
    if only is not None and (unknown := sorted(set(only) - KINDS.keys())):
        raise ValueError(f"There is no row {unknown[0]!r}. There are: {', '.join(KINDS)}.")
    return tuple(step for step in STEPS if only is None or not set(only).isdisjoint(step.keys))


async def measure(
    rig: Rig, chosen: tuple[Step, ...], only: Collection[str] | None, tell: Callable[[str], None], ready: Callable[[Rig], Awaitable[None]]
) -> None:
    """Fill the rig's samples.

    Args:
        rig: Is used.
        chosen: What is done.
        only: The rows that are asked for, as in :func:`steps`.
        tell: Hears what is about to be measured.
        ready: Waits until the service is at rest; called before each step.
    """
    for step in chosen:
        wanted = [key for key in step.keys if only is None or key in only]
        for key in step.keys:
            rig.samples[key] = Samples()
        tell(", ".join(wanted))
        before = await rig.made_by()
        rig.aside = {}
        why = await _attempt(rig, step, ready)
        after = await rig.made_by()
        for key in step.keys:
            if key not in wanted:
                del rig.samples[key]
                continue
            if why is not None:
                rig.samples[key].why = why
                rig.samples[key].values.clear()
            if before is not None and after is not None:
                rig.sources[key] = grown(rig.aside, grown(before, after))


async def _attempt(rig: Rig, step: Step, ready: Callable[[Rig], Awaitable[None]]) -> str | None:
    """Do a step; why it could not be done, for a person."""
    try:
        async with asyncio.timeout(ROW_PATIENCE_S):
            if step.alone:
                await rig.put_away()
            await ready(rig)
            await step.work(rig)
    except SandlotError as error:
        return f"{error.message} {error.hint}".strip()
    except CannotError as error:
        return str(error)
    except TimeoutError:
        return f"It took longer than {ROW_PATIENCE_S:.0f} s."
    return None
