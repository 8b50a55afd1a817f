"""Lists: pages that lose and repeat nothing, filters by state and metadata, and the ended ones from the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ENDED, LIVE, SandboxFilter, states_of
from sandlot.model.states import State
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench

ALICE, BOB = Principal(OwnerId("a" * 12), "alice"), Principal(OwnerId("b" * 12), "bob")
ALL = LIVE | ENDED


async def ids(at: Bench, principal: Principal, wanted: SandboxFilter, limit: int = 100) -> list[str]:
    """All of them, page by page."""
    found: list[Sandbox] = []
    after: Position | None = None
    while True:
        page, more = await at.sandboxes.page(principal, wanted, after=after, limit=limit)
        assert len(page) <= limit
        found += page
        if not more:
            return [sandbox.id for sandbox in found]
        after = Position(page[-1].created_at, page[-1].id)


async def test_pages_list_live_and_ended_sandboxes_in_order_of_creation(at: Bench, clock: ManualClock) -> None:
    sandboxes = []
    for number in range(6):
        sandboxes.append(await at.sandboxes.create(ALICE, replace(BASE, metadata={"parity": str(number % 2), "same": "x"})))
        clock.advance(1 if number % 3 else 0)  # some at the same moment
    hers = sorted(sandboxes, key=lambda sandbox: (sandbox.created_at, sandbox.id))
    his = await at.sandboxes.create(BOB, BASE)
    for sandbox in sandboxes[:3]:
        await at.sandboxes.kill(ALICE, sandbox.id)
    for limit in (1, 2, 3, 100):
        assert await ids(at, ALICE, SandboxFilter(states=ALL), limit) == [sandbox.id for sandbox in hers]
    assert await ids(at, ALICE, SandboxFilter()) == [sandbox.id for sandbox in hers if sandbox not in sandboxes[:3]]
    assert await ids(at, ALICE, SandboxFilter(states=states_of(["stopped"]))) == [sandbox.id for sandbox in hers if sandbox in sandboxes[:3]]
    assert await ids(at, ALICE, SandboxFilter(states=ALL, metadata={"parity": "1", "same": "x"}), 1) == [
        sandbox.id for sandbox in hers if sandbox.metadata["parity"] == "1"
    ]
    assert await ids(at, ALICE, SandboxFilter(states=ALL, metadata={"parity": "2"})) == []
    assert await ids(at, BOB, SandboxFilter(states=ALL)) == [his.id]
    assert set(await ids(at, OPERATOR, SandboxFilter(states=ALL), 2)) == {his.id, *(sandbox.id for sandbox in sandboxes)}


def test_a_state_that_is_none_is_refused_with_those_that_there_are() -> None:
    assert states_of(["running", "stopped"]) == {State.RUNNING, State.STOPPED}
    with pytest.raises(InvalidRequestError) as refused:
        states_of(["running", "RUNNING"])
    assert "hibernated" in refused.value.hint
