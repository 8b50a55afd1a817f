"""Sandboxes as the service describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from sandlot.model.specs import Limits
from sandlot.sdk.models.volumes import Mount


@dataclass(frozen=True, slots=True)
class Network:
    """Network policy of a sandbox.

    Args:
        mode: ``none``, or ``packages``: the package indexes of the service's host.
    """

    mode: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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
    volumes: tuple[Mount, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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
            volumes=tuple(Mount.parse(each) for each in raw.get("volumes") or ()),
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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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


def _limits(raw: Mapping[str, Any] | None) -> Limits:
    given = raw or {}
    return Limits(**{name: given[name] for name in ("cpus", "memory_bytes", "disk_bytes", "pids") if name in given})


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which something listens inside a sandbox.

    Args:
        port: Its number.
        address: What it is bound to: ``0.0.0.0`` and ``::`` are every address, ``127.0.0.1`` and ``::1`` the sandbox itself only.
    """

    port: int
    address: str
