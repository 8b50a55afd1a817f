"""PandaStack's words into ours and back. Pure.

Laws:
- A sandbox there is one here, whoever made it and by which API.
- What the service itself needs to know of one is in its metadata, under names that no client can set or see.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from types import MappingProxyType

from sandlot.compat.common import VENDOR_KEY, rfc3339_ms
from sandlot.compat.pandastack.schemas import (
    CreateBody,
    EntryAnswer,
    LifecycleAnswer,
    LifecycleBody,
    SandboxAnswer,
    SnapshotAnswer,
    TemplateAnswer,
    VolumeAnswer,
)
from sandlot.model.access import Quota
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError
from sandlot.model.files import Entry
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import RESERVED_PREFIX, CreateSandboxParams, SandboxInfo, UpdateSandboxParams
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import DEFAULT_TEMPLATE, MAX_TIMEOUT_S, MIB, Limits, VolumeMount
from sandlot.model.states import State
from sandlot.model.volumes import VolumeInfo

NAME = "pandastack"
TREE_KEY, TTL_KEY = "sandlot.tree", "sandlot.ttl"

DEFAULT_TTL_S = 3600.0
"""The vendor's (its page on the life of a sandbox)."""
MOUNTED = "/mnt"
"""The folder of volumes (the vendor's page on files)."""

_STATUSES: Mapping[State, str] = MappingProxyType(
    {
        State.SNAPSHOTTING: "running",
        State.PAUSING: "paused",
        State.HIBERNATING: "hibernated",
        State.WAKING: "hibernated",
        State.FAILED: "failed",
    }
)
"""Those that the vendor has another word for."""


# -- sandboxes ------------------------------------------------------------------------------------------------------


def new_sandbox(body: CreateBody, quota: Quota) -> CreateSandboxParams:
    """A sandbox as it was asked for. As at the vendor's, one that is persistent has no deadline, and its ``ttl_seconds`` waits until it is not.

    Raises:
        InvalidRequestError: Out of bounds.
    """
    own = {VENDOR_KEY: NAME}
    if body.persistent and body.ttl_seconds is not None:
        own[TTL_KEY] = str(_ttl(body.ttl_seconds))
    return CreateSandboxParams(
        template=body.template or DEFAULT_TEMPLATE,
        snapshot=body.from_snapshot,
        metadata={**checked(body.metadata), **own},
        timeout_s=None if body.persistent else default_ttl(quota) if body.ttl_seconds is None else float(_ttl(body.ttl_seconds)),
        volumes=tuple(VolumeMount(each.name, f"{MOUNTED}/{each.name}", each.read_only) for each in body.volumes),
    )


def default_ttl(quota: Quota) -> float:
    """How long a sandbox lives where nobody said it."""
    return DEFAULT_TTL_S if quota.lifetime_s is None else min(DEFAULT_TTL_S, quota.lifetime_s)


def _ttl(seconds: int) -> int:
    if not 1 <= seconds <= MAX_TIMEOUT_S:
        raise InvalidRequestError(f"ttl_seconds is {seconds}; it must be from 1 to {MAX_TIMEOUT_S:g}.", fields={"field": "ttl_seconds"})
    return seconds


def checked(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Metadata as a client may give it.

    Raises:
        InvalidRequestError: A name in it is the service's own.
    """
    for name in metadata:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidRequestError(
                f"{name[:64]!r} cannot be set: names in the metadata that begin with {RESERVED_PREFIX!r} are the service's own.",
                hint="Choose another name.",
                fields={"field": "metadata"},
            )
    return metadata


def forked(parent: SandboxInfo, metadata: Mapping[str, str] | None, tree: str) -> Mapping[str, str]:
    """The metadata of a fork: what was given, or its parent's, and the tree that it is of."""
    words = (
        {name: value for name, value in parent.metadata.items() if not name.startswith(RESERVED_PREFIX)} if metadata is None else checked(metadata)
    )
    kept = {TTL_KEY: parent.metadata[TTL_KEY]} if TTL_KEY in parent.metadata else {}
    return {**words, **kept, VENDOR_KEY: NAME, TREE_KEY: tree}


def update(sandbox: SandboxInfo, body: LifecycleBody, quota: Quota) -> UpdateSandboxParams:
    """What a change of its lifecycle comes to.

    Raises:
        InvalidRequestError: Out of bounds, or a deadline for what has none.
    """
    persistent = sandbox.spec.timeout_s is None
    if body.ttl_seconds is not None and (body.persistent or (persistent and body.persistent is None)):
        raise InvalidRequestError("A persistent sandbox has no ttl_seconds.", hint="Send it with persistent=false.", fields={"field": "ttl_seconds"})
    if body.persistent:
        return UpdateSandboxParams(persistent=True)
    if body.ttl_seconds is not None:
        return UpdateSandboxParams(timeout_s=float(_ttl(body.ttl_seconds)))
    if persistent and body.persistent is False:
        return UpdateSandboxParams(timeout_s=float(sandbox.metadata[TTL_KEY]) if TTL_KEY in sandbox.metadata else default_ttl(quota))
    return UpdateSandboxParams()


def sandbox(sandbox: SandboxInfo, boot_s: float | None = None) -> SandboxAnswer:
    """What is told of a sandbox."""
    spec = sandbox.spec
    words = {name: value for name, value in sandbox.metadata.items() if not name.startswith(RESERVED_PREFIX)}
    if spec.parent is not None:
        words |= {"fork_parent_id": spec.parent, "fork_tree_id": tree_of(sandbox)}
    return SandboxAnswer(
        id=sandbox.id,
        template=spec.template.name,
        cpu=max(1, math.ceil(spec.limits.cpus)),
        memory_mb=spec.limits.memory_bytes // MIB,
        status=status(sandbox),
        created_at=rfc3339_ms(sandbox.created_at),
        metadata=words,
        persistent=spec.timeout_s is None,
        ttl_seconds=ttl_of(sandbox),
        from_snapshot=spec.snapshot,
        boot_ms=None if boot_s is None else round(boot_s * 1000),
    )


def tree_of(sandbox: SandboxInfo) -> str:
    """The tree that a fork is of; its parent's id where it was made by another API."""
    return sandbox.metadata.get(TREE_KEY) or sandbox.spec.parent or ""


def status(sandbox: SandboxInfo) -> str:
    """A state in the vendor's words."""
    return _STATUSES.get(sandbox.state, str(sandbox.state))


def ttl_of(sandbox: SandboxInfo) -> int:
    """How long it was given; 0 where it is persistent and was given nothing."""
    return int(sandbox.metadata.get(TTL_KEY, 0)) if sandbox.spec.timeout_s is None else math.ceil(sandbox.spec.timeout_s)


def lifecycle(sandbox: SandboxInfo) -> LifecycleAnswer:
    """How long it lives."""
    idle_s = 0.0 if sandbox.idle_since is None else (sandbox.as_of - sandbox.idle_since).total_seconds()
    return LifecycleAnswer(ttl_seconds=ttl_of(sandbox), persistent=sandbox.spec.timeout_s is None, idle_seconds=int(idle_s))


def no_fork(sandbox: SandboxInfo) -> ConflictError:
    """What is said of one that is to be promoted and is nobody's fork."""
    return ConflictError(f"Sandbox {sandbox.id} is nobody's fork.", code=ErrorCode.CONFLICT, hint="Promote one that fork or fork-tree gave.")


# -- files, snapshots, volumes, templates -----------------------------------------------------------------------------


def entry(found: Entry) -> EntryAnswer:
    """What is told of a file, a folder or a link."""
    kinds = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "file": stat.S_IFREG}
    mode = stat.filemode(kinds.get(found.kind, 0) | found.mode)
    return EntryAnswer(name=found.name, is_dir=found.kind == "directory", size=found.size, mode=mode, mtime=found.modified_ns // 1_000_000_000)


def snapshot(record: SnapshotRecord) -> SnapshotAnswer:
    """What is told of a snapshot."""
    return SnapshotAnswer(
        id=record.id,
        snapshot_id=record.id,
        sandbox_id=record.spec.id,
        template=record.spec.template.name,
        size_bytes=record.size_bytes,
        created_at=rfc3339_ms(record.created_at),
    )


def volume(found: VolumeInfo) -> VolumeAnswer:
    """What is told of a volume."""
    return VolumeAnswer(
        id=found.id, name=found.name, size_mb=found.size_bytes // MIB, size_bytes=found.size_bytes, created_at=rfc3339_ms(found.created_at)
    )


def template(found: TemplateInfo) -> TemplateAnswer:
    """What is told of a template: a sandbox of it has the limits that nobody has asked to be others."""
    limits = Limits()
    return TemplateAnswer(name=found.name, description=found.description, cpu=math.ceil(limits.cpus), memory_mb=limits.memory_bytes // MIB)


def position(record: SnapshotRecord) -> Position:
    """Where a list of snapshots goes on after one."""
    return Position(record.created_at, record.id)
