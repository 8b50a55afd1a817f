"""What one key may take, decided before anything is taken. The checks are pure.

Laws:
- Over a quota is ``quota_exceeded`` (429) with the quota's name, its limit, what is used and what was asked for; ``retry_after_s`` stands there
  only where waiting helps: not where what is asked for is more than the whole quota.
- A quota bounds what begins. One that becomes smaller ends nothing, and a change that takes less is never refused.
- They are checked by the node that is asked: of two nodes that share a database each gives as much. Runs of a month are counted together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandlot.model.access import Principal, Quota
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.ports import Change
from sandlot.model.specs import Limits

if TYPE_CHECKING:
    from sandlot.core.admission import CreateSandboxParams
    from sandlot.core.sandbox import Sandbox

RETRY_AFTER_S: Final = 5
"""Where a sandbox of the same owner has to end first."""

_SUMS: Final = (("cpus", "cores"), ("memory_bytes", "bytes of memory"), ("disk_bytes", "bytes of disk"))
"""Field of a quota and of limits -> what it counts, for people."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one owner's live sandboxes have together.

    Args:
        sandboxes: How many they are.
        cpus: Cores.
        memory_bytes: Memory.
        disk_bytes: Disk.
    """

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int


def taken(live: Sequence[Limits]) -> Taken:
    """What some sandboxes have together."""
    return Taken(
        sandboxes=len(live),
        cpus=math.fsum(limits.cpus for limits in live),
        memory_bytes=sum(limits.memory_bytes for limits in live),
        disk_bytes=sum(limits.disk_bytes for limits in live),
    )


def check_create(principal: Principal, params: CreateSandboxParams, live: Sequence[Sandbox], count: int = 1) -> None:
    """Refuse a sandbox, or some of a kind, that their owner may not have beside those that live.

    Args:
        principal: Whose they would be.
        params: Each of them.
        live: Of the same owner, those in transit included.
        count: How many they would be.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    check_lifetime(principal.quota, params.timeout_s)
    check_live(principal.quota, params.limits, live, count)


def check_live(quota: Quota, limits: Limits, live: Sequence[Sandbox], count: int = 1) -> None:
    """Refuse sandboxes that an owner may not have beside those that live.

    Args:
        quota: The owner's.
        limits: Of each of them.
        live: Of the same owner, those in transit included.
        count: How many they would be.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    if quota.sandboxes is not None and len(live) + count > quota.sandboxes:
        can_fit = count <= quota.sandboxes
        raise exceeded(
            "sandboxes",
            f"This key has {len(live)} live sandboxes; it may have {quota.sandboxes}" + (f", and {count} more were asked for." if count > 1 else "."),
            "End one, or wait until one ends." if can_fit or count == 1 else "Ask for fewer.",
            limit=quota.sandboxes,
            used=len(live),
            asked=count,
            retry_after_s=RETRY_AFTER_S if can_fit else None,
        )
    check_sums(quota, limits, [sandbox.counted_limits for sandbox in live], count)


def check_update(principal: Principal, sandbox: Sandbox, timeout_s: float | None, change: Change, live: Sequence[Sandbox]) -> None:
    """Refuse a change by which a sandbox would take more than its owner may.

    Args:
        principal: Who asks; an operator is bound by nobody's quota.
        sandbox: Whose change.
        timeout_s: Its new timeout; ``math.inf`` makes it persistent, None leaves it.
        change: Its new limits.
        live: Of the same owner, with or without the sandbox itself.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    if timeout_s is not None:
        check_lifetime(principal.quota, timeout_s)
    before, after = sandbox.spec.limits, change.over(sandbox.spec.limits)
    grows = Quota(
        sandboxes=None,
        cpus=principal.quota.cpus if after.cpus > before.cpus else None,
        memory_bytes=principal.quota.memory_bytes if after.memory_bytes > before.memory_bytes else None,
        disk_bytes=principal.quota.disk_bytes if after.disk_bytes > before.disk_bytes else None,
    )
    check_sums(grows, after, [other.counted_limits for other in live if other.id != sandbox.id])


def check_lifetime(quota: Quota, timeout_s: float | None) -> None:
    """Refuse a timeout that is longer than a quota allows; None and ``math.inf`` are persistent.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    if quota.lifetime_s is None or (timeout_s is not None and timeout_s <= quota.lifetime_s):
        return
    persistent = timeout_s is None or timeout_s == math.inf
    raise exceeded(
        "lifetime_s",
        f"A sandbox of this key may live for {quota.lifetime_s:g} seconds"
        + (", so it cannot be persistent." if persistent else f", not {timeout_s:g}."),
        f"Ask for a timeout of at most {quota.lifetime_s:g}; it can be set anew while the sandbox runs.",
        limit=quota.lifetime_s,
        used=0,
        asked=None if persistent else timeout_s,
    )


def check_sums(quota: Quota, asked: Limits, others: Sequence[Limits], count: int = 1) -> None:
    """Refuse limits that together with those of other sandboxes are more than a quota allows.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    for name, what in _SUMS:
        limit, want = getattr(quota, name), count * getattr(asked, name)
        used = sum(getattr(one, name) for one in others)
        if limit is not None and used + want > limit:
            raise exceeded(
                name,
                f"All sandboxes of this key may have {limit:g} {what} together; {used:g} are taken and {want:g} more were asked for."
                if isinstance(limit, float)
                else f"All sandboxes of this key may have {limit} {what} together; {used} are taken and {want} more were asked for.",
                "Ask for less, or end a sandbox first." if want <= limit else "Ask for less.",
                limit=limit,
                used=used,
                asked=want,
                retry_after_s=RETRY_AFTER_S if want <= limit else None,
            )


def check_snapshots(quota: Quota, kept: int, kept_bytes: int, more_bytes: int = 0) -> None:
    """Refuse a snapshot that its owner may not keep beside those that there are.

    Args:
        quota: The owner's.
        kept: Snapshots that there are, without this one.
        kept_bytes: What they take on the disk together.
        more_bytes: What this one takes; 0 while nobody knows, and then there has to be room for something.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    _check_number("snapshots", quota.snapshots, kept, "keep", "Delete one that is not needed.")
    limit = quota.snapshot_bytes
    if limit is not None and (kept_bytes + more_bytes > limit or kept_bytes >= limit):
        raise exceeded(
            "snapshot_bytes",
            f"All snapshots of this key may take {limit} bytes of disk together; {kept_bytes} are taken"
            + (f" and {more_bytes} more would be." if more_bytes else "."),
            "Delete one that is not needed, or take it of files alone."
            if more_bytes <= limit
            else "Take it of files alone, or of a smaller sandbox.",
            limit=limit,
            used=kept_bytes,
            asked=more_bytes or None,
        )


def check_volumes(quota: Quota, kept: int, kept_bytes: int, more_bytes: int) -> None:
    """Refuse a volume that its owner may not have beside those that there are.

    Args:
        quota: The owner's.
        kept: Volumes that there are.
        kept_bytes: Their sizes together.
        more_bytes: The size of this one.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    _check_number("volumes", quota.volumes, kept, "have", "Delete one that is not needed.")
    limit = quota.volume_bytes
    if limit is not None and kept_bytes + more_bytes > limit:
        raise exceeded(
            "volume_bytes",
            f"All volumes of this key may have {limit} bytes together; {kept_bytes} are taken and {more_bytes} more were asked for.",
            "Delete one that is not needed, or ask for a smaller one." if more_bytes <= limit else "Ask for a smaller one.",
            limit=limit,
            used=kept_bytes,
            asked=more_bytes,
        )


def check_pool(quota: Quota, limits: Limits, warm: int) -> None:
    """Refuse a pool of which not even one, or what is always to wait, could wait, were nothing else there.

    Args:
        quota: The owner's.
        limits: Of each of its sandboxes.
        warm: How many are always to wait.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    warm = max(1, warm)  # it grows where it is asked, and its template snapshot is made in a sandbox of that size
    if quota.sandboxes is not None and warm > quota.sandboxes:
        raise exceeded(
            "sandboxes",
            f"This key may have {quota.sandboxes} sandboxes, those that wait included; {warm} would be kept ready.",
            "Keep fewer ready." if quota.sandboxes else "Ask the operator for a larger quota.",
            limit=quota.sandboxes,
            used=0,
            asked=warm,
        )
    check_sums(quota, limits, [], warm)


def check_pools(quota: Quota, kept: int) -> None:
    """Refuse a pool that its owner may not have beside those that there are.

    Args:
        quota: The owner's.
        kept: Pools that there are.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    _check_number("pools", quota.pools, kept, "have", "Remove one that is not needed.")


def check_upload(quota: Quota, size_bytes: int) -> None:
    """Refuse an upload that is larger than a quota allows.

    Args:
        quota: Of who sends it.
        size_bytes: What was announced, or has come so far.

    Raises:
        LimitError: ``quota_exceeded``.
    """
    if quota.upload_bytes is not None and size_bytes > quota.upload_bytes:
        raise exceeded(
            "upload_bytes",
            f"The upload has more than {quota.upload_bytes} bytes, which is what this key may upload at once.",
            "Send it in parts, or ask the operator for a larger quota.",
            limit=quota.upload_bytes,
            used=0,
            asked=size_bytes,
        )


def exceeded(quota: str, message: str, hint: str, *, limit: float, used: float, asked: float | None, retry_after_s: int | None = None) -> LimitError:
    """The error of a quota: which one it is, and the figures.

    Args:
        quota: Its field in :class:`Quota`.
        message: What happened.
        hint: What to do.
        limit: The quota.
        used: What of it is taken.
        asked: What was asked for beside that; None is without end.
        retry_after_s: Seconds after which it may fit; None where waiting does not help.
    """
    fields: dict[str, float | str | None] = {"quota": quota, "limit": limit, "used": used, "asked": asked}
    if retry_after_s is not None:
        fields["retry_after_s"] = retry_after_s
    return LimitError(message, code=ErrorCode.QUOTA_EXCEEDED, hint=hint, fields=fields)


def _check_number(quota: str, limit: int | None, kept: int, may: str, hint: str) -> None:
    """Refuse one more of something that is kept by its number."""
    if limit is not None and kept >= limit:
        message = f"This key has {kept} {quota}; it may {may} {limit}."
        raise exceeded(quota, message, hint if limit else "Ask the operator for a larger quota.", limit=limit, used=kept, asked=1)
