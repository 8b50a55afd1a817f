"""Principals of requests, and the quotas of API keys.

Invariants:
- Everything that a request creates belongs to the principal's owner. An owner is an API key or the operator of the machine.
- Only the owner of a resource and operators can see that the resource exists. All other principals get a not-found error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NewType

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
        snapshots: Largest number of snapshots, unfinished snapshots included.
        snapshot_bytes: Largest disk space of all snapshots together, in bytes.
        volumes: Largest number of volumes.
        volume_bytes: Largest sum of the sizes of all volumes, in bytes.
        pools: Largest number of private pools. Warm sandboxes of these pools may use only the part of ``cpus``, ``memory_bytes`` and ``disk_bytes``
            that live sandboxes do not use.
        installs: True if a sandbox of network ``none`` may use the package indexes while an ``install`` request runs.
    """

    sandboxes: int | None = 50
    lifetime_s: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    upload_bytes: int | None = None
    executions_per_month: int | None = None
    snapshots: int | None = None
    snapshot_bytes: int | None = None
    volumes: int | None = None
    volume_bytes: int | None = None
    pools: int | None = 4
    installs: bool = True


UNBOUNDED: Final = Quota(sandboxes=None, pools=None)
"""Quota of operators: only the limits of the node apply."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Identity of the caller of a request.

    Args:
        owner: Owner of everything that the request creates.
        name: Name for people; the name of the API key.
        operator: True if the principal sees the resources of all owners and may create and revoke API keys.
        quota: Quota that applies to the owner.
    """

    owner: OwnerId
    name: str
    operator: bool = False
    quota: Quota = field(default_factory=Quota)

    def sees(self, owner: OwnerId) -> bool:
        """Return whether the principal may see the resources of an owner."""
        return self.operator or owner == self.owner


OPERATOR: Final = Principal(owner=LOCAL, name="operator", operator=True, quota=UNBOUNDED)
"""Principal of clients of the Unix socket."""
