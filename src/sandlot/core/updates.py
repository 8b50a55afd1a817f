"""Changes of a sandbox that runs: its deadline, its idle timeout, its metadata, its limits; all of what is asked, or nothing.

Laws:
- Both ends know the deadline, and the guest's is said first: should that fail, the old one still holds on both.
- It is recorded before it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sandlot.core import admission
from sandlot.core.life import extend, guest_deadline_s
from sandlot.core.limits import changed, check_able
from sandlot.core.node.ledger import Ledger
from sandlot.core.ports import Clock
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ports import Capabilities, Change, Driver


@dataclass(frozen=True, slots=True)
class Update:
    """What to change; what is left out stays.

    Args:
        timeout_s: It ends that many seconds from now; one that was persistent is so no more.
        persistent: It has no deadline any more.
        idle_timeout_s: Seconds of doing nothing after which it is ended; 0 is never.
        metadata: Replaces what there is, but for the service's own words.
        limits: What it may use.
    """

    timeout_s: float | None = None
    persistent: bool = False
    idle_timeout_s: float | None = None
    metadata: Mapping[str, str] | None = None
    limits: Change = field(default_factory=Change)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or is out of bounds."""
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("A persistent sandbox has no timeout.", hint="Give one of the two.", fields={"field": "timeout"})
        if self.metadata is not None:
            admission.check_metadata(self.metadata)
        if self.idle_timeout_s:
            admission.check_idle_timeout(self.idle_timeout_s)

    @property
    def moves_deadline(self) -> bool:
        """Whether it says something about the deadline."""
        return self.persistent or self.timeout_s is not None

    def names(self) -> list[str]:
        """What of it is to be changed."""
        given = {
            "timeout": self.moves_deadline,
            "idle_timeout": self.idle_timeout_s is not None,
            "metadata": self.metadata is not None,
            "limits": self.limits != Change(),
        }
        return [name for name, is_given in given.items() if is_given]


@dataclass(frozen=True, slots=True)
class Hands:
    """What a change is made with.

    Args:
        driver: The sandbox's.
        can: What it is able to.
        ledger: Where the promises are.
        register: Where it is recorded.
        clock: The time.
        check: Refuses what the owner's quota does not allow; asked where nobody comes between it and the change.
    """

    driver: Driver
    can: Capabilities
    ledger: Ledger
    register: Register
    clock: Clock
    check: Callable[[], None]


async def update(box: Sandbox, what: Update, hands: Hands) -> None:
    """Change it.

    Raises:
        InvalidRequestError: Out of bounds.
        UnsupportedError: A limit that cannot be changed while it runs.
        ConflictError: It uses more than it would be allowed, or is still being created.
        UnavailableError: ``busy``: the node has not so much to give now.
        LimitError: ``quota_exceeded``.
        SandboxEndedError: It has ended.
        HostError: It cannot be recorded; everything is as it was.
    """
    await box.within_reach()
    box.require_link()
    if what.timeout_s is not None:
        replace(box.spec, timeout_s=what.timeout_s)  # refuses what is out of bounds
    async with box.changing:
        box.require_link()  # again: it may have ended while this waited for its turn
        admission.check_own(what.metadata or {}, box.metadata)
        check_able(what.limits, box.spec.limits, hands.can)
        before = box.spec, box.metadata, box.idle_timeout_s, box.expires_at, box.deadline_monotonic_s
        async with changed(box, what.limits, hands.driver, hands.ledger, hands.check):
            try:
                if what.moves_deadline:
                    async with box.using() as link:
                        await link.set_deadline(guest_deadline_s(what.timeout_s))
                    box.spec = replace(box.spec, timeout_s=what.timeout_s)
                    extend(box, hands.clock, what.timeout_s)
                if what.metadata is not None:
                    box.metadata = {**{name: word for name, word in box.metadata.items() if name.startswith(admission.OWN)}, **what.metadata}
                if what.idle_timeout_s is not None:
                    box.idle_timeout_s = what.idle_timeout_s or None
                await hands.register.changed(box, *what.names())
            except BaseException:
                spec, box.metadata, box.idle_timeout_s, box.expires_at, box.deadline_monotonic_s = before
                box.spec = replace(box.spec, timeout_s=spec.timeout_s)
                box.deadline_changed.set()
                if what.moves_deadline:
                    box.keep(asyncio.create_task(_say_again(box, hands.clock)))
                raise


async def _say_again(box: Sandbox, clock: Clock) -> None:
    """Tell the guest the deadline that holds; where it cannot be told, the service's own ends the sandbox on time all the same."""
    left_s = None if box.expires_at is None else max(0.0, box.deadline_monotonic_s - clock.monotonic_s())
    async with box.using() as link:
        await link.set_deadline(guest_deadline_s(left_s))
