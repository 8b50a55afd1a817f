"""Warm pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sandlot.model.specs import Limits
from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True)
class TemplateSnapshot:
    """Snapshot from which a pool starts its warm sandboxes.

    Args:
        size_bytes: Size on the disk of the node.
        created_at: Time at which it was taken.
    """

    size_bytes: int
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PoolInfo:
    """A warm pool: sandboxes that are started before a request needs them.

    Args:
        id: Id of the pool.
        template: Template of its sandboxes, ``NAME`` or ``NAME:TAG``.
        isolation: Driver of its sandboxes.
        limits: Limits of each sandbox.
        warm: Number of warm sandboxes that the pool keeps ready.
        max: Largest number of warm sandboxes.
        prepared: Number of prepared sandboxes that the pool keeps ready besides.
        ready: Number of warm sandboxes that are ready now.
        filling: Number of sandboxes that are being started.
        prepared_ready: Number of prepared sandboxes that are ready now.
        claims: Number of create requests that match the pool, by how their sandbox started, since the start of the service.
        hit_rate: Share of the creates that got a warm sandbox, 0 to 1; None before the first create.
        snapshot: Snapshot of the template; None if there is none.
        error: Reason why the last sandbox could not be started; empty if it was.
        metadata: Metadata of the pool.
        owner: Id of the API key that owns a private pool; None for a shared pool.
    """

    id: str
    template: str
    isolation: str
    limits: Limits
    warm: int
    max: int
    prepared: int = 0
    ready: int = 0
    filling: int = 0
    prepared_ready: int = 0
    claims: Mapping[str, int] = field(default_factory=dict)
    hit_rate: float | None = None
    snapshot: TemplateSnapshot | None = None
    error: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None

    __repr__ = short_repr("id", "template", "warm", "max", "ready")
