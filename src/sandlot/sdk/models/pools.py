"""Warm pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from sandlot.model.specs import Limits


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A pool: sandboxes that are made before anybody asks.

    Args:
        id: Its id.
        template: What its sandboxes are made from.
        isolation: The driver that isolates them.
        limits: What each may use.
        warm: How many are always kept ready.
        max: How many there are at most.
        blank: How many prepared ones with nothing in them are kept besides.
        ready: How many wait now.
        filling: How many are in the making.
        blank_ready: How many prepared ones wait now.
        claims: How requests of its kind were answered since the service started: ``hot``, ``blank``, ``direct``, ``boot`` -> how many.
        hit_rate: The part of them that one that waited answered; None where there was none.
        snapshot_bytes: What its template's snapshot takes on the disk; None where there is none (yet).
        snapshot_at: When that was made.
        error: Why something could not be made; empty where nothing failed.
        metadata: Its owner's own words.
        owner: The id of the key that has it; None for the node's, which operators make and which serves everybody.
    """

    id: str
    template: str
    isolation: str
    limits: Limits
    warm: int
    max: int
    blank: int = 0
    ready: int = 0
    filling: int = 0
    blank_ready: int = 0
    claims: Mapping[str, int] = field(default_factory=dict)
    hit_rate: float | None = None
    snapshot_bytes: int | None = None
    snapshot_at: datetime | None = None
    error: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        limits, snapshot = raw.get("limits") or {}, raw.get("snapshot") or {}
        made_at = snapshot.get("made_at")
        return cls(
            id=str(raw["id"]),
            template=str(raw["template"]),
            isolation=str(raw.get("isolation", "")),
            limits=Limits(**{name: limits[name] for name in ("cpus", "memory_bytes", "disk_bytes", "pids") if name in limits}),
            warm=int(raw["warm"]),
            max=int(raw["max"]),
            blank=int(raw.get("blank", 0)),
            ready=int(raw.get("ready", 0)),
            filling=int(raw.get("filling", 0)),
            blank_ready=int(raw.get("blank_ready", 0)),
            claims=dict(raw.get("claims") or {}),
            hit_rate=raw.get("hit_rate"),
            snapshot_bytes=snapshot.get("size_bytes"),
            snapshot_at=None if made_at is None else datetime.fromisoformat(made_at),
            error=str(raw.get("error", "")),
            metadata=dict(raw.get("metadata") or {}),
            owner=raw.get("owner"),
        )
