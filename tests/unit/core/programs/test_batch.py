"""Batches of programs: the end of a batch."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.programs.batch import Batch
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.programs import ProgramParams, ProgramResult
from tests.support.until import until


class Programs:
    """Runs programs that end only when they are cancelled, and then take a while to clean up."""

    def __init__(self) -> None:
        self.runs = 0
        self.cleaned_up = 0
        self.may_clean_up = asyncio.Event()

    async def run(self, principal: Principal, params: ProgramParams, *, capacity_timeout_s: float) -> ProgramResult:
        del principal, params, capacity_timeout_s
        self.runs += 1
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_clean_up.wait()
            self.cleaned_up += 1
        raise AssertionError


async def test_caller_that_is_cancelled_during_the_end_of_a_batch_interrupts_no_clean_up() -> None:
    programs = Programs()
    batch = Batch(programs, OPERATOR, [ProgramParams("python", "")] * 3, concurrency=2)
    waiting = asyncio.create_task(batch.__anext__())
    await until(lambda: programs.runs == 2)
    closing = asyncio.create_task(batch.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})

    programs.may_clean_up.set()
    await batch.aclose()
    assert (closing.cancelled(), programs.runs, programs.cleaned_up) == (True, 2, 2)
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await batch.__anext__()
