"""API keys and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from sandlot.model.access import Quota
from sandlot.model.network import NetworkMode


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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(**_key(raw), key=str(raw["key"]))


@dataclass(frozen=True, slots=True)
class QuotaUsage:
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
class CurrentKey:
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
    used: QuotaUsage

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        used = {each.name: raw["used"].get(each.name, 0) for each in fields(QuotaUsage)}
        return cls(id=str(raw["id"]), name=str(raw["name"]), operator=bool(raw["operator"]), quota=_quota(raw.get("quota")), used=QuotaUsage(**used))


def _key(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": str(raw["id"]),
        "name": str(raw["name"]),
        "operator": bool(raw.get("operator")),
        "quota": _quota(raw.get("quota")),
        "created_at": datetime.fromisoformat(raw["created_at"]),
    }


def _quota(raw: Mapping[str, Any] | None) -> Quota:
    given = raw or {}
    bounds: dict[str, Any] = {each.name: given.get(each.name) for each in fields(Quota)}
    network = None if given.get("network") is None else NetworkMode(given["network"])
    return Quota(**{**bounds, "network": network, "installs": given.get("installs", True)})
