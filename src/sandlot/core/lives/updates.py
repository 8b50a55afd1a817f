"""Changes of a sandbox: its deadline and what that does, its idle timeout, its metadata, its limits; all of what is asked, or nothing.

Laws:
- Both ends know the deadline, and the guest's is said first: should that fail, the old one still holds on both.
- It is recorded before it is answered.
- One that rests is not resumed for it, but where its limits are to be changed: its timeout begins when it is resumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sandlot.core import admission
from sandlot.core.limits import changed, check_able
from sandlot.core.lives.means import Living, extend, guest_deadline_s
from sandlot.core.node.ledger import Ledger
from sandlot.core.ports import Clock
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ports import Capabilities, Change, Driver
from sandlot.model.specs import OnTimeout, SandboxSpec
from sandlot.model.states import RESTING


@dataclass(frozen=True, slots=True)
class Update:
    """What to change; what is left out stays.

    Args:
        timeout_s: Its timeout comes that many seconds from now; one that was persistent is so no more.
        persistent: It has no deadline any more.
        idle_timeout_s: Seconds of doing nothing after which it is ended; 0 is never.
        metadata: Replaces what there is, but for the service's own words.
        limits: What it may use.
        on_timeout: What becomes of it when its timeout passes.
        auto_resume: Whether a request to it resumes it by itself while it rests.
        name: A word for people.
        unique_name: Whether it is refused while its owner has another live sandbox of that name.
    """

    timeout_s: float | None = None
    persistent: bool = False
    idle_timeout_s: float | None = None
    metadata: Mapping[str, str] | None = None
    limits: Change = field(default_factory=Change)
    on_timeout: OnTimeout | None = None
    auto_resume: bool | None = None
    name: str | None = None
    unique_name: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or is out of bounds."""
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("A persistent sandbox has no timeout.", hint="Give one of the two.", fields={"field": "timeout"})
        admission.check_name(self.name, unique=self.unique_name)
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
            "on_timeout": self.on_timeout is not None,
            "auto_resume": self.auto_resume is not None,
            "name": self.name is not None,
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
    if what.timeout_s is not None:
        replace(box.spec, timeout_s=what.timeout_s)  # refuses what is out of bounds
    await box.adopted.wait()
    if box.state in RESTING and what.limits == Change() and await box.orders.put(functools.partial(_while_it_rests, what=what, hands=hands)):
        return
    await box.within_reach()
    box.require_link()
    async with box.changing:
        box.require_link()  # again: it may have ended while this waited for its turn
        admission.check_own(what.metadata or {}, box.metadata)
        check_able(what.limits, box.spec.limits, hands.can)
        before = box.spec, box.metadata, box.idle_timeout_s, box.name, box.expires_at, box.deadline_monotonic_s
        async with changed(box, what.limits, hands.driver, hands.ledger, hands.check):
            try:
                if what.moves_deadline:
                    async with box.using() as link:
                        await link.set_deadline(guest_deadline_s(what.timeout_s))
                    extend(box, hands.clock, what.timeout_s)
                _apply(box, what)
                await hands.register.changed(box, *what.names())
            except BaseException:
                _take_back(box, *before[:4])
                box.expires_at, box.deadline_monotonic_s = before[4:]
                box.deadline_changed.set()
                if what.moves_deadline:
                    box.spawn(_say_again(box, hands.clock))
                raise


async def _while_it_rests(living: Living, *, what: Update, hands: Hands) -> bool:
    """Change it while it rests; whether that was possible: it may run again by now, or be changed by somebody who waits for that."""
    box = living.box
    if box.state not in RESTING or box.changing.locked():
        return False
    async with box.changing:
        admission.check_own(what.metadata or {}, box.metadata)
        hands.check()
        before = box.spec, box.metadata, box.idle_timeout_s, box.name
        try:
            _apply(box, what)
            await hands.register.changed(box, *what.names())
        except BaseException:
            _take_back(box, *before)
            raise
    return True


def _apply(box: Sandbox, what: Update) -> None:
    """All of it that neither its guest nor its driver has to know."""
    spec = box.spec
    box.spec = replace(
        spec,
        timeout_s=what.timeout_s if what.moves_deadline else spec.timeout_s,
        on_timeout=spec.on_timeout if what.on_timeout is None else what.on_timeout,
        auto_resume=spec.auto_resume if what.auto_resume is None else what.auto_resume,
    )
    if what.metadata is not None:
        box.metadata = {**{name: word for name, word in box.metadata.items() if name.startswith(admission.OWN)}, **what.metadata}
    if what.idle_timeout_s is not None:
        box.idle_timeout_s = what.idle_timeout_s or None
    box.name = box.name if what.name is None else what.name


def _take_back(box: Sandbox, spec: SandboxSpec, metadata: Mapping[str, str], idle_timeout_s: float | None, name: str | None) -> None:
    """As it was; its limits are taken back by who changed them."""
    box.metadata, box.idle_timeout_s, box.name = metadata, idle_timeout_s, name
    box.spec = replace(box.spec, timeout_s=spec.timeout_s, on_timeout=spec.on_timeout, auto_resume=spec.auto_resume)


async def _say_again(box: Sandbox, clock: Clock) -> None:
    """Tell the guest the deadline that holds; where it cannot be told, the service's own ends the sandbox on time all the same."""
    left_s = None if box.expires_at is None else max(0.0, box.deadline_monotonic_s - clock.monotonic_s())
    async with box.using() as link:
        await link.set_deadline(guest_deadline_s(left_s))
