"""Snapshots and fork trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sandlot.model.specs import SnapshotKind
from sandlot.sdk.models.sandboxes import SandboxState
from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo:
    """A snapshot of a sandbox.

    Args:
        id: Id of the snapshot; ``Sandbox.create(snapshot=)`` takes it, or the name.
        name: Name of the snapshot.
        kind: ``memory`` for memory and files, or ``files``.
        sandbox: Id of the sandbox of which it was taken. That sandbox may have ended.
        template: Template of the sandbox.
        isolation: Driver of the sandboxes that start from the snapshot.
        size_bytes: Size on the disk of the node.
        created_at: Time at which it was taken.
        node: Node that has the snapshot.
        problem: Reason why the memory of the snapshot cannot be restored; None if it can.
    """

    id: str
    name: str | None
    kind: SnapshotKind | str
    sandbox: str
    template: str
    isolation: str
    size_bytes: int
    created_at: datetime
    node: str = ""
    problem: str | None = None

    __repr__ = short_repr("id", "name", "kind", "size_bytes")


@dataclass(frozen=True, slots=True)
class ForkTreeNode:
    """One sandbox of a fork tree.

    Args:
        id: Id of the sandbox.
        parent: Id of the sandbox that was forked; None for the root.
        state: State of the sandbox.
        name: Name of the sandbox.
        created_at: Time of its creation.
    """

    id: str
    parent: str | None
    state: SandboxState | str
    name: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ForkTree:
    """A sandbox and its forks, their forks included. Iterating yields the nodes, oldest first and each after its parent.

    Args:
        root: Id of the first sandbox. It has no node if its record was removed.
        sandboxes: All sandboxes that have records.
    """

    root: str
    sandboxes: tuple[ForkTreeNode, ...]

    def __iter__(self) -> Iterator[ForkTreeNode]:
        return iter(self.sandboxes)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def children(self, sandbox: str) -> tuple[ForkTreeNode, ...]:
        """Return the forks of one sandbox, oldest first.

        Args:
            sandbox: Id of the sandbox.
        """
        return tuple(node for node in self.sandboxes if node.parent == sandbox)
