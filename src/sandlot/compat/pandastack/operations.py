"""Sandboxes and what is done with them as wholes: what core is asked to do, in which order.

Law: A sandbox that has ended is not found; to end it once more is no failure.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from sandlot.compat.common import find_live_sandbox, find_live_sandboxes
from sandlot.compat.pandastack import translate
from sandlot.compat.pandastack.schemas import (
    CreateBody,
    LifecycleAnswer,
    LifecycleBody,
    PromoteBody,
    PromotedAnswer,
    SandboxAnswer,
    SnapshotAnswer,
    TreeAnswer,
)
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import DEFAULT_TEMPLATE

PAGE = 1000


async def create(node: Node, principal: Principal, body: CreateBody) -> SandboxAnswer:
    """Make a sandbox, of a template or of a snapshot, whose own template counts: the client always names one.

    Raises:
        SandlotError: It could not be made; then nothing is left of it.
    """
    params = translate.new_sandbox(body, principal.quota)
    if params.snapshot is not None:
        await node.templates.find(principal, params.template or DEFAULT_TEMPLATE)
    made = await node.sandboxes.create(principal, params)
    return translate.sandbox(made, (made.as_of - made.created_at).total_seconds())


async def listing(node: Node, principal: Principal) -> list[SandboxAnswer]:
    """All sandboxes that somebody has, oldest first."""
    return [translate.sandbox(sandbox) for sandbox in await find_live_sandboxes(node, principal)]


async def change(node: Node, principal: Principal, sandbox: str, body: LifecycleBody) -> LifecycleAnswer:
    """Change how long a sandbox lives.

    Raises:
        InvalidRequestError: Out of bounds, or a deadline for what has none.
        LimitError: ``quota_exceeded``.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    return translate.lifecycle(await node.sandboxes.update(principal, found.id, translate.update(found, body, principal.quota)))


async def fork(node: Node, principal: Principal, sandbox: str, count: int, metadata: Mapping[str, str] | None) -> TreeAnswer:
    """Fork a sandbox; there are all children, or none. As at the vendor's they share its volumes.

    Raises:
        SandlotError: As core's.
    """
    parent = await find_live_sandbox(node, principal, sandbox)
    tree = f"tree-{secrets.token_hex(8)}"
    params = ForkParams(count=count, metadata=translate.forked(parent, metadata, tree), share_volumes=True)
    made = await node.sandboxes.fork(principal, parent.id, params)
    return TreeAnswer(tree_id=tree, parent_id=parent.id, children=[translate.sandbox(child) for child in made])


async def promote(node: Node, principal: Principal, sandbox: str, body: PromoteBody) -> PromotedAnswer:
    """Keep a fork; with ``cleanup_siblings`` the others of its tree are ended, with all that was forked from them.

    Raises:
        ConflictError: It is nobody's fork.
        InvalidRequestError: It is of another tree.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    if found.spec.parent is None:
        raise translate.no_fork(found)
    tree = translate.tree_of(found)
    if body.tree_id not in {None, tree}:
        raise InvalidRequestError(f"Sandbox {found.id} is of another tree.", hint=f"Its tree_id is {tree}.", fields={"field": "tree_id"})
    if not body.cleanup_siblings:
        return PromotedAnswer(winner=found.id, tree_id=tree, deleted=[], failures={})
    among = {translate.TREE_KEY: tree} if translate.TREE_KEY in found.metadata else {}
    done = await node.sandboxes.promote(principal, found.id, among=among)
    return PromotedAnswer(winner=found.id, tree_id=tree, deleted=list(done.ended), failures={str(id_): why for id_, why in done.failed.items()})


async def snapshots(node: Node, principal: Principal, sandbox: str | None) -> list[SnapshotAnswer]:
    """All snapshots, newest first.

    Args:
        node: Who has them.
        principal: For whom.
        sandbox: Those of that one only.
    """
    found: list[SnapshotRecord] = []
    after, more = None, True
    while more:
        page = await node.snapshots.list(principal, after=after, limit=PAGE)
        more = page.more
        found += page.items
        after = translate.position(found[-1]) if found else None
    return [translate.snapshot(record) for record in reversed(found) if sandbox in {None, record.spec.id}]
