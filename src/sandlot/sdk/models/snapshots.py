"""Snapshots and fork trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot of a sandbox.

    Args:
        id: Its id, for ``AsyncSandbox.create(snapshot=...)``; its name does as well.
        name: What it is called; None is nothing.
        kind: ``memory`` (memory and files) or ``files``.
        sandbox: The sandbox that it was taken of, which may be gone.
        template: What that was made from.
        isolation: What isolates what is started from it.
        size_bytes: What it takes on the service's disk.
        created_at: When it was taken.
        node: The service that has it.
        problem: Why nothing can be started from its memory any more; None where nothing is known against it.
    """

    id: str
    name: str | None
    kind: str
    sandbox: str
    template: str
    isolation: str
    size_bytes: int
    created_at: datetime
    node: str = ""
    problem: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            name=raw.get("name"),
            kind=str(raw["kind"]),
            sandbox=str(raw["sandbox"]),
            template=str(raw.get("template", "")),
            isolation=str(raw.get("isolation", "")),
            size_bytes=int(raw.get("size_bytes", 0)),
            created_at=datetime.fromisoformat(raw["created_at"]),
            node=str(raw.get("node", "")),
            problem=raw.get("problem"),
        )


@dataclass(frozen=True, slots=True)
class ForkTreeNode:
    """One sandbox of a tree of forks.

    Args:
        id: Its id.
        parent: Whose fork it is; None of what is nobody's.
        state: Where it is in its life.
        name: The name that its owner gave it.
        created_at: When it was made.
    """

    id: str
    parent: str | None
    state: str
    name: str | None
    created_at: datetime

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            parent=raw.get("parent"),
            state=str(raw["state"]),
            name=raw.get("name"),
            created_at=datetime.fromisoformat(raw["created_at"]),
        )


@dataclass(frozen=True, slots=True)
class ForkTree:
    """Sandboxes that came of one another. Iterate it: oldest first, each behind whose fork it is.

    Args:
        root: The id of the first one; it may have ended so long ago that it is not among them.
        branches: All that are known still.
    """

    root: str
    branches: tuple[ForkTreeNode, ...]

    def __iter__(self) -> Iterator[ForkTreeNode]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

    def children(self, sandbox: str) -> tuple[ForkTreeNode, ...]:
        """The forks of one of them, oldest first.

        Args:
            sandbox: Its id.
        """
        return tuple(branch for branch in self.branches if branch.parent == sandbox)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(root=str(raw["root"]), branches=tuple(ForkTreeNode.parse(each) for each in raw["sandboxes"]))
