"""Translation between the PandaStack API and the node. Pure.

Invariants:
- Every sandbox of the key is a sandbox of this API, whichever API created it.
- The API keeps its own data in labels, which clients can neither set nor see.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sandlot.compat.common import VENDOR_KEY, client_metadata, rfc3339_ms
from sandlot.compat.pandastack.schemas import (
    CreateSandboxRequest,
    FileEntryResponse,
    LifecycleResponse,
    SandboxResponse,
    SnapshotResponse,
    TemplateResponse,
    UpdateLifecycleRequest,
    VolumeResponse,
)
from sandlot.model.access import Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError
from sandlot.model.files import Entry
from sandlot.model.network import MOST_OPEN
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import RESERVED_PREFIX, CreateSandboxParams, SandboxInfo, UpdateSandboxParams
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import DEFAULT_TEMPLATE, MAX_TIMEOUT_S, MIB, VolumeMount
from sandlot.model.states import State
from sandlot.model.templates import BuiltRoot, TemplateRecord
from sandlot.model.volumes import VolumeInfo

VENDOR: Final = "pandastack"
"""Value of the label ``VENDOR_KEY``, and origin of runs in the execution log."""
TREE_KEY: Final = "sandlot.tree"
"""Label whose value is the id of the tree of a fork."""
TTL_KEY: Final = "sandlot.ttl"
"""Label whose value is the ``ttl_seconds`` of a persistent sandbox, which is used when the sandbox is persistent no more."""

DEFAULT_TTL_S: Final = 3600.0
"""Default of ``ttl_seconds``, as the vendor documents it."""
MOUNTS: Final = "/mnt"
"""Directory of volumes, as the vendor documents it."""

_STATUSES: Mapping[State, str] = MappingProxyType(
    {
        State.SNAPSHOTTING: "running",
        State.PAUSING: "paused",
        State.HIBERNATING: "hibernated",
        State.WAKING: "hibernated",
        State.FAILED: "failed",
    }
)
"""States that have another name with the vendor."""


# -- sandboxes ------------------------------------------------------------------------------------------------------


def create_params(body: CreateSandboxRequest, principal: Principal) -> CreateSandboxParams:
    """Return the create request of a sandbox. A persistent sandbox has no deadline; its ``ttl_seconds`` is stored for later.

    Ports are public at PandaStack, and here where the quota of the principal allows it.

    Raises:
        InvalidRequestError: ``ttl_seconds`` is out of bounds, or a metadata name is reserved.
    """
    own = {VENDOR_KEY: VENDOR}
    if body.persistent and body.ttl_seconds is not None:
        own[TTL_KEY] = str(_ttl(body.ttl_seconds))
    return CreateSandboxParams(
        template=body.template or DEFAULT_TEMPLATE,
        snapshot=body.from_snapshot,
        metadata={**check_client_metadata(body.metadata), **own},
        timeout_s=None if body.persistent else default_ttl(principal.quota) if body.ttl_seconds is None else float(_ttl(body.ttl_seconds)),
        network=MOST_OPEN if body.from_snapshot is None else None,
        volumes=tuple(VolumeMount(each.name, f"{MOUNTS}/{each.name}", each.read_only) for each in body.volumes),
        public_ports=None,
    )


def default_ttl(quota: Quota) -> float:
    """Return the timeout of a sandbox without ``ttl_seconds``."""
    return DEFAULT_TTL_S if quota.lifetime_s is None else min(DEFAULT_TTL_S, quota.lifetime_s)


def _ttl(seconds: int) -> int:
    if not 1 <= seconds <= MAX_TIMEOUT_S:
        raise InvalidRequestError(f"`ttl_seconds` is {seconds}; it must be from 1 to {MAX_TIMEOUT_S:g}.", fields={"field": "ttl_seconds"})
    return seconds


def check_client_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata of a request.

    Raises:
        InvalidRequestError: A metadata name is reserved.
    """
    for name in metadata:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidRequestError(
                f"{name[:64]!r} cannot be set: metadata names that begin with {RESERVED_PREFIX!r} are the service's own.",
                hint="Choose another name.",
                fields={"field": "metadata"},
            )
    return metadata


def fork_metadata(parent: SandboxInfo, metadata: Mapping[str, str] | None, tree: str) -> Mapping[str, str]:
    """Return the metadata of a fork.

    Args:
        parent: Sandbox that is forked.
        metadata: Metadata of the request. None: those of the parent.
        tree: Id of the fork's tree.
    """
    chosen = client_metadata(parent.metadata) if metadata is None else check_client_metadata(metadata)
    inherited = {TTL_KEY: parent.metadata[TTL_KEY]} if TTL_KEY in parent.metadata else {}
    return {**chosen, **inherited, VENDOR_KEY: VENDOR, TREE_KEY: tree}


def update_params(sandbox: SandboxInfo, body: UpdateLifecycleRequest, quota: Quota) -> UpdateSandboxParams:
    """Return the update of a sandbox's lifecycle.

    Raises:
        InvalidRequestError: ``ttl_seconds`` is out of bounds, or given for a persistent sandbox.
    """
    persistent = sandbox.spec.timeout_s is None
    if body.ttl_seconds is not None and (body.persistent or (persistent and body.persistent is None)):
        raise InvalidRequestError(
            "A persistent sandbox has no ttl_seconds.", hint="Pass persistent=false with ttl_seconds.", fields={"field": "ttl_seconds"}
        )
    if body.persistent:
        return UpdateSandboxParams(persistent=True)
    if body.ttl_seconds is not None:
        return UpdateSandboxParams(timeout_s=float(_ttl(body.ttl_seconds)))
    if persistent and body.persistent is False:
        return UpdateSandboxParams(timeout_s=float(sandbox.metadata[TTL_KEY]) if TTL_KEY in sandbox.metadata else default_ttl(quota))
    return UpdateSandboxParams()


def sandbox_response(sandbox: SandboxInfo, boot_s: float | None = None) -> SandboxResponse:
    """Return the response for a sandbox.

    Args:
        sandbox: The sandbox.
        boot_s: Seconds that the creation took. None: unknown.
    """
    spec = sandbox.spec
    metadata = client_metadata(sandbox.metadata)
    if spec.parent is not None:
        metadata |= {"fork_parent_id": spec.parent, "fork_tree_id": tree_of(sandbox)}
    return SandboxResponse(
        id=sandbox.id,
        template=spec.template.name,
        cpu=max(1, math.ceil(spec.limits.cpus)),
        memory_mb=spec.limits.memory_bytes // MIB,
        status=status(sandbox),
        created_at=rfc3339_ms(sandbox.created_at),
        metadata=metadata,
        persistent=spec.timeout_s is None,
        ttl_seconds=ttl_of(sandbox),
        from_snapshot=spec.snapshot,
        boot_ms=None if boot_s is None else round(boot_s * 1000),
    )


def tree_of(sandbox: SandboxInfo) -> str:
    """Return the tree of a fork: the id of its parent if another API created the fork."""
    return sandbox.metadata.get(TREE_KEY) or sandbox.spec.parent or ""


def status(sandbox: SandboxInfo) -> str:
    """Return the state of a sandbox by the name of the vendor."""
    return _STATUSES.get(sandbox.state, str(sandbox.state))


def ttl_of(sandbox: SandboxInfo) -> int:
    """Return the ``ttl_seconds`` of a sandbox: 0 if it is persistent and has none."""
    return int(sandbox.metadata.get(TTL_KEY, 0)) if sandbox.spec.timeout_s is None else math.ceil(sandbox.spec.timeout_s)


def lifecycle_response(sandbox: SandboxInfo) -> LifecycleResponse:
    """Return the response for the lifecycle of a sandbox."""
    idle_s = 0.0 if sandbox.idle_since is None else (sandbox.as_of - sandbox.idle_since).total_seconds()
    return LifecycleResponse(ttl_seconds=ttl_of(sandbox), persistent=sandbox.spec.timeout_s is None, idle_seconds=int(idle_s))


def not_a_fork(sandbox: SandboxInfo) -> ConflictError:
    """Return the error for promoting a sandbox that is not a fork."""
    return ConflictError(f"Sandbox {sandbox.id} is not a fork.", code=ErrorCode.CONFLICT, hint="Pass a sandbox that fork or fork-tree has created.")


# -- files, snapshots, volumes, templates -----------------------------------------------------------------------------


def file_entry(entry: Entry) -> FileEntryResponse:
    """Return the response for a file, directory or symbolic link."""
    kinds = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "file": stat.S_IFREG}
    mode = stat.filemode(kinds.get(entry.kind, 0) | entry.mode)
    return FileEntryResponse(name=entry.name, is_dir=entry.kind == "directory", size=entry.size, mode=mode, mtime=entry.modified_ns // 1_000_000_000)


def snapshot_response(record: SnapshotRecord) -> SnapshotResponse:
    """Return the response for a snapshot."""
    return SnapshotResponse(
        id=record.id,
        snapshot_id=record.id,
        sandbox_id=record.spec.id,
        template=record.spec.template.name,
        size_bytes=record.size_bytes,
        created_at=rfc3339_ms(record.created_at),
    )


def volume_response(volume: VolumeInfo) -> VolumeResponse:
    """Return the response for a volume."""
    return VolumeResponse(
        id=volume.id, name=volume.name, size_mb=volume.size_bytes // MIB, size_bytes=volume.size_bytes, created_at=rfc3339_ms(volume.created_at)
    )


def template_response(template: TemplateInfo) -> TemplateResponse:
    """Return the response for a template. Its sandboxes have its default limits, because the client cannot pass others."""
    limits = template.limits
    return TemplateResponse(name=template.name, description=template.description, cpu=math.ceil(limits.cpus), memory_mb=limits.memory_bytes // MIB)


def own_template_response(record: TemplateRecord, root: BuiltRoot | None) -> TemplateResponse:
    """Return the response for a template of a user.

    Args:
        record: The template.
        root: Root file system of its default build; None if it has none.
    """
    return TemplateResponse(
        name=record.name,
        description="",
        cpu=math.ceil(record.limits.cpus),
        memory_mb=record.limits.memory_bytes // MIB,
        is_global=False,
        size_bytes=None if root is None else root.size_bytes,
    )
