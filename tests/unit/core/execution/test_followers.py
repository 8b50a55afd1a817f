"""Clients that follow one execution."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.execution.followers import FollowedExecutions
from sandlot.model.ids import new_process_id

TURNS = 20
"""Turns of the event loop after which a wait of 0 s is over."""


async def test_only_the_first_absence_may_last_for_first_s() -> None:
    followers = FollowedExecutions().expect(new_process_id())
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


async def test_execution_that_could_not_be_started_cannot_be_joined() -> None:
    executions, id_ = FollowedExecutions(), new_process_id()

    with pytest.raises(RuntimeError):
        async with executions.join(id_):
            raise RuntimeError

    assert executions.get(id_) is None


async def test_only_the_first_owner_attends_the_execution() -> None:
    executions, id_ = FollowedExecutions(), new_process_id()

    async with executions.join(id_) as followers:
        assert [followers.enter(), followers.enter(attend=True), followers.enter(attend=True)] == [False, True, False]

    assert executions.get(id_) is followers
