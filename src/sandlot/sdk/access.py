"""What the service says about keys: frozen values, read from the API's JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Self

from sandlot.model.access import Quota
from sandlot.sdk.info import Json


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
        return cls(**_parsed(raw))


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
        return cls(**_parsed(raw), key=str(raw["key"]))


@dataclass(frozen=True, slots=True)
class Taken:
    """What of a quota is taken now.

    Args:
        sandboxes: Live ones.
        cpus: Their cores.
        memory_bytes: Their memory.
        disk_bytes: Their disk.
        executions_per_month: Runs that were begun this month (UTC).
    """

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int
    executions_per_month: int


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


def _parsed(raw: Json) -> dict[str, Any]:
    return {
        "id": str(raw["id"]),
        "name": str(raw["name"]),
        "operator": bool(raw.get("operator")),
        "quota": _quota(raw.get("quota")),
        "created_at": datetime.fromisoformat(raw["created_at"]),
    }


def _quota(raw: Json | None) -> Quota:
    given = raw or {}
    return Quota(**{each.name: given.get(each.name) for each in fields(Quota)})
