"""Sandboxes: description, usage and open ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sandlot.model.faults import Fault
from sandlot.model.specs import Limits, OnTimeout
from sandlot.sdk.models.network import Network
from sandlot.sdk.models.values import short_repr
from sandlot.sdk.models.volumes import Mount


class SandboxState(StrEnum):
    """State of a sandbox."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SNAPSHOTTING = "snapshotting"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    WAKING = "waking"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, repr=False)
class SandboxInfo:
    """A sandbox as the service describes it.

    Args:
        id: Id of the sandbox.
        state: State of the sandbox.
        template: Template that it was created from.
        name: Name of the sandbox.
        metadata: Metadata of the sandbox.
        isolation: Driver that isolates it.
        network: Network policy.
        limits: Limits of its resources.
        timeout: Seconds from the last change of the timeout until the sandbox expires; None if it is persistent.
        created_at: Time of its creation.
        expires_at: Time at which ``on_timeout`` applies. If the sandbox is suspended, the time until which it is kept.
        persistent: True if the sandbox has no timeout.
        idle_timeout: Seconds without activity after which ``on_timeout`` applies; None for never.
        ended_at: Time at which it ended.
        node: Node of the sandbox.
        exit_reason: Reason why it ended: ``exited``, ``oom``, ``disk``, ``killed`` or ``crashed``; None while it lives.
        exit_detail: Details of the reason, for people.
        fault: Fault class if the sandbox failed: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
        on_timeout: Action at the timeout: ``kill``, ``pause``, ``hibernate`` or ``hibernate_files``.
        auto_resume: True if a request resumes the sandbox while it is suspended.
        snapshot: Id of the snapshot that it was started from.
        parent: Id of the sandbox that it is a fork of.
        restored: State that it began with: ``memory`` (and files) or ``files`` of another sandbox; None if it booted.
        volumes: Attached volumes.
        cwd: Working directory, in which programs start and relative paths begin.
        public_ports: True if the preview URLs of the ports need no token.
        mask_request_host: ``Host`` header that programs see behind a preview URL; None for ``localhost:PORT``.
    """

    id: str
    state: SandboxState | str
    template: str = ""
    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    isolation: str = ""
    network: Network | None = None
    limits: Limits = field(default_factory=Limits)
    timeout: float | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    persistent: bool = False
    idle_timeout: float | None = None
    ended_at: datetime | None = None
    node: str = ""
    exit_reason: str | None = None
    exit_detail: str = ""
    fault: Fault | str | None = None
    on_timeout: OnTimeout | str = OnTimeout.KILL
    auto_resume: bool = True
    snapshot: str | None = None
    parent: str | None = None
    restored: str | None = None
    volumes: tuple[Mount, ...] = ()
    cwd: str = "/workspace"
    public_ports: bool = False
    mask_request_host: str | None = None

    __repr__ = short_repr("id", "state", "template", "name")


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a sandbox uses.

    Args:
        cpu_s: CPU time so far, in seconds.
        memory_bytes: Memory in use.
        memory_peak_bytes: Largest memory so far, page cache included.
        disk_bytes: Bytes written on top of the root file system.
        pids: Processes and threads that count against the limit; None if the sandbox did not answer in time.
        host_tasks: Tasks on the host, those of the runtime included.
        network_sent_bytes: Bytes that programs have sent to other hosts; counted from 0 again after a restart of the service.
        network_received_bytes: Bytes that programs have received from other hosts; counted in the same way.
        limits: Limits of its resources.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    disk_bytes: int
    pids: int | None = None
    host_tasks: int = 0
    network_sent_bytes: int = 0
    network_received_bytes: int = 0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP port on which a program in a sandbox listens.

    Args:
        port: Port number.
        address: Address that it is bound to: ``0.0.0.0`` and ``::`` are all addresses, ``127.0.0.1`` and ``::1`` only the sandbox itself.
        url: URL of the preview for a browser, with a token that is valid for a day; None if the service serves no previews.
    """

    port: int
    address: str
    url: str | None = None
