"""Programs that are run once, many of them: each in a sandbox of its own, a few at a time.

Laws:
- Every item has a result or an error of its own; none spoils another's, whatever it is.
- At most so many sandboxes as were asked for are made at once. Where there is no room for one, its item waits within bounds.
- What is done is given as soon as it is; a reader that does not read stops the runs, and one that goes away ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import structlog

from sandlot.core.oneshot.execute import execute
from sandlot.core.oneshot.results import Result
from sandlot.core.oneshot.spec import OneShotParams
from sandlot.core.sandboxes import SandboxManager
from sandlot.model.access import Principal
from sandlot.model.errors import InternalError, InvalidRequestError, SandlotError

MAX_ITEMS = 1000
DEFAULT_CONCURRENCY = 4
MAX_CONCURRENCY = 32

PATIENCE_S = 120.0
"""How long an item waits for room, which its neighbours may have."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch: its result, or its error.

    Args:
        index: Which, from 0.
        outcome: It.
    """

    index: int
    outcome: Result | SandlotError


def check(items: int, concurrency: int) -> None:
    """Refuse a batch that is too large.

    Args:
        items: How many it has.
        concurrency: How many are to run at once.

    Raises:
        InvalidRequestError: One of the two is out of bounds.
    """
    for field, value, most in (("items", items, MAX_ITEMS), ("concurrency", concurrency, MAX_CONCURRENCY)):
        if not 1 <= value <= most:
            raise InvalidRequestError(
                f"A batch has {field} from 1 to {most}, not {value}.", hint="Make several batches of it.", fields={"field": field}
            )


async def execute_batch(
    manager: SandboxManager, principal: Principal, items: Sequence[OneShotParams | SandlotError], *, concurrency: int = DEFAULT_CONCURRENCY
) -> AsyncGenerator[BatchItem]:
    """Run programs, and give what becomes of each as soon as it is known. Closing it ends those that run.

    Args:
        manager: Who makes their sandboxes.
        principal: For whom.
        items: What; an error that stands for one that makes no sense comes back as it is.
        concurrency: How many run at once.

    Raises:
        InvalidRequestError: It is too large.
    """
    check(len(items), concurrency)
    done: asyncio.Queue[BatchItem] = asyncio.Queue(maxsize=1)
    todo = iter(enumerate(items))

    async def work() -> None:
        for index, item in todo:
            await done.put(BatchItem(index, await _outcome(manager, principal, item)))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(items)))]
    try:
        for _ in items:
            yield await done.get()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _outcome(manager: SandboxManager, principal: Principal, item: OneShotParams | SandlotError) -> Result | SandlotError:
    if isinstance(item, SandlotError):
        return item
    try:
        return await execute(manager, principal, item, patience_s=PATIENCE_S)
    except SandlotError as error:
        return error
    except Exception:  # noqa: BLE001 - the others go on
        _log.exception("batch.defect")
        return InternalError("This item failed by a defect in Sandlot.", hint="The service's log has the details.")
