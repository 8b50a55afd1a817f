"""Principals of requests, and the quotas of API keys.

Invariants:
- Everything that a request creates belongs to the principal's owner. An owner is an API key or the operator of the machine.
- Only the owner and operators can see that something exists. For all other principals it is not found.
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
    """Quota of an API key. None: no limit but those of the node.

    Args:
        sandboxes: Largest number of live sandboxes.
        lifetime_s: Longest timeout of a sandbox, in seconds. Persistent sandboxes are refused, because they have no timeout.
        cpus: Cores of all live sandboxes together.
        memory_bytes: Memory of all live sandboxes together.
        disk_bytes: Disk space of all live sandboxes together.
        upload_bytes: Largest size of an uploaded file.
        executions_per_month: Executions of code and commands that begin in one calendar month (UTC).
        snapshots: Largest number of snapshots, unfinished ones included.
        snapshot_bytes: Disk space of all snapshots together.
        volumes: Largest number of volumes.
        volume_bytes: Size of all volumes together.
        pools: Largest number of private pools. Their warm sandboxes use the part of the sums above that live sandboxes leave.
        installs: True if ``install`` may open the package indexes to a sandbox of network ``none`` while it runs.
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
        quota: Quota of the owner.
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
