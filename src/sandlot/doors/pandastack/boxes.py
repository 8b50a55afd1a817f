"""Sandboxes and what is done with them as wholes: what core is asked to do, in which order.

Law: A sandbox that has ended is not found; to end it once more is no failure.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.doors.pandastack import translate
from sandlot.doors.pandastack.wire import (
    CreateBody,
    LifecycleAnswer,
    LifecycleBody,
    PromoteBody,
    PromotedAnswer,
    SandboxAnswer,
    SnapshotAnswer,
    TreeAnswer,
)
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import DEFAULT_TEMPLATE

PAGE = 1000


def find(node: Node, principal: Principal, sandbox: str) -> Sandbox:
    """A sandbox that has not ended.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or it is somebody else's.
        SandboxEndedError: It has ended; says why.
    """
    box = node.registry.find(sandbox, principal)
    if box.end_requested.is_set() or box.ended.is_set():
        raise box.ended_error()
    return box


async def create(node: Node, principal: Principal, body: CreateBody) -> SandboxAnswer:
    """Make a sandbox, of a template or of a snapshot, whose own template counts: the client always names one.

    Raises:
        SandlotError: It could not be made; then nothing is left of it.
    """
    began_s, params = node.clock.monotonic_s(), translate.new_sandbox(body, principal.quota)
    if params.snapshot is None:
        sandbox = await node.manager.create(principal, params)
    else:
        await node.templates.find(principal, params.template or DEFAULT_TEMPLATE)
        sandbox = await node.snapshots.create_sandbox(principal, params)
    return translate.sandbox(sandbox, node.clock.monotonic_s() - began_s)


def listing(node: Node, principal: Principal) -> list[SandboxAnswer]:
    """All sandboxes that somebody has, oldest first."""
    return [translate.sandbox(sandbox) for sandbox in node.registry.list(principal) if not sandbox.end_requested.is_set()]


def lifecycle(node: Node, principal: Principal, sandbox: str) -> LifecycleAnswer:
    """How long a sandbox lives."""
    return translate.lifecycle(find(node, principal, sandbox), node.clock.monotonic_s())


async def change(node: Node, principal: Principal, sandbox: str, body: LifecycleBody) -> LifecycleAnswer:
    """Change how long a sandbox lives.

    Raises:
        InvalidRequestError: Out of bounds, or a deadline for what has none.
        LimitError: ``quota_exceeded``.
    """
    box = find(node, principal, sandbox)
    await node.manager.update(principal, box.id, translate.update(box, body, principal.quota))
    return lifecycle(node, principal, sandbox)


async def fork(node: Node, principal: Principal, sandbox: str, count: int, metadata: Mapping[str, str] | None) -> TreeAnswer:
    """Fork a sandbox; there are all children, or none. As at the vendor's they share its volumes.

    Raises:
        SandlotError: As core's.
    """
    parent = find(node, principal, sandbox)
    tree = f"tree-{secrets.token_hex(8)}"
    params = ForkParams(count=count, metadata=translate.forked(parent, metadata, tree), share_volumes=True)
    made = await node.forks.create(principal, parent.id, params)
    return TreeAnswer(tree_id=tree, parent_id=parent.id, children=[translate.sandbox(child) for child in made])


async def promote(node: Node, principal: Principal, sandbox: str, body: PromoteBody) -> PromotedAnswer:
    """Keep a fork; with ``cleanup_siblings`` the others of its tree are ended, with all that was forked from them.

    Raises:
        ConflictError: It is nobody's fork.
        InvalidRequestError: It is of another tree.
    """
    box = find(node, principal, sandbox)
    if box.spec.parent is None:
        raise translate.no_fork(box)
    tree = translate.tree_of(box)
    if body.tree_id not in {None, tree}:
        raise InvalidRequestError(f"Sandbox {box.id} is of another tree.", hint=f"Its tree_id is {tree}.", fields={"field": "tree_id"})
    if not body.cleanup_siblings:
        return PromotedAnswer(winner=box.id, tree_id=tree, deleted=[], failures={})
    among = {translate.TREE_WORD: tree} if translate.TREE_WORD in box.metadata else {}
    done = await node.forks.promote(principal, box.id, among=among)
    return PromotedAnswer(winner=box.id, tree_id=tree, deleted=list(done.ended), failures={str(id_): why for id_, why in done.failed.items()})


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
