"""Translation between Tensorlake's control plane and the node. Pure.

Invariants:
- An option that Sandlot does not have is refused with the reason, not ignored. A value without effect is accepted.
- The image is returned by the name that the client passed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sandlot.compat.common import VENDOR_KEY
from sandlot.compat.tensorlake.addressing import NAMESPACE
from sandlot.compat.tensorlake.control.schemas import (
    CreatedSandboxResponse,
    CreateSandboxRequest,
    Mount,
    MountRequest,
    Network,
    NetworkOptions,
    PoolRequest,
    PoolResponse,
    Resize,
    ResourceOptions,
    Resources,
    SandboxResponse,
    SnapshotResponse,
    Status,
    UpdateSandboxRequest,
)
from sandlot.model.access import Principal
from sandlot.model.errors import ForbiddenError, InvalidRequestError
from sandlot.model.network import MOST_OPEN, NetworkEntry, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries
from sandlot.model.pools import PoolInfo
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange, SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import DEFAULT_TEMPLATE, DEFAULT_TIMEOUT_S, MIB, Limits, SnapshotKind, User, VolumeMount
from sandlot.model.states import State

VENDOR: Final = "tensorlake"
"""Value of the label ``VENDOR_KEY``, and origin of runs in the execution log."""
IMAGE_KEY: Final = "sandlot.api.image"
"""Label whose value is the image as the client named it."""
PORTS_KEY: Final = "sandlot.api.ports"
"""Label whose value is the JSON list of the exposed ports as the client named them."""
POOL_KEY: Final = "sandlot.api.pool"
"""Label of a claimed sandbox whose value is the id of its pool."""
TIMEOUT_KEY: Final = "sandlot.api.timeout"
"""Label of a pool whose value is the timeout of claimed sandboxes in seconds; 0 means none."""
NETWORK_KEY: Final = "sandlot.api.network"
"""Label of a pool whose value is the network of claimed sandboxes, as the client passed it, in JSON."""

IMAGES: Mapping[str, str] = {"": DEFAULT_TEMPLATE, "tensorlake/ubuntu-minimal": DEFAULT_TEMPLATE}
"""Image of Tensorlake -> template. Any other image is the name of a template."""

STATUSES: Mapping[State, Status] = {
    State.CREATING: "pending",
    State.RUNNING: "running",
    State.SNAPSHOTTING: "snapshotting",
    State.PAUSING: "suspending",
    State.PAUSED: "suspended",
    State.HIBERNATING: "suspending",
    State.HIBERNATED: "suspended",
    State.WAKING: "pending",
    State.STOPPING: "terminated",
    State.STOPPED: "terminated",
    State.FAILED: "terminated",
}
"""State -> status of Tensorlake; total."""

_REACHABLE = frozenset({"running", "snapshotting", "suspending", "suspended"})
_KINDS: Mapping[str | None, SnapshotKind] = {None: SnapshotKind.MEMORY, "memory": SnapshotKind.MEMORY, "filesystem": SnapshotKind.FILES}


def not_possible(field: str, hint: str) -> InvalidRequestError:
    """Return the error for an option that Sandlot does not have.

    Args:
        field: Name of the field.
        hint: What to do, and the reason.
    """
    return InvalidRequestError(f"{field} is not possible here.", hint=hint, fields={"field": field})


def template(image: str) -> str:
    """Return the template of an image."""
    return IMAGES.get(image, image)


def network_policy(options: NetworkOptions | None) -> NetworkPolicy | NetworkUpTo:
    """Return the network policy of a request. A destination that is both allowed and denied is denied.

    Raises:
        InvalidRequestError: A rule is invalid, or names are allowed while the client closes DNS.
    """
    if options is None:
        return MOST_OPEN
    entries = tuple(map(_all_ports, network_entries(options.allow_out, options.deny_out)))
    if not options.allow_out:
        return NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, entries)) if options.allow_internet_access else NetworkPolicy(NetworkMode.NONE)
    if not options.allow_internet_access and any(entry.allow and isinstance(entry.parsed.host, str) for entry in entries):
        raise not_possible(
            "A host name in allow_out with allow_internet_access=False", "Pass allow_internet_access=True: with allow_out, it opens only DNS."
        )
    return NetworkPolicy(NetworkMode.ALLOWLIST, entries, packages=False)


def _all_ports(entry: NetworkEntry) -> NetworkEntry:
    """Return an entry for all ports: a port in a rule of Tensorlake does not limit the rule."""
    rule = entry.parsed
    return NetworkEntry(entry.allow, str(replace(rule, port="*" if isinstance(rule.host, str) else None)))


def limits_change(options: ResourceOptions | None) -> LimitsChange:
    """Return the limits of a request.

    Raises:
        InvalidRequestError: The request has GPUs, or a limit is out of range.
    """
    if options is None:
        return LimitsChange()
    if options.gpus:
        raise not_possible("gpus", "Omit gpus: Sandlot has no GPUs.")
    return LimitsChange(
        cpus=options.cpus,
        memory_bytes=None if options.memory_mb is None else options.memory_mb * MIB,
        disk_bytes=None if options.disk_mb is None else options.disk_mb * MIB,
    )


def timeout_s(seconds: int | None) -> float | None:
    """Return a timeout. None is the default, 0 means no timeout."""
    return DEFAULT_TIMEOUT_S if seconds is None else float(seconds) or None


def volumes(mounts: Sequence[MountRequest] | None) -> tuple[VolumeMount, ...]:
    """Return file systems as volumes, by name or id.

    Raises:
        InvalidRequestError: A mount has an option that Sandlot does not have.
    """
    for mount in mounts or ():
        if mount.prefetch:
            raise not_possible("prefetch", "Omit prefetch: volumes are stored on this host.")
        if mount.snapshot_id is not None:
            raise not_possible("snapshot_id of a file system", "Omit snapshot_id: volumes have no snapshots.")
        if mount.owner is not None:
            raise not_possible("owner of a file system", "Omit owner: files belong to the user that wrote them.")
    return tuple(VolumeMount(mount.file_system_id, mount.mount_path, mount.read_only) for mount in mounts or ())


def check_access(unauthenticated: bool | None, principal: Principal) -> None:  # noqa: FBT001 - a field of a body
    """Refuse public ports that the principal may not have.

    Raises:
        ForbiddenError: The request makes the ports public, and the quota ``public_ports`` of the principal does not allow this.
    """
    if unauthenticated and not principal.may_have_public_ports:
        raise ForbiddenError(
            "allow_unauthenticated_access is not possible here: the quota `public_ports` of this key does not allow public ports.",
            hint="Omit it and open the preview URLs of the ports with their token, or ask the operator for the quota `public_ports`.",
            fields={"field": "allow_unauthenticated_access", "quota": "public_ports"},
        )


def port_labels(ports: Sequence[int] | None) -> dict[str, str]:
    """Return the labels for the exposed ports of a request; none if the request does not name any."""
    return {} if ports is None else {PORTS_KEY: json.dumps(ports)}


def create_params(body: CreateSandboxRequest, principal: Principal) -> CreateSandboxParams:
    """Return the create request of a sandbox. All ports have preview URLs; exposed ports are only stored and returned.

    Raises:
        InvalidRequestError: The request has an option that Sandlot does not have.
        ForbiddenError: The principal may not have public ports.
    """
    check_access(body.allow_unauthenticated_access, principal)
    if body.entrypoint:
        raise not_possible("entrypoint", "Start the program with start_process.")
    if body.max_pending_secs:
        raise not_possible("max_pending_secs", "Omit max_pending_secs, or pass 0: requests do not wait for capacity.")
    if body.snapshot_id is not None and body.image is not None:
        raise not_possible("image", "Omit image: the snapshot has an image.")
    metadata = {VENDOR_KEY: VENDOR, **({IMAGE_KEY: body.image} if body.image else {}), **port_labels(body.exposed_ports)}
    return CreateSandboxParams(
        template=template(body.image or ""),
        snapshot=body.snapshot_id,
        name=body.name,
        metadata=metadata,
        limits=limits_change(body.resources),
        timeout_s=timeout_s(body.timeout_secs),
        network=None if body.network is None and body.snapshot_id is not None else network_policy(body.network),
        auto_resume=body.auto_resume is not False,
        volumes=volumes(body.file_systems),
        public_ports=bool(body.allow_unauthenticated_access),
    )


def update_params(body: UpdateSandboxRequest, principal: Principal) -> UpdateSandboxParams:
    """Return the update of a sandbox. An omitted network stays; a network of null opens as much as a create request without one.

    Raises:
        InvalidRequestError: The request is empty, or has an option that Sandlot does not have.
        ForbiddenError: The principal may not have public ports.
    """
    check_access(body.allow_unauthenticated_access, principal)
    if not body.model_fields_set:
        raise InvalidRequestError("The request changes nothing.", hint="Pass name, resources, network, exposed_ports or auto_resume.")
    return UpdateSandboxParams(
        name=body.name,
        labels=port_labels(body.exposed_ports),
        public_ports=body.allow_unauthenticated_access,
        limits=limits_change(body.resources),
        auto_resume=body.auto_resume,
        network=network_policy(body.network) if "network" in body.model_fields_set else None,
    )


def snapshot_kind(snapshot_type: str | None) -> SnapshotKind:
    """Return the kind of a snapshot; by default with memory."""
    return _KINDS[snapshot_type]


def resources(limits: Limits) -> Resources:
    """Return limits as resources."""
    return Resources(cpus=limits.cpus, memory_mb=limits.memory_bytes // MIB, disk_mb=limits.disk_bytes // MIB)


def network(policy: NetworkPolicy) -> Network | None:
    """Return the network policy of a sandbox; None if it limits nothing. Modes without entries reach no hosts besides the package indexes."""
    allowed, denied = ([entry.rule.removesuffix(":*") for entry in policy.entries if entry.allow is decision] for decision in (True, False))
    if policy.mode is NetworkMode.INTERNET:
        return Network(allow_internet_access=True, deny_out=denied) if policy.entries else None
    return Network(allow_internet_access=bool(allowed), allow_out=allowed, deny_out=denied)


def status(sandbox: SandboxInfo) -> Status:
    """Return the status of a sandbox."""
    return STATUSES[sandbox.state]


def created_sandbox(sandbox: SandboxInfo, url: str) -> CreatedSandboxResponse:
    """Return the response for a sandbox that was created, claimed or copied."""
    current = status(sandbox)
    return CreatedSandboxResponse(sandbox_id=sandbox.id, status=current, sandbox_url=url if current in _REACHABLE else None, name=sandbox.name)


def sandbox_response(sandbox: SandboxInfo, url: str, ingress: str | None = None) -> SandboxResponse:
    """Return the response for a sandbox.

    Args:
        sandbox: The sandbox.
        url: URL of its inside.
        ingress: URL of the domain of previews, from which the client computes ``url_for_port``. None: there are no previews.
    """
    current, spec, exit_ = status(sandbox), sandbox.spec, sandbox.exit
    limits = resources(spec.limits)
    return SandboxResponse(
        id=sandbox.id,
        namespace=NAMESPACE,
        status=current,
        image=sandbox.metadata.get(IMAGE_KEY, spec.template.name),
        runtime=spec.isolation,
        resources=limits,
        resource_resize=Resize(requested=limits),
        timeout_secs=0 if spec.timeout_s is None else round(spec.timeout_s),
        name=sandbox.name,
        auto_resume=spec.auto_resume,
        network_policy=network(spec.network),
        pool_id=sandbox.metadata.get(POOL_KEY),
        termination_reason=None if exit_ is None else str(exit_.reason),
        error_details=None if exit_ is None else exit_.detail or None,
        created_at=milliseconds(sandbox.created_at),
        terminated_at=None if sandbox.ended_at is None else milliseconds(sandbox.ended_at),
        ingress_endpoint=ingress,
        sandbox_url=url if current in _REACHABLE else None,
        file_systems=mounts(sandbox),
        exposed_ports=json.loads(sandbox.metadata.get(PORTS_KEY, "[]")),
        allow_unauthenticated_access=spec.public_ports,
    )


def mounts(sandbox: SandboxInfo) -> list[Mount]:
    """Return the volumes of a sandbox as file systems, by the names that the client passed."""
    return [Mount(file_system_id=each.requested_as or each.volume, mount_path=each.path, read_only=each.read_only) for each in sandbox.spec.volumes]


def snapshot_response(record: SnapshotRecord) -> SnapshotResponse:
    """Return the response for a snapshot."""
    unusable = bool(record.problem) and not record.has_overlay
    return SnapshotResponse(
        id=record.id,
        namespace=NAMESPACE,
        sandbox_id=record.spec.id,
        base_image=record.spec.metadata.get(IMAGE_KEY, record.spec.template.name),
        status="failed" if unusable else "completed",
        snapshot_type="filesystem" if record.kind is SnapshotKind.FILES else "memory",
        error=record.problem or None,
        size_bytes=record.size_bytes,
        created_at=milliseconds(record.created_at),
    )


def pool_labels(body: PoolRequest) -> dict[str, str]:
    """Return the labels of a pool, which hold the options of sandboxes that are claimed.

    Raises:
        InvalidRequestError: The request has an option that Sandlot does not have.
    """
    if body.entrypoint:
        raise not_possible("entrypoint", "Start the program with start_process.")
    network_policy(body.network)
    labels = {VENDOR_KEY: VENDOR, IMAGE_KEY: body.image, TIMEOUT_KEY: str(body.timeout_secs)}
    return labels if body.network is None else {**labels, NETWORK_KEY: body.network.model_dump_json()}


def pool_timeout_s(labels: Mapping[str, str]) -> float | None:
    """Return the timeout of sandboxes that are claimed from a pool; the default if another API created the pool."""
    return timeout_s(int(labels[TIMEOUT_KEY])) if TIMEOUT_KEY in labels else DEFAULT_TIMEOUT_S


def pool_network(labels: Mapping[str, str]) -> NetworkOptions | None:
    """Return the network of sandboxes that are claimed from a pool. None: the default."""
    return NetworkOptions.model_validate_json(labels[NETWORK_KEY]) if NETWORK_KEY in labels else None


def pool_response(pool: PoolInfo) -> PoolResponse:
    """Return the response for a pool, without its sandboxes."""
    labels = pool.metadata
    return PoolResponse(
        id=pool.id,
        namespace=NAMESPACE,
        image=labels.get(IMAGE_KEY, pool.template.full_name),
        resources=resources(pool.limits),
        timeout_secs=round(pool_timeout_s(labels) or 0),
        max_containers=pool.sizes.max,
        warm_containers=pool.sizes.warm,
        network_policy=None if (options := pool_network(labels)) is None else Network(**options.model_dump()),
    )


def user(value: str | Mapping[str, str | int | None] | None) -> User:
    """Return the user of a process, given a name, an id or both: ``root``, ``1000:1000``, ``{"uid": 0}``.

    Raises:
        InvalidRequestError: The value is not a user.
    """
    text = value
    if isinstance(value, Mapping):
        given = {name: each for name, each in value.items() if each is not None}
        name, uid, gid = given.get("name"), given.get("uid"), given.get("gid")
        if given.keys() <= {"name", "uid", "gid"} and (name is None) != (uid is None):
            text = str(uid if name is None else name) + ("" if gid is None else f":{gid}")
    if text is None:
        return User.USER
    if not isinstance(text, str):
        raise InvalidRequestError(f"{str(value)[:64]} is not a user.", hint="Pass a name or a uid, and a gid if needed.", fields={"field": "user"})
    return _USERS.get(text) or User(text)


_USERS: Mapping[str, User] = {
    **dict.fromkeys(("user", "1000", "1000:1000", "user:user", "user:1000", "1000:user"), User.USER),
    **dict.fromkeys(("root", "0", "0:0", "root:root", "root:0", "0:root"), User.ROOT),
}


def milliseconds(at: datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return int(at.timestamp() * 1000)
