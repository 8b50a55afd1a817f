"""Rests, snapshots and forks: asked for and told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import MAX_CHILDREN, SAME, ForkParams, ForkTree, Promotion, SandboxInfo, check_reserved_names
from sandlot.model.specs import SnapshotKind
from sandlot.server.v1.schemas.base import Metadata, QueryModel, RequestModel, ResponseModel, Text
from sandlot.server.v1.schemas.sandboxes import LimitsAnswer, NetworkAnswer, SandboxAnswer


class ResumeBody(RequestModel):
    """How a sandbox that rests is to go on."""

    timeout: float | None = Field(default=None, ge=1, description="Seconds from now until its timeout; left out, as many as were last set.")


class SnapshotBody(RequestModel):
    """A snapshot to take."""

    name: Text | None = Field(
        default=None,
        description="What to call it: up to 63 letters, digits, '.', '_' and '-'; no two of one key's have one name.",
        examples=["before-migration"],
    )
    kind: Literal["memory", "files"] = Field(
        default="memory",
        description="memory: memory and files; what is started from it goes on in the middle of everything. files: files alone; what is started "
        "from it boots.",
    )

    def what(self) -> SnapshotKind:
        """What it is to hold."""
        return SnapshotKind(self.kind)


class SnapshotAnswer(ResponseModel):
    """A snapshot of a sandbox."""

    id: str
    name: str | None
    kind: Literal["memory", "files"]
    sandbox: str = Field(description="What it was taken of, which may be gone.")
    template: str
    isolation: str
    network: NetworkAnswer
    limits: LimitsAnswer
    size_bytes: int = Field(description="What it takes on the disk.")
    problem: str | None = Field(description="Why nothing can be started from its memory any more; null where nothing is known against it.")
    created_at: datetime
    node: str

    @classmethod
    def of(cls, record: SnapshotRecord) -> SnapshotAnswer:
        """What is told of it."""
        spec = record.spec
        return cls(
            id=record.id,
            name=record.name,
            kind=record.kind.value,
            sandbox=spec.id,
            template=spec.template.name,
            isolation=spec.isolation,
            network=NetworkAnswer.of(spec.network),
            limits=LimitsAnswer.of(spec.limits),
            size_bytes=record.size_bytes,
            problem=record.problem or None,
            created_at=record.created_at,
            node=record.node,
        )


class SnapshotsAnswer(ResponseModel):
    """A page of snapshots, oldest first."""

    snapshots: list[SnapshotAnswer]
    next_cursor: str | None = Field(description="For the next page; null where this is the last.")


class SnapshotsQuery(QueryModel):
    """Which snapshots to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Snapshots on one page, at most.")


class ForkBody(RequestModel):
    """Forks to make."""

    count: int = Field(default=1, ge=1, le=MAX_CHILDREN, description="How many. There are all of them, or none.")
    name: Text | None = Field(default=None, description="A name for people; of several, -1, -2 and so on are added to it.")
    metadata: Metadata | None = Field(default=None, description="In place of the sandbox's own, which they have where this is left out.")
    env: Metadata = Field(default_factory=dict, description="Added to the sandbox's environment, for what is started in them.")
    timeout: float | None = Field(default=None, ge=1, description="Seconds until their timeout; left out, the sandbox's own.")

    share_volumes: bool = Field(
        default=False,
        description="Whether they share the volumes that the sandbox writes to; without it such a fork is refused. Read-only ones are shared.",
    )

    def asked(self) -> ForkParams:
        """What core makes of it."""
        check_reserved_names(self.metadata or {})
        timeout_s = SAME if self.timeout is None else self.timeout
        return ForkParams(
            count=self.count, name=self.name, metadata=self.metadata, env=self.env, timeout_s=timeout_s, share_volumes=self.share_volumes
        )


class ForksAnswer(ResponseModel):
    """Forks that run."""

    sandboxes: list[SandboxAnswer]

    @classmethod
    def of(cls, sandboxes: Sequence[SandboxInfo]) -> ForksAnswer:
        """What is told of them."""
        return cls(sandboxes=[SandboxAnswer.of(sandbox) for sandbox in sandboxes])


class BranchAnswer(ResponseModel):
    """One sandbox of a tree of forks."""

    id: str
    parent: str | None = Field(description="Whose fork it is; null of what is nobody's.")
    state: str
    name: str | None
    created_at: datetime

    @classmethod
    def of(cls, sandbox: SandboxInfo) -> BranchAnswer:
        """What is told of it."""
        return cls(id=sandbox.id, parent=sandbox.spec.parent, state=str(sandbox.state), name=sandbox.name, created_at=sandbox.created_at)


class TreeAnswer(ResponseModel):
    """Sandboxes that came of one another."""

    root: str = Field(description="The first one. It may have ended so long ago that it is not among the sandboxes.")
    sandboxes: list[BranchAnswer] = Field(description="All that are known still, oldest first: each behind whose fork it is.")

    @classmethod
    def of(cls, tree: ForkTree) -> TreeAnswer:
        """What is told of them."""
        return cls(root=tree.root, sandboxes=[BranchAnswer.of(sandbox) for sandbox in tree.sandboxes])


class PromotedAnswer(ResponseModel):
    """What a fork was chosen over."""

    kept: str
    ended: list[str] = Field(description="Its siblings and what came of them: those that lived until now.")
    failed: dict[str, str] = Field(description="Those that could not be ended, and why; ask again.")

    @classmethod
    def of(cls, promoted: Promotion) -> PromotedAnswer:
        """What is told of it."""
        return cls(kept=promoted.kept, ended=list(promoted.ended), failed={str(id_): why for id_, why in promoted.failed.items()})
