"""Sandboxes by id, and lists without pages."""

from __future__ import annotations

import pytest

from sandlot.compat.common import append_line, find_live_sandbox, find_live_sandboxes, find_sandbox, find_sandboxes
from sandlot.model.access import OPERATOR
from sandlot.model.errors import NotFoundError, SandboxEndedError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ENDED, SandboxFilter
from sandlot.model.states import State
from sandlot.model.streams import Page
from tests.support.cases import cases
from tests.support.scripted_node import ScriptedNode, sandbox_info


async def test_list_joins_all_pages() -> None:
    node, made = ScriptedNode(), [sandbox_info() for _ in range(3)]
    node.script("sandboxes.list", Page(made[:2], more=True), Page(made[2:], more=False))
    assert await find_live_sandboxes(node.services, OPERATOR, {"a": "1"}) == made
    assert [call["after"] for call in node.calls] == [None, Position(made[1].created_at, made[1].id)]
    for call in node.calls:
        assert call["wanted"].metadata == {"a": "1"}
        assert State.STOPPING not in call["wanted"].states
    node.check()


async def test_list_keeps_the_newest() -> None:
    node, made = ScriptedNode(), [sandbox_info(state=State.STOPPED) for _ in range(5)]
    node.script("sandboxes.list", Page(made[:2], more=True), Page(made[2:4], more=True), Page(made[4:], more=False))
    assert await find_sandboxes(node.services, OPERATOR, SandboxFilter(states=ENDED), newest=3) == made[2:]
    assert [call["after"] for call in node.calls] == [None, *(Position(each.created_at, each.id) for each in (made[1], made[3]))]
    node.check()


async def test_sandbox_is_found_by_its_id_only() -> None:
    node, live, ended = ScriptedNode(), sandbox_info(), sandbox_info(state=State.STOPPED)
    node.script("sandboxes.get", live, ended)
    assert await find_live_sandbox(node.services, OPERATOR, live.id) is live
    assert await find_sandbox(node.services, OPERATOR, ended.id) is ended
    for find in (find_live_sandbox, find_sandbox):
        with pytest.raises(NotFoundError):
            await find(node.services, OPERATOR, "name")
    node.check()


@cases("state", [State.STOPPING, State.STOPPED, State.FAILED])
async def test_sandbox_that_has_ended_or_is_to_end_is_refused(state: State) -> None:
    node = ScriptedNode()
    node.script("sandboxes.get", made := sandbox_info(state=state))
    with pytest.raises(SandboxEndedError):
        await find_live_sandbox(node.services, OPERATOR, made.id)
    node.check()


def test_appended_line_is_on_its_own_line() -> None:
    assert [append_line(text, "n") for text in ("", "a", "a\n")] == ["n\n", "a\nn\n", "a\nn\n"]
    assert append_line("a", "") == "a"
