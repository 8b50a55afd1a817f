"""Clients that follow one execution."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.execution.followers import FOLLOWED, ExecutionFollowers, join
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL
from sandlot.model.ids import NodeId, new_process_id, new_sandbox_id
from sandlot.model.specs import MIB, SandboxSpec
from tests.support.clock import ManualClock

TURNS = 20
"""Turns of the event loop after which a wait of 0 s is over."""


@pytest.fixture
async def sandbox(clock: ManualClock) -> Sandbox:
    """A sandbox of which only its id matters."""
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template="base")
    return Sandbox(spec, owner=LOCAL, name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)


async def test_only_the_first_absence_may_last_for_first_s() -> None:
    followers = ExecutionFollowers({}, new_process_id())
    followers.enter()
    followers.leave()
    absent = asyncio.create_task(followers.wait_absent(0.0, first_s=3600.0))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not absent.done()

    followers.enter()
    followers.leave()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert absent.done()
    await absent


async def test_execution_that_could_not_be_started_cannot_be_joined(sandbox: Sandbox) -> None:
    id_ = new_process_id()

    with pytest.raises(RuntimeError):
        async with join(sandbox, id_):
            raise RuntimeError

    assert FOLLOWED.of(sandbox).get(id_) is None


async def test_only_the_first_owner_attends_the_execution(sandbox: Sandbox) -> None:
    id_ = new_process_id()

    async with join(sandbox, id_) as followers:
        assert [followers.enter(), followers.enter(attend=True), followers.enter(attend=True)] == [False, True, False]

    assert FOLLOWED.of(sandbox).get(id_) is followers
