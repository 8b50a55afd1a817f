"""Pools of warm and prepared sandboxes as callers of the node see them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import Limits, TemplateRef

MAX_SIZE: Final = 1000
"""Largest number in :class:`PoolSizes`. No host of today can run as many sandboxes."""

DEFAULT_MAX: Final = 4
"""``PoolSizes.max`` of a new pool for which only ``warm`` is given, unless ``warm`` is larger."""


class StartPath(StrEnum):
    """Path by which the sandbox of a create request was started."""

    WARM = "warm"
    """A warm sandbox was thawed and claimed."""
    PREPARED = "prepared"
    """The template snapshot was restored into a prepared sandbox of a pool."""
    RESTORED = "restored"
    """The template snapshot was restored into a sandbox that was prepared for this request, because no pool had a prepared sandbox."""
    BOOTED = "booted"
    """The sandbox was booted from its root filesystem, without a snapshot."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Numbers of sandboxes in a pool, 0 to ``MAX_SIZE`` each.

    Args:
        warm: Number of warm sandboxes that the pool always keeps ready.
        max: Largest number of warm sandboxes, unfinished ones included. The pool grows up to this number while requests find no warm sandbox.
        prepared: Number of prepared sandboxes that the pool keeps ready. Any snapshot of the pool's template, isolation and limits can be restored
            into a prepared sandbox.
    """

    warm: int = 1
    max: int = DEFAULT_MAX
    prepared: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range.

        Raises:
            InvalidRequestError: A number is not between 0 and ``MAX_SIZE``, or ``max`` is less than ``warm``.
        """
        for name in ("warm", "max", "prepared"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SIZE:
                raise InvalidRequestError(
                    f"`{name}` is {value}; 0 to {MAX_SIZE} are allowed.", hint=f"Set `{name}` within these bounds.", fields={"field": name}
                )
        if self.max < self.warm:
            raise InvalidRequestError(
                f"`max` is {self.max}, less than `warm`, which is {self.warm}.", hint="Raise `max`, or lower `warm`.", fields={"field": "max"}
            )

    @classmethod
    def with_defaults(cls, warm: int, max: int | None = None, prepared: int = 0) -> PoolSizes:  # noqa: A002 - the name of the API
        """Return the sizes of a new pool.

        Args:
            warm: Number of warm sandboxes that the pool always keeps ready.
            max: Largest number of warm sandboxes. None: the larger of ``warm`` and ``DEFAULT_MAX``, or 0 if ``warm`` is 0.
            prepared: Number of prepared sandboxes that the pool keeps ready.
        """
        if max is None:
            max = builtins.max(warm, DEFAULT_MAX) if warm else 0  # noqa: A001 - the name of the API
        return cls(warm=warm, max=max, prepared=prepared)

    def updated(self, *, warm: int | None = None, max: int | None = None, prepared: int | None = None) -> PoolSizes:  # noqa: A002
        """Return a copy of the sizes in which the given numbers are changed.

        Args:
            warm: New ``warm``. None: unchanged.
            max: New ``max``. None: the larger of the old ``max`` and the new ``warm``.
            prepared: New ``prepared``. None: unchanged.
        """
        new_warm = self.warm if warm is None else warm
        return PoolSizes(
            warm=new_warm,
            max=builtins.max(self.max, new_warm) if max is None else max,
            prepared=self.prepared if prepared is None else prepared,
        )


@dataclass(frozen=True, slots=True)
class TemplateSnapshotInfo:
    """Template snapshot from which the sandboxes of a pool are restored.

    Args:
        made_at: None: the time is not known.
    """

    size_bytes: int
    made_at: datetime | None


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A pool at one moment.

    Args:
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        isolation: Name of the driver.
        limits: Limits of each sandbox of the pool.
        ready: Ids of the warm sandboxes, oldest first.
        filling: Number of warm sandboxes that are being made.
        prepared_ready: Number of prepared sandboxes that are ready.
        claims: Start path -> number of sandboxes that were started by this path since the service started, for create requests that searched this
            pool for a warm sandbox. A path without such a sandbox is missing.
        snapshot: Template snapshot from which the pool is filled. None: the pool has no template snapshot now.
        error: Reason why the last attempt to fill the pool or to make its template snapshot failed; empty if the attempt succeeded.
    """

    id: str
    owner: OwnerId
    template: TemplateRef
    isolation: str
    limits: Limits
    metadata: Mapping[str, str]
    sizes: PoolSizes
    ready: tuple[SandboxId, ...]
    filling: int
    prepared_ready: int
    claims: Mapping[StartPath, int]
    snapshot: TemplateSnapshotInfo | None
    error: str

    @property
    def hit_rate(self) -> float | None:
        """Share of the create requests for the pool's spec that claimed a warm sandbox, 0 to 1. None: there was no such request."""
        total = sum(self.claims.values())
        return self.claims.get(StartPath.WARM, 0) / total if total else None
