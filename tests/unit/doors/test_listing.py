"""Lists of sandboxes without pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.doors import listing
from sandlot.model.access import OPERATOR
from sandlot.model.sandboxes import CreateSandboxParams
from tests.support.node import NodeState, open_node


async def test_list_joins_all_pages_of_live_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 1)
    wanted = CreateSandboxParams(metadata={"a": "1"})
    async with open_node(NodeState(tmp_path)) as node:
        made = []
        for params in (wanted, wanted, replace(wanted, metadata={}), wanted):
            made.append(await node.services.sandboxes.create(OPERATOR, params))
            node.clock.advance(1)
        release = node.driver.hold("destroy")
        await node.services.sandboxes.kill(OPERATOR, made[1].id, wait=False)
        listed = await listing.live_sandboxes(node.services, OPERATOR, {"a": "1"})
        release.set()
    assert [each.id for each in listed] == [made[0].id, made[3].id]
