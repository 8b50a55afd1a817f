"""Lists of sandboxes without pages."""

from __future__ import annotations

from sandlot.doors.listing import live_sandboxes
from sandlot.model.access import OPERATOR
from sandlot.model.repositories import Position
from sandlot.model.states import State
from sandlot.model.streams import Page
from tests.support.scripted_node import ScriptedNode, sandbox_info


async def test_list_joins_all_pages() -> None:
    node, made = ScriptedNode(), [sandbox_info() for _ in range(3)]
    node.script("sandboxes.list", Page(made[:2], more=True), Page(made[2:], more=False))
    assert await live_sandboxes(node.services, OPERATOR, {"a": "1"}) == made
    assert [call["after"] for call in node.calls] == [None, Position(made[1].created_at, made[1].id)]
    for call in node.calls:
        assert call["wanted"].metadata == {"a": "1"}
        assert State.STOPPING not in call["wanted"].states
    node.check()
