"""Principals of requests, and the quotas of API keys.

Invariants:
- Everything that a request creates belongs to the principal's owner. An owner is an API key or the operator of the machine.
- Only the owner of a resource and operators can see that the resource exists. All other principals get a not-found error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NewType

from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.network import NetworkMode

OwnerId = NewType("OwnerId", str)
"""Id of an API key (12 hexadecimal digits), or ``local``."""

LOCAL: Final = OwnerId("local")
"""Owner for clients of the Unix socket: root, or the user that the service runs as."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of an API key. A value of None means that only the limits of the node apply.

    Args:
        sandboxes: Largest number of live sandboxes.
        lifetime_s: Longest timeout of a sandbox, in seconds. Persistent sandboxes are refused, because they have no timeout.
        cpus: Largest sum of the CPU limits of all live sandboxes, in cores.
        memory_bytes: Largest sum of the memory limits of all live sandboxes, in bytes.
        disk_bytes: Largest sum of the disk limits of all live sandboxes, in bytes.
        upload_bytes: Largest size of an uploaded file, in bytes.
        executions_per_month: Largest number of executions of code and commands that begin in one calendar month (UTC).
        stored_executions: Largest number of entries of the execution log that are kept. Beyond it, the oldest entries of the key are removed.
        stored_execution_bytes: Largest size of these entries together, in bytes. Beyond it, the oldest entries of the key are removed.
        stored_files: Largest number of files in the file store.
        stored_file_bytes: Largest size of all files in the file store together, in bytes.
        hibernated_sandboxes: Largest number of hibernated sandboxes.
        snapshots: Largest number of snapshots, unfinished snapshots included.
        snapshot_bytes: Largest disk space of all snapshots together, in bytes.
        volumes: Largest number of volumes.
        volume_bytes: Largest sum of the sizes of all volumes, in bytes.
        templates: Largest number of templates.
        template_bytes: Largest size of the root file systems and snapshots of all builds of templates together, in bytes.
        pools: Largest number of private pools. Warm sandboxes of these pools may use only the part of ``cpus``, ``memory_bytes`` and ``disk_bytes``
            that live sandboxes do not use.
        network: Most open mode of the network policy of a sandbox.
        installs: True if a sandbox whose network policy has the mode ``none`` may use the package indexes while an ``install`` request runs.
        public_ports: True if sandboxes may have public ports, whose preview URLs need no token. Operators may have them in any case.
    """

    sandboxes: int | None = 50
    lifetime_s: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    upload_bytes: int | None = None
    executions_per_month: int | None = None
    stored_executions: int | None = 10_000
    stored_execution_bytes: int | None = 256 * 1024**2
    stored_files: int | None = 10_000
    stored_file_bytes: int | None = 10 * 1024**3
    hibernated_sandboxes: int | None = 100
    snapshots: int | None = None
    snapshot_bytes: int | None = None
    volumes: int | None = None
    volume_bytes: int | None = None
    templates: int | None = 50
    template_bytes: int | None = 50 * 1024**3
    pools: int | None = 4
    network: NetworkMode | None = None
    installs: bool = True
    public_ports: bool = False


class KeyFormat(StrEnum):
    """Form of the secret of an API key."""

    SANDLOT = "sandlot"
    """``sandlot_`` and 43 characters, by which secret scanners recognize the key."""
    E2B = "e2b"
    """``e2b_`` and 64 hexadecimal digits, the only form that old clients of E2B accept."""


UNBOUNDED: Final = Quota(
    sandboxes=None,
    stored_executions=None,
    stored_execution_bytes=None,
    stored_files=None,
    stored_file_bytes=None,
    hibernated_sandboxes=None,
    templates=None,
    template_bytes=None,
    pools=None,
    public_ports=True,
)
"""Quota of operators: only the limits of the node apply, and ports may be public."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Identity of the caller of a request.

    Args:
        owner: Owner of everything that the request creates.
        name: Name for people; the name of the API key.
        operator: True if the principal sees the resources of all owners and may create and revoke API keys.
        quota: Quota that applies to the owner.
        expires_at: Time from which requests of the principal are refused; None: never.
    """

    owner: OwnerId
    name: str
    operator: bool = False
    quota: Quota = field(default_factory=Quota)
    expires_at: datetime | None = None

    @property
    def may_have_public_ports(self) -> bool:
        """True if the ports of the principal's sandboxes may be public."""
        return self.operator or self.quota.public_ports

    def sees(self, owner: OwnerId) -> bool:
        """Return whether the principal may see the resources of an owner."""
        return self.operator or owner == self.owner

    def lists(self, owner: OwnerId) -> bool:
        """Return whether lists of the principal contain the resources of an owner. Only its own lists contain those of ``INTERNAL``."""
        return owner == self.owner or (self.operator and owner != INTERNAL.owner)


OPERATOR: Final = Principal(owner=LOCAL, name="operator", operator=True, quota=UNBOUNDED)
"""Principal of clients of the Unix socket."""


INTERNAL: Final = Principal(owner=OwnerId("internal"), name="service", quota=UNBOUNDED)
"""Principal of sandboxes in which the service itself works for its users, such as those that make images. No API key has this owner."""


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """Part of a quota that an owner uses.

    Args:
        sandboxes: Number of live sandboxes.
        cpus: Sum of the CPU limits of the live sandboxes, in cores.
        memory_bytes: Sum of the memory limits of the live sandboxes.
        disk_bytes: Sum of the disk limits of the live sandboxes.
        executions_per_month: Executions that began in the current calendar month (UTC).
        stored_executions: Number of entries of the execution log.
        stored_execution_bytes: Size of these entries together.
        stored_files: Number of files in the file store.
        stored_file_bytes: Size of these files together.
        hibernated_sandboxes: Number of hibernated sandboxes.
        snapshots: Number of snapshots, unfinished snapshots included.
        snapshot_bytes: Disk space of all snapshots together.
        volumes: Number of volumes.
        volume_bytes: Sum of the sizes of all volumes.
        templates: Number of templates.
        template_bytes: Size of the root file systems and snapshots of all builds of templates together.
        pools: Number of private pools.
    """

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int
    executions_per_month: int
    stored_executions: int
    stored_execution_bytes: int
    stored_files: int
    stored_file_bytes: int
    hibernated_sandboxes: int
    snapshots: int
    snapshot_bytes: int
    volumes: int
    volume_bytes: int
    templates: int
    template_bytes: int
    pools: int


def check_upload(quota: Quota, size_bytes: int) -> None:
    """Refuse an upload that is larger than a quota allows.

    Args:
        quota: Quota of the caller.
        size_bytes: Announced size, or the number of bytes that have arrived so far.
    """
    if quota.upload_bytes is not None and size_bytes > quota.upload_bytes:
        raise quota_exceeded(
            "upload_bytes",
            f"The upload has more than {quota.upload_bytes} bytes, the quota of this key for one upload.",
            "Send the data in parts, or ask the operator for a larger quota.",
            limit=quota.upload_bytes,
            used=0,
            requested=size_bytes,
        )


def quota_exceeded(
    quota: str,
    message: str,
    hint: str,
    *,
    limit: float,
    used: float,
    requested: float | None,
    retry_after_s: int | None = None,
) -> LimitError:
    """Return the error of an exceeded quota.

    Args:
        quota: Name of the field of :class:`Quota`.
        message: Message of the error.
        hint: Hint of the error.
        limit: Value of the quota.
        used: Part of the quota that is in use.
        requested: Requested amount; None if the amount is unlimited or unknown.
        retry_after_s: Seconds after which the request may fit; None if waiting does not help.
    """
    fields: dict[str, float | str | None] = {"quota": quota, "limit": limit, "used": used, "requested": requested}
    if retry_after_s is not None:
        fields["retry_after_s"] = retry_after_s
    return LimitError(message, code=ErrorCode.QUOTA_EXCEEDED, hint=hint, fields=fields)
