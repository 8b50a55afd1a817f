"""Who asks, and how much they may take.

Laws:
- Everything that a request makes belongs to the owner who asked for it; an owner is an API key, or the machine's operator.
- Nobody but its owner and an operator learns that something exists: to all others it is not found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

OwnerId = NewType("OwnerId", str)
"""A key's id (12 hexadecimal digits), or ``local``."""

LOCAL = OwnerId("local")
"""Whoever reaches the unix socket: root, or the user that the service runs as."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one key may take; None is no bound but the node's own.

    Args:
        sandboxes: Live ones at once.
        lifetime_s: Of one sandbox: the longest timeout that it may have; a persistent one has none, so it is refused under any bound.
        cpus: Of all live sandboxes together.
        memory_bytes: The same.
        disk_bytes: The same.
        upload_bytes: One uploaded file.
        executions_per_month: Runs of code and commands that are begun in one calendar month (UTC).
        snapshots: How many are kept, those that are being made included.
        snapshot_bytes: What they take on the disk together.
        volumes: How many there are.
        volume_bytes: What may be written to them together.
        pools: How many there are of its own; what waits in them takes of the sums above what live sandboxes leave.
        installs: Whether ``install`` opens the package index to a sandbox of network ``none``, for as long as it runs.
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


UNBOUNDED = Quota(sandboxes=None, pools=None)
"""An operator's: the node's own bounds are all that hold."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Args:
        owner: What is made belongs to it.
        name: For people; a key's name.
        operator: Whether it sees everybody's, and may make and revoke keys.
        quota: What it may take.
    """

    owner: OwnerId
    name: str
    operator: bool = False
    quota: Quota = field(default_factory=Quota)

    def sees(self, owner: OwnerId) -> bool:
        """Whether what belongs to that owner exists for this one."""
        return self.operator or owner == self.owner


OPERATOR = Principal(owner=LOCAL, name="operator", operator=True, quota=UNBOUNDED)
