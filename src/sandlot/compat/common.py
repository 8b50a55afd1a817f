"""Helpers and labels that several compatibility APIs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import LIVE, SandboxFilter, SandboxInfo, sandbox_not_found
from sandlot.model.states import State

VENDOR_KEY: Final = "sandlot.api"
"""Metadata name whose value is the name of the compatibility API that created the sandbox."""
TEMPLATE_KEY: Final = "sandlot.api.template"
"""Metadata name whose value is the template as the client named it."""
PAGE: Final = 1000
"""Number of sandboxes that are read at once."""


async def sandbox_by_id(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """Return a live or ended sandbox by its id. Its name is not accepted.

    Raises:
        NotFoundError: The principal can see no such sandbox (code ``sandbox_not_found``).
    """
    if SANDBOX_ID.fullmatch(sandbox) is None:
        raise sandbox_not_found(sandbox)
    return await node.sandboxes.get(principal, sandbox)


async def live_sandbox(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """Return a live sandbox by its id. See :func:`sandbox_by_id`.

    Raises:
        SandboxEndedError: The sandbox has ended, or its end is requested.
    """
    found = await sandbox_by_id(node, principal, sandbox)
    if found.is_over or found.state is State.STOPPING:
        raise found.ended_error()
    return found


async def live_sandboxes(node: Node, principal: Principal, metadata: Mapping[str, str] | None = None) -> list[SandboxInfo]:
    """Return all live sandboxes that a principal may see, oldest first, except those whose end is requested.

    Args:
        node: Node that has the sandboxes.
        principal: Caller.
        metadata: Entries that the metadata of each sandbox has. None: all sandboxes.
    """
    return await all_sandboxes(node, principal, SandboxFilter(states=LIVE - {State.STOPPING}, metadata=metadata or {}))


async def all_sandboxes(node: Node, principal: Principal, wanted: SandboxFilter, *, newest: int | None = None) -> list[SandboxInfo]:
    """Return all sandboxes that a principal may see and that meet the conditions, oldest first.

    Args:
        node: Node that has the sandboxes.
        principal: Caller.
        wanted: Conditions that the sandboxes meet.
        newest: Maximum number of sandboxes to return; older ones are left out. None: no maximum.
    """
    page = await node.sandboxes.list(principal, wanted, after=None, limit=PAGE)
    found = list(page.items)
    while page.more:
        page = await node.sandboxes.list(principal, wanted, after=Position(found[-1].created_at, found[-1].id), limit=PAGE)
        found += page.items
        if newest is not None:
            del found[:-newest]
    return found
