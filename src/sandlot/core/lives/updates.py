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
from sandlot.core.lives.means import SandboxSupervisor, extend_deadline, guest_deadline_s
from sandlot.core.node.ledger import Reservations
from sandlot.core.ports import Clock
from sandlot.core.records.register import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ports import Capabilities, Change, Driver
from sandlot.model.specs import OnTimeout, SandboxSpec
from sandlot.model.states import RESTING


@dataclass(frozen=True, slots=True)
class UpdateSandboxParams:
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
        reservations: Where the promises are.
        recorder: Where it is recorded.
        clock: The time.
        check: Refuses what the owner's quota does not allow; asked where nobody comes between it and the change.
    """

    driver: Driver
    can: Capabilities
    reservations: Reservations
    recorder: SandboxRecorder
    clock: Clock
    check: Callable[[], None]


async def update(sandbox: Sandbox, what: UpdateSandboxParams, hands: Hands) -> None:
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
        replace(sandbox.spec, timeout_s=what.timeout_s)  # refuses what is out of bounds
    await sandbox.recovered.wait()
    if (
        sandbox.state in RESTING
        and what.limits == Change()
        and await sandbox.operations.submit(functools.partial(_while_it_rests, what=what, hands=hands))
    ):
        return
    await sandbox.wait_reachable()
    sandbox.require_link()
    async with sandbox.change_lock:
        sandbox.require_link()  # again: it may have ended while this waited for its turn
        admission.check_own(what.metadata or {}, sandbox.metadata)
        check_able(what.limits, sandbox.spec.limits, hands.can)
        before = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name, sandbox.expires_at, sandbox.deadline_monotonic_s
        async with changed(sandbox, what.limits, hands.driver, hands.reservations, hands.check):
            try:
                if what.moves_deadline:
                    async with sandbox.connection() as link:
                        await link.set_deadline(guest_deadline_s(what.timeout_s))
                    extend_deadline(sandbox, hands.clock, what.timeout_s)
                _apply(sandbox, what)
                await hands.recorder.changed(sandbox, *what.names())
            except BaseException:
                _take_back(sandbox, *before[:4])
                sandbox.expires_at, sandbox.deadline_monotonic_s = before[4:]
                sandbox.deadline_changed.set()
                if what.moves_deadline:
                    sandbox.spawn(_say_again(sandbox, hands.clock))
                raise


async def _while_it_rests(supervisor: SandboxSupervisor, *, what: UpdateSandboxParams, hands: Hands) -> bool:
    """Change it while it rests; whether that was possible: it may run again by now, or be changed by somebody who waits for that."""
    sandbox = supervisor.sandbox
    if sandbox.state not in RESTING or sandbox.change_lock.locked():
        return False
    async with sandbox.change_lock:
        admission.check_own(what.metadata or {}, sandbox.metadata)
        hands.check()
        before = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name
        try:
            _apply(sandbox, what)
            await hands.recorder.changed(sandbox, *what.names())
        except BaseException:
            _take_back(sandbox, *before)
            raise
    return True


def _apply(sandbox: Sandbox, what: UpdateSandboxParams) -> None:
    """All of it that neither its guest nor its driver has to know."""
    spec = sandbox.spec
    sandbox.spec = replace(
        spec,
        timeout_s=what.timeout_s if what.moves_deadline else spec.timeout_s,
        on_timeout=spec.on_timeout if what.on_timeout is None else what.on_timeout,
        auto_resume=spec.auto_resume if what.auto_resume is None else what.auto_resume,
    )
    if what.metadata is not None:
        sandbox.metadata = {**{name: word for name, word in sandbox.metadata.items() if name.startswith(admission.OWN)}, **what.metadata}
    if what.idle_timeout_s is not None:
        sandbox.idle_timeout_s = what.idle_timeout_s or None
    sandbox.name = sandbox.name if what.name is None else what.name


def _take_back(sandbox: Sandbox, spec: SandboxSpec, metadata: Mapping[str, str], idle_timeout_s: float | None, name: str | None) -> None:
    """As it was; its limits are taken back by who changed them."""
    sandbox.metadata, sandbox.idle_timeout_s, sandbox.name = metadata, idle_timeout_s, name
    sandbox.spec = replace(sandbox.spec, timeout_s=spec.timeout_s, on_timeout=spec.on_timeout, auto_resume=spec.auto_resume)


async def _say_again(sandbox: Sandbox, clock: Clock) -> None:
    """Tell the guest the deadline that holds; where it cannot be told, the service's own ends the sandbox on time all the same."""
    left_s = None if sandbox.expires_at is None else max(0.0, sandbox.deadline_monotonic_s - clock.monotonic_s())
    async with sandbox.connection() as link:
        await link.set_deadline(guest_deadline_s(left_s))
