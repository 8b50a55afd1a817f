"""Volumes and their mounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A volume: files that outlive the sandboxes that have it.

    Args:
        id: Its id.
        name: What it is called.
        size_bytes: What may be written to it.
        used_bytes: What is in it; of one that no sandbox has, what was when the last one let go of it.
        attached: The ids of the sandboxes that have it, hibernated ones included.
        created_at: When it was made.
    """

    id: str
    name: str
    size_bytes: int
    used_bytes: int
    attached: tuple[str, ...]
    created_at: datetime

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            name=str(raw["name"]),
            size_bytes=int(raw["size_bytes"]),
            used_bytes=int(raw.get("used_bytes", 0)),
            attached=tuple(raw.get("attached") or ()),
            created_at=datetime.fromisoformat(raw["created_at"]),
        )


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume that a sandbox has.

    Args:
        volume: Its id.
        path: The folder that it is.
        read_only: Whether nothing can be written to it from there.
    """

    volume: str
    path: str
    read_only: bool

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(volume=str(raw["volume"]), path=str(raw["path"]), read_only=bool(raw.get("read_only")))
