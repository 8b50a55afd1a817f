"""Lists: pages that lose and repeat nothing, filters by state and metadata, and the ended ones from the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.core.listing import ENDED, LIVE, Wanted, states_of
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.states import State
from sandlot.model.storage import Position
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench

ALICE, BOB = Principal(OwnerId("a" * 12), "alice"), Principal(OwnerId("b" * 12), "bob")
ALL = LIVE | ENDED


async def ids(at: Bench, who: Principal, wanted: Wanted, limit: int = 100) -> list[str]:
    """All of them, page by page."""
    found: list[Sandbox] = []
    after: Position | None = None
    while True:
        page, more = await at.sandboxes.page(who, wanted, after=after, limit=limit)
        assert len(page) <= limit
        found += page
        if not more:
            return [box.id for box in found]
        after = Position(page[-1].created_at, page[-1].id)


async def test_live_and_ended_ones_are_one_order_of_time(at: Bench, clock: ManualClock) -> None:
    boxes = []
    for number in range(6):
        boxes.append(await at.sandboxes.create(replace(BASE, metadata={"parity": str(number % 2), "same": "x"}), ALICE))
        clock.advance(1 if number % 3 else 0)  # some at the same moment
    hers = sorted(boxes, key=lambda box: (box.created_at, box.id))
    his = await at.sandboxes.create(BASE, BOB)
    for box in boxes[:3]:
        await at.sandboxes.kill(box.id, ALICE)
    for limit in (1, 2, 3, 100):
        assert await ids(at, ALICE, Wanted(states=ALL), limit) == [box.id for box in hers]
    assert await ids(at, ALICE, Wanted()) == [box.id for box in hers if box not in boxes[:3]]
    assert await ids(at, ALICE, Wanted(states=states_of(["stopped"]))) == [box.id for box in hers if box in boxes[:3]]
    assert await ids(at, ALICE, Wanted(states=ALL, metadata={"parity": "1", "same": "x"}), 1) == [
        box.id for box in hers if box.metadata["parity"] == "1"
    ]
    assert await ids(at, ALICE, Wanted(states=ALL, metadata={"parity": "2"})) == []
    assert await ids(at, BOB, Wanted(states=ALL)) == [his.id]
    assert set(await ids(at, OPERATOR, Wanted(states=ALL), 2)) == {his.id, *(box.id for box in boxes)}


def test_a_state_that_is_none_is_refused_with_those_that_there_are() -> None:
    assert states_of(["running", "stopped"]) == {State.RUNNING, State.STOPPED}
    with pytest.raises(InvalidRequestError) as refused:
        states_of(["running", "RUNNING"])
    assert "hibernated" in refused.value.hint
