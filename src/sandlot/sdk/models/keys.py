"""API keys and their quotas."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sandlot.model.access import Quota
from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True, repr=False)
class KeyInfo:
    """An API key without its secret.

    Args:
        id: Id of the key, 12 hexadecimal digits. It is the owner of everything that requests with the key create.
        name: Name for people.
        operator: True if the key sees the resources of all owners and may create and delete keys.
        quota: Quota of the owner.
        created_at: Time of its creation.
        expires_at: Time from which requests with the key are refused; None for never.
    """

    id: str
    name: str
    operator: bool
    quota: Quota
    created_at: datetime
    expires_at: datetime | None = None

    __repr__ = short_repr("id", "name", "operator")


@dataclass(frozen=True, slots=True, repr=False)
class NewKey(KeyInfo):
    """A new API key with its secret.

    Args:
        key: Value for ``SANDLOT_API_KEY``. The service does not return it again.
    """

    key: str = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """Part of a quota that is in use.

    Args:
        sandboxes: Number of live sandboxes.
        cpus: Sum of their CPU limits, in cores.
        memory_bytes: Sum of their memory limits.
        disk_bytes: Sum of their disk limits.
        executions_per_month: Number of executions that began in this calendar month (UTC).
        stored_executions: Number of entries of the execution log.
        stored_execution_bytes: Size of these entries together.
        stored_files: Number of files in the file store.
        stored_file_bytes: Size of these files together.
        hibernated_sandboxes: Number of hibernated sandboxes.
        snapshots: Number of snapshots.
        snapshot_bytes: Disk space of all snapshots together.
        volumes: Number of volumes.
        volume_bytes: Sum of the sizes of all volumes.
        templates: Number of templates.
        template_bytes: Size of the root file systems and snapshots of all builds of templates together.
        pools: Number of private pools.
    """

    sandboxes: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    executions_per_month: int = 0
    stored_executions: int = 0
    stored_execution_bytes: int = 0
    stored_files: int = 0
    stored_file_bytes: int = 0
    hibernated_sandboxes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    volumes: int = 0
    volume_bytes: int = 0
    templates: int = 0
    template_bytes: int = 0
    pools: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class CurrentKey:
    """The API key of this client.

    Args:
        id: Id of the key; ``local`` for a client on the unix socket.
        name: Name for people.
        operator: True if the key sees the resources of all owners and may create and delete keys.
        quota: Quota of the owner.
        used: Part of the quota that is in use.
        expires_at: Time from which requests with the key are refused; None for never.
    """

    id: str
    name: str
    operator: bool
    quota: Quota
    used: QuotaUsage
    expires_at: datetime | None = None

    __repr__ = short_repr("id", "name", "operator")
