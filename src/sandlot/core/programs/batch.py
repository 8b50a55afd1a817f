"""Batches of programs: each program runs in a new sandbox, several at once.

Invariants:
- Each item has its own result or error, and does not affect other items.
- At most ``concurrency`` programs run at once. If there is no capacity for a sandbox, its item waits for a limited time.
- A result is sent as soon as its program has ended. A client that reads nothing delays the programs, and a client that disconnects ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, Self

import structlog

from sandlot.model.access import Principal
from sandlot.model.errors import InternalError, SandlotError
from sandlot.model.programs import BatchItem, ProgramParams, ProgramResult

BATCH_CAPACITY_TIMEOUT_S = 120.0
"""Seconds that an item waits for the capacity for its sandbox, which other items of the batch may use meanwhile."""

_log = structlog.get_logger("sandlot.core")


class Runner(Protocol):
    """Runs one program (``core/programs/runner.py``)."""

    async def run(self, principal: Principal, params: ProgramParams, *, capacity_timeout_s: float) -> ProgramResult:
        """Run a program in a new sandbox and return the result."""
        ...


class Batch:
    """Results of a batch. The programs run from the first ``__anext__`` on.

    Args:
        runner: Runs the programs.
        principal: Owner of the sandboxes.
        items: Programs, or errors for invalid items.
        concurrency: Number of programs that run at once.
    """

    def __init__(self, runner: Runner, principal: Principal, items: Sequence[ProgramParams | SandlotError], concurrency: int) -> None:
        self._runner = runner
        self._principal = principal
        self._todo = iter(enumerate(items))
        self._left = len(items)
        self._concurrency = min(concurrency, len(items))
        self._done: asyncio.Queue[BatchItem | None] = asyncio.Queue(maxsize=1)
        self._workers: list[asyncio.Task[None]] = []
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchItem:
        if self._is_closed or not self._left:
            await self.aclose()
            raise StopAsyncIteration
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        item = await self._done.get()
        if item is None:  # closed meanwhile
            raise StopAsyncIteration
        self._left -= 1
        return item

    async def aclose(self) -> None:
        """End all running programs. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for worker in self._workers:
                worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)  # if the caller is cancelled meanwhile, the workers still clean up
        if self._done.empty():
            self._done.put_nowait(None)

    async def _work(self) -> None:
        for index, item in self._todo:
            outcome = item if isinstance(item, SandlotError) else await self._run(item)
            await self._done.put(BatchItem(index, outcome))

    async def _run(self, params: ProgramParams) -> ProgramResult | SandlotError:
        """Run a program. Return an error instead of raising it."""
        try:
            return await self._runner.run(self._principal, params, capacity_timeout_s=BATCH_CAPACITY_TIMEOUT_S)
        except SandlotError as error:
            return error
        except Exception:  # noqa: BLE001 - logged; the other items of the batch must not be affected
            _log.exception("program.internal_error")
            return InternalError(
                "Internal error in Sandlot while the program ran.", hint="Report the lines of the service's log that contain program.internal_error."
            )
