"""What survives a restart: one frozen value for each kind of row. All times are UTC and aware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NewType

from sandlot.model.access import OwnerId, Quota
from sandlot.model.ids import FileId as FileId  # noqa: PLC0414 - a word of records too
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, VolumeId
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.states import State

ExecutionId = NewType("ExecutionId", str)
"""The id of the process or cell that it was: 32 hexadecimal digits."""

FOREGROUND, BACKGROUND, INSTALL = "foreground", "background", "install"
"""How a run was begun; an install is one that may read the package indexes whatever its sandbox's network is."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox: what was asked for, and where it is in its life. The record is the intent: it is written before what it says is done.

    Args:
        spec: What was asked for; its environment is emptied once the sandbox has ended.
        node: Who runs it.
        owner: Whose it is.
        name: A word for people.
        state: Where it is, or is on its way to.
        created_at: When it was asked for.
        expires_at: When it ends by itself; None is never.
        idle_timeout_s: Seconds of doing nothing after which it is ended; None is never.
        ref: What its driver knows it by; None before it was started.
        exit_reason: Of one that ended: a text of ``ExitReason``.
        exit_detail: The same, for people.
        ended_at: When it ended.
        idempotency_key: The client's own name for the request that made it.
        request_digest: SHA-256 of that request, in hexadecimal.
    """

    spec: SandboxSpec
    node: NodeId
    owner: OwnerId
    name: str | None
    state: State
    created_at: datetime
    expires_at: datetime | None = None
    idle_timeout_s: float | None = None
    ref: str | None = None
    exit_reason: str | None = None
    exit_detail: str = ""
    ended_at: datetime | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self.spec.id


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot of a sandbox; its bytes are in the folder of its id in the state directory.

    Args:
        id: Its id.
        node: Who took it, and can start sandboxes from it.
        owner: Whose it is.
        name: What its owner calls it: unique among the owner's; None is nothing.
        kind: What it holds.
        spec: The sandbox that it was taken of, as it was asked for, its environment included.
        created_at: When it was asked for.
        ready: Whether it is whole and synced; one that is not when a service starts was never finished, and is removed.
        size_bytes: What it takes on the disk; 0 until it is ready.
        layer: Whether its files are there apart from memory, to fall back to.
        problem: Why nothing can be started from it, for people; empty where that is not known.
        idempotency_key: The client's own name for the request that made it.
        request_digest: SHA-256 of that request, in hexadecimal.
    """

    id: SnapshotId
    node: NodeId
    owner: OwnerId
    name: str | None
    kind: SnapshotKind
    spec: SandboxSpec
    created_at: datetime
    ready: bool = False
    size_bytes: int = 0
    layer: bool = False
    problem: str = ""
    idempotency_key: str | None = None
    request_digest: str | None = None


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A volume; its bytes are in a file of its id in the state directory.

    Args:
        id: Its id.
        node: Who has it: only sandboxes of that node can.
        owner: Whose it is.
        name: What its owner calls it: unique among the owner's.
        size_bytes: What may be written to it.
        created_at: When it was asked for.
        ready: Whether it is there; one that is not when a service starts was never finished, and is removed.
        used_bytes: What was written to it when the last sandbox let go of it.
    """

    id: VolumeId
    node: NodeId
    owner: OwnerId
    name: str
    size_bytes: int
    created_at: datetime
    ready: bool = False
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key without its secret.

    Args:
        id: 12 hexadecimal digits.
        name: What people call it; no two that are not revoked have one name.
        sha256: Of the whole secret, in hexadecimal.
        operator: Whether it may make keys and sees everybody's sandboxes.
        quota: What it may take.
        created_at: When it was made.
        revoked_at: When it was taken away; its id is never used again.
    """

    id: OwnerId
    name: str
    sha256: str
    operator: bool
    quota: Quota
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the file store; its bytes are a blob of the same id.

    Args:
        id: Its id.
        owner: Whose it is.
        filename: What it is called when it is put into a sandbox: one path component.
        media_type: As its owner gave it.
        size_bytes: How large it is.
        sha256: Of its bytes, in hexadecimal.
        created_at: When its upload was complete.
        sandbox: The sandbox that it came out of; None where a client uploaded it.
    """

    id: FileId
    owner: OwnerId
    filename: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    sandbox: SandboxId | None = None


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """One run of code or of a command, as the log keeps it.

    Args:
        id: Of the process or cell.
        owner: Whose it is.
        sandbox: Where it ran.
        kind: ``code`` or ``command``.
        language: Of code.
        code: The code, shortened to the log's bound.
        argv: Of a command, shortened likewise.
        created_at: When it was begun.
        status: running, ok, error, timeout, killed, died, exited, signalled, pids, oom, or lost: nobody knows how it ended.
        exit_code: Of a command that ended.
        stdout: Head and tail of it, shortened to the log's bound.
        stderr: The same.
        stdout_omitted_bytes: How much of it is not there.
        stderr_omitted_bytes: The same.
        duration_s: None while it runs.
        error: Of code that raised: ``NameError: name 'x' is not defined``.
        origin: Which API it came by: ``native`` or the name of a door.
        files: How many files it made or changed, where that was asked for.
        mode: How it was begun; None where nobody knows, because a version before revision 0002 of the store wrote it.
    """

    id: ExecutionId
    owner: OwnerId
    sandbox: SandboxId
    kind: str
    created_at: datetime
    status: str
    language: str | None = None
    code: str | None = None
    argv: tuple[str, ...] | None = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    duration_s: float | None = None
    error: str | None = None
    origin: str = "native"
    files: int | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Something that happened, before it has a number.

    Args:
        type: ``sandbox.created``, ``sandbox.ended`` and the like: a noun, a dot, a past participle.
        at: When.
        owner: Whose it is.
        sandbox: Which one it is about.
        data: JSON-representable details; no environment, no code, no secret.
    """

    type: str
    at: datetime
    owner: OwnerId
    sandbox: SandboxId | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened.

    Args:
        sequence: Larger than that of every event that was committed before; from 1.
        event: It.
    """

    sequence: int
    event: NewEvent
