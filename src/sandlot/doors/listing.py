"""Lists of sandboxes for vendors whose lists have no pages."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import LIVE, SandboxFilter, SandboxInfo
from sandlot.model.states import State

PAGE = 1000
"""Number of sandboxes that are read at once."""


async def live_sandboxes(node: Node, principal: Principal, metadata: Mapping[str, str]) -> list[SandboxInfo]:
    """Return all live sandboxes that a principal may see, oldest first, except those whose end is requested.

    Args:
        node: Node that has the sandboxes.
        principal: Caller.
        metadata: Entries that the metadata of each sandbox has.
    """
    wanted = SandboxFilter(states=LIVE - {State.STOPPING}, metadata=metadata)
    page = await node.sandboxes.list(principal, wanted, after=None, limit=PAGE)
    found = list(page.items)
    while page.more:
        page = await node.sandboxes.list(principal, wanted, after=Position(found[-1].created_at, found[-1].id), limit=PAGE)
        found += page.items
    return found
