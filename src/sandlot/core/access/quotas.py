"""Checks of a key's quotas, made before anything is reserved. Pure.

Invariants:
- A request over a quota is refused with ``quota_exceeded`` (429) and the fields ``quota``, ``limit``, ``used`` and ``requested``. The
  field ``retry_after_s`` is set only if waiting can help, and not if the request alone exceeds the whole quota.
- Quotas are checked only when something is created, started or enlarged. When a quota is lowered, nothing that exists is ended or removed. A change
  that needs less of a resource is never refused.
- Each node checks its own sandboxes: two nodes that share a database each grant the whole quota. Only the executions of a month are
  counted over all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.model.access import Quota, quota_exceeded
from sandlot.model.specs import Limits

RETRY_AFTER_S: Final = 5
"""``retry_after_s`` when another sandbox of the same owner has to end first."""

_LIVE_QUOTAS: Final = (("sandboxes", "sandboxes"), ("cpus", "cores"), ("memory_bytes", "bytes of memory"), ("disk_bytes", "bytes of disk"))
"""Fields of :class:`Quota` that limit all live sandboxes of an owner together, each with its unit for error messages. All fields except the first are
fields of :class:`Limits` too."""
_SMALLER: Final = {
    "snapshot": "take a snapshot of kind `files`",
    "volume": "request a smaller volume",
    "stored_file": "upload a smaller file",
    "template": "untag builds that are not needed",
}
"""Kind -> text for hints: an alternative that needs less of the quota."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Resources of all live sandboxes of one owner together."""

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int


def taken(live: Sequence[Limits]) -> Taken:
    """Return the total resources of sandboxes with these limits."""
    return Taken(
        sandboxes=len(live),
        cpus=math.fsum(limits.cpus for limits in live),
        memory_bytes=sum(limits.memory_bytes for limits in live),
        disk_bytes=sum(limits.disk_bytes for limits in live),
    )


def check_live(quota: Quota, limits: Limits, live: Sequence[Limits], count: int = 1) -> None:
    """Refuse additional sandboxes that would exceed a quota together with the live sandboxes.

    Args:
        quota: Quota of the owner.
        limits: Limits of each additional sandbox.
        live: Limits of the owner's live sandboxes, including sandboxes that are being created or woken.
        count: Number of additional sandboxes.
    """
    for field, unit in _LIVE_QUOTAS:
        limit = getattr(quota, field)
        if limit is None:
            continue
        used, requested = (len(live), count) if field == "sandboxes" else (sum(getattr(each, field) for each in live), count * getattr(limits, field))
        if used + requested > limit:
            can_fit = requested <= limit
            raise quota_exceeded(
                field,
                f"The quota of this key is {limit:,} {unit} in all its live sandboxes: {used:,} used, {requested:,} requested.",
                "Kill a sandbox, wait until one ends, or request less." if can_fit else "Request less, or ask the operator for a larger quota.",
                limit=limit,
                used=used,
                requested=requested,
                retry_after_s=RETRY_AFTER_S if can_fit else None,
            )


def check_update(quota: Quota, before: Limits, after: Limits, timeout_s: float | None, others: Sequence[Limits]) -> None:
    """Refuse an update by which a sandbox would get more than a quota allows. Only resources that grow are checked.

    Args:
        quota: Quota of the caller, so that an operator may exceed the quota of the sandbox's owner.
        before: Current limits of the sandbox.
        after: Limits after the update.
        timeout_s: New timeout; ``math.inf`` removes the timeout, None leaves it unchanged.
        others: Limits of the owner's other live sandboxes.
    """
    if timeout_s is not None:
        check_lifetime(quota, timeout_s)
    grown = Quota(
        sandboxes=None,
        cpus=quota.cpus if after.cpus > before.cpus else None,
        memory_bytes=quota.memory_bytes if after.memory_bytes > before.memory_bytes else None,
        disk_bytes=quota.disk_bytes if after.disk_bytes > before.disk_bytes else None,
    )
    check_live(grown, after, others)


def check_lifetime(quota: Quota, timeout_s: float | None) -> None:
    """Refuse a timeout that is longer than a quota allows.

    Args:
        quota: Quota of the caller.
        timeout_s: Timeout of the sandbox. None and ``math.inf`` mean no timeout.
    """
    if quota.lifetime_s is None or (timeout_s is not None and timeout_s <= quota.lifetime_s):
        return
    is_persistent = timeout_s is None or timeout_s == math.inf
    requested = "no timeout" if is_persistent else f"a timeout of {timeout_s:g} s"
    raise quota_exceeded(
        "lifetime_s",
        f"The request has {requested}; the quota of this key is a timeout of at most {quota.lifetime_s:g} s.",
        f"Pass a timeout of at most {quota.lifetime_s:g} s, and extend the timeout while the sandbox runs.",
        limit=quota.lifetime_s,
        used=0,
        requested=None if is_persistent else timeout_s,
    )


def check_stored(quota: Quota, kind: str, kept: int, kept_bytes: int, more_bytes: int = 0) -> None:
    """Refuse a snapshot, volume or stored file that would exceed a quota together with the existing ones.

    Args:
        quota: Quota of the owner.
        kind: ``snapshot``, ``volume``, ``stored_file`` or ``template``.
        kept: Number of existing objects of the kind, without the new one.
        kept_bytes: Total size of the existing objects in bytes.
        more_bytes: Size of the new object in bytes. 0 if the size is unknown: the request is then refused only if the quota is used up.
    """
    check_count(quota, f"{kind}s", kept)
    limit = getattr(quota, f"{kind}_bytes")
    if limit is not None and (kept_bytes + more_bytes > limit or kept_bytes >= limit):
        more, noun = f" and {more_bytes} more are needed" if more_bytes else "", kind.replace("_", " ")
        raise quota_exceeded(
            f"{kind}_bytes",
            f"The {noun}s of this key have {kept_bytes} bytes{more}; its quota is {limit}.",
            f"Delete a {noun} that is not needed, or {_SMALLER[kind]}." if more_bytes <= limit else f"{_SMALLER[kind].capitalize()}.",
            limit=limit,
            used=kept_bytes,
            requested=more_bytes or None,
        )


def check_count(quota: Quota, kind: str, kept: int) -> None:
    """Refuse an object beyond the number that an owner can have.

    Args:
        quota: Quota of the owner.
        kind: Field of the quota: ``pools``, ``templates``, ``snapshots``, ``volumes``, ``stored_files`` or ``hibernated_sandboxes``.
        kept: Number of existing objects of the kind.
    """
    limit, noun = getattr(quota, kind), kind.replace("_", " ")
    if limit is not None and kept >= limit:
        raise quota_exceeded(
            kind,
            f"This key has {kept} {noun}; its quota is {limit}.",
            f"Delete one of the {noun} of this key." if limit else "Ask the operator for a larger quota.",
            limit=limit,
            used=kept,
            requested=1,
        )


def check_pool(quota: Quota, limits: Limits, warm: int) -> None:
    """Refuse a pool that would exceed a quota even if the owner had no other sandboxes.

    Args:
        quota: Quota of the owner.
        limits: Limits of each sandbox of the pool.
        warm: Number of warm sandboxes that the pool keeps.
    """
    # A pool whose ``warm`` is 0 also needs quota for one sandbox: its template snapshot is made in a sandbox, and the pool grows on demand.
    warm = max(1, warm)
    if quota.sandboxes is not None and warm > quota.sandboxes:
        raise quota_exceeded(
            "sandboxes",
            f"The pool keeps {warm} warm sandboxes; the quota of this key is {quota.sandboxes} sandboxes, warm ones included.",
            "Lower `warm`." if quota.sandboxes else "Ask the operator for a larger quota.",
            limit=quota.sandboxes,
            used=0,
            requested=warm,
        )
    check_live(quota, limits, [], warm)
