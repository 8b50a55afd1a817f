"""What the service says about sandboxes, files and keys: frozen values, read from the API's JSON.

A field that a newer service adds is ignored; one that an older service lacks takes its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Self

from sandlot.model.access import Quota
from sandlot.model.network import NetworkMode
from sandlot.model.specs import Limits
from sandlot.sdk.saved.volumes import Mounted

Json = Mapping[str, Any]
"""One object of the API, as decoded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link inside a sandbox.

    Args:
        name: Its name, without the folder.
        path: Its absolute path.
        kind: ``file``, ``directory``, ``symlink`` or ``other``.
        size: Bytes.
        mode: Permission bits.
        uid: Owner.
        gid: Group.
        modified_at: When its content last changed.
        target: What a symbolic link points to.
    """

    name: str
    path: str
    kind: str
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: datetime | None = None
    target: str | None = None

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(
            name=str(raw["name"]),
            path=str(raw["path"]),
            kind=str(raw["kind"]),
            size=int(raw.get("size", 0)),
            mode=int(raw.get("mode", 0)),
            uid=int(raw.get("uid", 0)),
            gid=int(raw.get("gid", 0)),
            modified_at=_moment(raw.get("modified_at")),
            target=raw.get("target"),
        )

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.kind == "directory"


@dataclass(frozen=True, slots=True)
class Network:
    """Network policy of a sandbox.

    Args:
        mode: ``none``, or ``packages``: the package indexes of the service's host.
    """

    mode: str

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read a policy from the API's JSON."""
        return cls(mode=str(raw["mode"]))


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox as the service describes it.

    Args:
        id: Its id.
        state: ``creating``, ``running``, ``paused``, ``hibernated``, ``stopping``, ``stopped`` or ``failed``; on its way to or from a rest
            ``pausing``, ``snapshotting``, ``hibernating`` or ``waking``.
        template: What it was made from.
        name: The name that its owner gave it.
        metadata: The owner's own words.
        isolation: The driver that isolates it.
        network: Network policy.
        limits: What it may use.
        timeout_s: Seconds that it may live, counted from when that was last set.
        created_at: When it was made.
        expires_at: When it will be ended; of one that rests, when it is no longer kept.
        persistent: Whether it lives until it is killed, without a timeout.
        idle_timeout_s: Seconds of doing nothing after which it is ended; None is never.
        ended_at: When it ended.
        node: The service process that it belongs to.
        exit_reason: Why it ended: exited, oom, disk, killed, crashed.
        exit_detail: More about that, for a person.
        on_timeout: What becomes of it at its timeout: ``kill``, ``pause`` or ``hibernate``.
        auto_resume: Whether the next request resumes it while it rests.
        snapshot: The id of the snapshot that it was started from.
        parent: The id of the sandbox whose fork it is.
        restored: What it began with: ``memory`` and files of another, ``files`` of another, or None: it booted.
        volumes: Its volumes.
    """

    id: str
    state: str
    template: str
    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    isolation: str = ""
    network: Network | None = None
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    persistent: bool = False
    idle_timeout_s: float | None = None
    ended_at: datetime | None = None
    node: str = ""
    exit_reason: str | None = None
    exit_detail: str = ""
    on_timeout: str = "kill"
    auto_resume: bool = True
    snapshot: str | None = None
    parent: str | None = None
    restored: str | None = None
    volumes: tuple[Mounted, ...] = ()

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        ended = raw.get("exit") or {}
        return cls(
            id=str(raw["id"]),
            state=str(raw["state"]),
            template=str(raw.get("template", "")),
            name=raw.get("name"),
            metadata=dict(raw.get("metadata") or {}),
            isolation=str(raw.get("isolation", "")),
            network=None if raw.get("network") is None else Network.parse(raw["network"]),
            limits=_limits(raw.get("limits")),
            timeout_s=raw.get("timeout"),
            created_at=_moment(raw.get("created_at")),
            expires_at=_moment(raw.get("expires_at")),
            persistent=bool(raw.get("persistent")),
            idle_timeout_s=raw.get("idle_timeout"),
            ended_at=_moment(raw.get("ended_at")),
            node=str(raw.get("node", "")),
            exit_reason=ended.get("reason"),
            exit_detail=str(ended.get("detail", "")),
            on_timeout=str(raw.get("on_timeout", "kill")),
            auto_resume=bool(raw.get("auto_resume", True)),
            snapshot=raw.get("snapshot"),
            parent=raw.get("parent"),
            restored=raw.get("restored"),
            volumes=tuple(Mounted.parse(each) for each in raw.get("volumes") or ()),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox has used, and of how much.

    Args:
        cpu_s: Seconds of processor time.
        memory_bytes: Memory that it holds now.
        memory_peak_bytes: The most that it ever held, page cache included.
        disk_bytes: What was written on top of the image.
        pids: Processes and threads in it, as the limit counts them; None where the sandbox did not answer in time.
        host_tasks: Tasks of the host, those of its runtime included.
        limits: What it may use.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    disk_bytes: int
    pids: int | None
    host_tasks: int
    limits: Limits

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(
            cpu_s=float(raw["cpu_s"]),
            memory_bytes=int(raw["memory_bytes"]),
            memory_peak_bytes=int(raw["memory_peak_bytes"]),
            disk_bytes=int(raw["disk_bytes"]),
            pids=raw.get("pids"),
            host_tasks=int(raw.get("host_tasks", 0)),
            limits=_limits(raw.get("limits")),
        )


@dataclass(frozen=True, slots=True)
class Stopping:
    """A service that is about to end.

    Args:
        pid: Its process id.
        sandboxes: How many sandboxes live on.
    """

    pid: int
    sandboxes: int

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(pid=int(raw["pid"]), sandboxes=int(raw.get("sandboxes", 0)))


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key, without its secret.

    Args:
        id: 12 hexadecimal digits: the owner of all that is made with it.
        name: What people call it.
        operator: Whether it sees everybody's sandboxes, and may make and revoke keys.
        quota: What it may take.
        created_at: When it was made.
    """

    id: str
    name: str
    operator: bool
    quota: Quota
    created_at: datetime

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(**_key(raw))


@dataclass(frozen=True, slots=True)
class NewKey(KeyInfo):
    """A key that was just made.

    Args:
        key: Its secret, for ``SANDLOT_API_KEY``; nobody can be asked for it again.
    """

    key: str = ""

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(**_key(raw), key=str(raw["key"]))


@dataclass(frozen=True, slots=True)
class Taken:
    """What of a quota is taken now.

    Args:
        sandboxes: Live ones.
        cpus: Their cores.
        memory_bytes: Their memory.
        disk_bytes: Their disk.
        executions_per_month: Runs that were begun this month (UTC).
        snapshots: Snapshots that are kept.
        snapshot_bytes: What they take on the service's disk.
        volumes: Volumes that there are.
        volume_bytes: Their sizes together.
        pools: Pools of one's own; an operator's are the node's.
    """

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int
    executions_per_month: int
    snapshots: int = 0
    snapshot_bytes: int = 0
    volumes: int = 0
    volume_bytes: int = 0
    pools: int = 0


@dataclass(frozen=True, slots=True)
class Whoami:
    """Who somebody is to the service.

    Args:
        id: The key's id; ``local`` for whoever reaches the unix socket.
        name: The key's name.
        operator: Whether it sees everybody's sandboxes, and may make and revoke keys.
        quota: What it may take.
        used: What of it is taken.
    """

    id: str
    name: str
    operator: bool
    quota: Quota
    used: Taken

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        used = {each.name: raw["used"].get(each.name, 0) for each in fields(Taken)}
        return cls(id=str(raw["id"]), name=str(raw["name"]), operator=bool(raw["operator"]), quota=_quota(raw.get("quota")), used=Taken(**used))


def quota_body(quota: Quota) -> dict[str, Any]:
    """A quota as the API takes it."""
    return asdict(quota)


def _key(raw: Json) -> dict[str, Any]:
    return {
        "id": str(raw["id"]),
        "name": str(raw["name"]),
        "operator": bool(raw.get("operator")),
        "quota": _quota(raw.get("quota")),
        "created_at": datetime.fromisoformat(raw["created_at"]),
    }


def _quota(raw: Json | None) -> Quota:
    given = raw or {}
    bounds: dict[str, Any] = {each.name: given.get(each.name) for each in fields(Quota)}
    network = None if given.get("network") is None else NetworkMode(given["network"])
    return Quota(**{**bounds, "network": network, "installs": given.get("installs", True)})


def _limits(raw: Json | None) -> Limits:
    given = raw or {}
    return Limits(**{name: given[name] for name in ("cpus", "memory_bytes", "disk_bytes", "pids") if name in given})


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
