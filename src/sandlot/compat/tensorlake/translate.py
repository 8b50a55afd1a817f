"""Tensorlake's words for sandboxes, snapshots and pools into ours and back. Pure.

Laws:
- What is asked for and cannot be kept is refused with the reason, never passed over; a field that says what is so anyway is taken.
- The image that was asked for is given back, whatever the template is called here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sandlot.compat.common import VENDOR_KEY
from sandlot.compat.tensorlake.addressing import NAMESPACE
from sandlot.compat.tensorlake.control.schemas import (
    CreateBody,
    MadeAnswer,
    Mount,
    MountBody,
    Network,
    NetworkBody,
    PoolAnswer,
    PoolBody,
    Resize,
    Resources,
    ResourcesBody,
    SandboxAnswer,
    SnapshotAnswer,
    Status,
    UpdateBody,
)
from sandlot.model.errors import InvalidRequestError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.pools import PoolInfo
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange, SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import DEFAULT_TEMPLATE, DEFAULT_TIMEOUT_S, MIB, Limits, SnapshotKind, User, VolumeMount
from sandlot.model.states import State

NAME = "tensorlake"

IMAGE_KEY = "sandlot.api.image"
POOL_KEY = "sandlot.api.pool"
TIMEOUT_KEY = "sandlot.api.timeout"
NETWORK_KEY = "sandlot.api.network"

IMAGES: Mapping[str, str] = {"": DEFAULT_TEMPLATE, "tensorlake/ubuntu-minimal": DEFAULT_TEMPLATE}
"""Tensorlake's own names for what sandboxes start from; any other one is a template's."""

LATER = "Sandlot does not enforce this yet, so it refuses it: leave it out (pip, npm, apt work), or say allow_internet_access=False (nothing does)."

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
"""What each of our states is called there; total."""

_REACHABLE = frozenset({"running", "snapshotting", "suspending", "suspended"})
_KINDS: Mapping[str | None, SnapshotKind] = {None: SnapshotKind.MEMORY, "memory": SnapshotKind.MEMORY, "filesystem": SnapshotKind.FILES}


def refuse(field: str, why: str) -> InvalidRequestError:
    """What is answered to a field that cannot be kept.

    Args:
        field: Its name.
        why: One sentence: the reason, and what to do.
    """
    return InvalidRequestError(f"{field} is not possible here.", hint=why, fields={"field": field})


def template(image: str) -> str:
    """The template that an image is."""
    return IMAGES.get(image, image)


def network(asked: NetworkBody | None) -> NetworkPolicy | None:
    """The policy that is asked for; None where nothing is said.

    Raises:
        InvalidRequestError: It is one that is not enforced.
    """
    if asked is None:
        return None
    for field in ("allow_out", "deny_out"):
        if getattr(asked, field):
            raise refuse(field, LATER)
    if asked.allow_internet_access:
        raise refuse("allow_internet_access=True", LATER)
    return NetworkPolicy(NetworkMode.NONE)


def change(asked: ResourcesBody | None) -> LimitsChange | None:
    """What is asked for of resources; None where nothing is.

    Raises:
        InvalidRequestError: It asks for what there is not.
    """
    if asked is None:
        return None
    if asked.gpus:
        raise refuse("gpus", "Sandlot has no GPUs: leave it out.")
    given = LimitsChange(
        cpus=asked.cpus,
        memory_bytes=None if asked.memory_mb is None else asked.memory_mb * MIB,
        disk_bytes=None if asked.disk_mb is None else asked.disk_mb * MIB,
    )
    return None if given == LimitsChange() else given


def limits(asked: ResourcesBody | None) -> Limits:
    """What a sandbox that is made anew may use."""
    given = change(asked)
    return Limits() if given is None else given.over(Limits())


def timeout_s(seconds: int | None) -> float | None:
    """A timeout as ours: none is said by 0."""
    return DEFAULT_TIMEOUT_S if seconds is None else float(seconds) or None


def volumes(asked: Sequence[MountBody] | None) -> tuple[VolumeMount, ...]:
    """File systems, which are volumes, by their names or ids.

    Raises:
        InvalidRequestError: They cannot be put there as they are asked for.
    """
    for each in asked or ():
        if each.prefetch:
            raise refuse("prefetch", "A volume lies on this host, and needs no fetching: leave it out.")
        if each.snapshot_id is not None:
            raise refuse("snapshot_id of a file system", "There are no snapshots of volumes: leave it out.")
        if each.owner is not None:
            raise refuse("owner of a file system", "What is in a volume belongs to who wrote it: leave it out.")
    return tuple(VolumeMount(each.file_system_id, each.mount_path, each.read_only) for each in asked or ())


def check_access(unauthenticated: bool | None, ports: Sequence[int] | None) -> None:  # noqa: FBT001 - a field of a body
    """Refuse ports that are to be reached from outside.

    Raises:
        InvalidRequestError: Some are.
    """
    if unauthenticated:
        raise refuse("allow_unauthenticated_access", "Nothing of a sandbox is reached without a key: leave it out.")
    if ports:
        raise refuse("exposed_ports", "Ports of sandboxes have no public address: reach what listens there through a tunnel (create_tunnel).")


def new_sandbox(body: CreateBody) -> CreateSandboxParams:
    """A sandbox that is to be made.

    Raises:
        InvalidRequestError: It cannot be made as it is asked for.
    """
    check_access(body.allow_unauthenticated_access, body.exposed_ports)
    if body.entrypoint:
        raise refuse("entrypoint", "Start what is to run with start_process.")
    if body.max_pending_secs:
        raise refuse("max_pending_secs", "Nothing waits here for capacity: a sandbox is made at once, or refused. Leave it out, or say 0.")
    if body.snapshot_id is not None and body.image is not None:
        raise refuse("image", "A snapshot decides the image of what starts from it: leave it out.")
    metadata = {VENDOR_KEY: NAME} if not body.image else {VENDOR_KEY: NAME, IMAGE_KEY: body.image}
    return CreateSandboxParams(
        template=template(body.image or ""),
        snapshot=body.snapshot_id,
        name=body.name,
        metadata=metadata,
        limits=change(body.resources) or LimitsChange(),
        timeout_s=timeout_s(body.timeout_secs),
        network=network(body.network),
        auto_resume=body.auto_resume is not False,
        volumes=volumes(body.file_systems),
    )


def update(body: UpdateBody, sandbox: SandboxInfo) -> UpdateSandboxParams:
    """What is to be changed of a sandbox.

    Raises:
        InvalidRequestError: It cannot be changed like that.
    """
    check_access(body.allow_unauthenticated_access, body.exposed_ports)
    if "network" in body.model_fields_set and (network(body.network) or NetworkPolicy()).mode is not sandbox.spec.network.mode:
        raise refuse("network", "What a sandbox may reach is decided when it is made: make another one.")
    if not body.model_fields_set:
        raise InvalidRequestError("Nothing is to be changed.", hint="Say what: name, resources or auto_resume.")
    return UpdateSandboxParams(name=body.name, limits=change(body.resources) or LimitsChange(), auto_resume=body.auto_resume)


def kind(word: str | None) -> SnapshotKind:
    """What a snapshot is to hold."""
    return _KINDS[word]


def resources(of: Limits) -> Resources:
    """What a sandbox may use, as it is told."""
    return Resources(cpus=of.cpus, memory_mb=of.memory_bytes // MIB, disk_mb=of.disk_bytes // MIB)


def policy(of: NetworkPolicy | None) -> Network | None:
    """What a sandbox may reach, as it is told: None where nothing was said."""
    return Network() if of is not None and of.mode is NetworkMode.NONE else None


def status(sandbox: SandboxInfo) -> Status:
    """Where a sandbox is in its life."""
    return STATUSES[sandbox.state]


def made(sandbox: SandboxInfo, url: str) -> MadeAnswer:
    """A sandbox as whoever made it is told of it."""
    now = status(sandbox)
    return MadeAnswer(sandbox_id=sandbox.id, status=now, sandbox_url=url if now in _REACHABLE else None, name=sandbox.name)


def sandbox(sandbox: SandboxInfo, url: str) -> SandboxAnswer:
    """A sandbox with all that is told of it."""
    now, spec, exit_ = status(sandbox), sandbox.spec, sandbox.exit
    told = resources(spec.limits)
    return SandboxAnswer(
        id=sandbox.id,
        namespace=NAMESPACE,
        status=now,
        image=sandbox.metadata.get(IMAGE_KEY, spec.template.name),
        runtime=spec.isolation,
        resources=told,
        resource_resize=Resize(requested=told),
        timeout_secs=0 if spec.timeout_s is None else round(spec.timeout_s),
        name=sandbox.name,
        auto_resume=spec.auto_resume,
        network_policy=policy(spec.network),
        pool_id=sandbox.metadata.get(POOL_KEY),
        termination_reason=None if exit_ is None else str(exit_.reason),
        error_details=None if exit_ is None else exit_.detail or None,
        created_at=milliseconds(sandbox.created_at),
        terminated_at=None if sandbox.ended_at is None else milliseconds(sandbox.ended_at),
        sandbox_url=url if now in _REACHABLE else None,
        file_systems=mounts(sandbox),
    )


def mounts(sandbox: SandboxInfo) -> list[Mount]:
    """The file systems of a sandbox, as they were asked for."""
    return [Mount(file_system_id=each.requested_as or each.volume, mount_path=each.path, read_only=each.read_only) for each in sandbox.spec.volumes]


def snapshot(record: SnapshotRecord) -> SnapshotAnswer:
    """A snapshot."""
    unusable = bool(record.problem) and not record.layer
    return SnapshotAnswer(
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


def pool_words(body: PoolBody) -> dict[str, str]:
    """What a pool notes for those that are claimed of it.

    Raises:
        InvalidRequestError: It cannot be kept.
    """
    if body.entrypoint:
        raise refuse("entrypoint", "Start what is to run with start_process.")
    chosen = network(body.network)
    words = {VENDOR_KEY: NAME, IMAGE_KEY: body.image, TIMEOUT_KEY: str(body.timeout_secs)}
    return words if chosen is None else {**words, NETWORK_KEY: str(chosen.mode)}


def pool_timeout_s(words: Mapping[str, str]) -> float | None:
    """The timeout of what is claimed of a pool; of one that another API made, the default."""
    return timeout_s(int(words[TIMEOUT_KEY])) if TIMEOUT_KEY in words else DEFAULT_TIMEOUT_S


def pool_network(words: Mapping[str, str]) -> NetworkPolicy | None:
    """What that may reach; None where nothing was said."""
    return NetworkPolicy(NetworkMode(words[NETWORK_KEY])) if NETWORK_KEY in words else None


def pool(told: PoolInfo) -> PoolAnswer:
    """A pool, without what is in it."""
    words = told.metadata
    return PoolAnswer(
        id=told.id,
        namespace=NAMESPACE,
        image=words.get(IMAGE_KEY, told.template.name),
        resources=resources(told.limits),
        timeout_secs=round(pool_timeout_s(words) or 0),
        max_containers=told.sizes.max,
        warm_containers=told.sizes.warm,
        network_policy=policy(pool_network(words)),
    )


def user(asked: str | Mapping[str, str | int | None] | None) -> User:
    """Who a process runs as, by a name, an id or both: ``root``, ``1000:1000``, ``{"uid": 0}``.

    Raises:
        InvalidRequestError: Nobody that there is.
    """
    word = asked
    if isinstance(asked, Mapping):
        given = {name: value for name, value in asked.items() if value is not None}
        name, uid, gid = given.get("name"), given.get("uid"), given.get("gid")
        if given.keys() <= {"name", "uid", "gid"} and (name is None) != (uid is None):
            word = str(uid if name is None else name) + ("" if gid is None else f":{gid}")
    found = None if not isinstance(word, str) else _USERS.get(word)
    if asked is None or found is not None:
        return found or User.USER
    raise InvalidRequestError(
        f"There is no such user in the sandbox: {str(asked)[:64]!r}.", hint="There are 'user' (1000:1000) and 'root' (0:0).", fields={"field": "user"}
    )


_USERS: Mapping[str, User] = {
    **dict.fromkeys(("user", "1000", "1000:1000", "user:user", "user:1000", "1000:user"), User.USER),
    **dict.fromkeys(("root", "0", "0:0", "root:root", "root:0", "0:root"), User.ROOT),
}


def milliseconds(at: datetime) -> int:
    """A time as its client takes it."""
    return int(at.timestamp() * 1000)
