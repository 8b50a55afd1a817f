"""All sandboxes of this service: created, found, prolonged, killed, and remembered for a while after their end.

Laws:
- A sandbox counts against the service's bound, and against what the host has (:mod:`sandlot.core.node.capacity`), from the request
  that creates it until its last trace is removed.
- A client that goes away while its sandbox is created leaves nothing behind.
- Killing is idempotent; any number of callers may wait for the same end.
- What is remembered of an ended sandbox is bounded, and holds nothing of its environment.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog

from sandlot.core import admission
from sandlot.core.admission import NewSandbox, Rules
from sandlot.core.life import GUEST_GRACE_S, Means, extend, live
from sandlot.core.limits import Used, changed, check_able, used
from sandlot.core.node.budget import Budget
from sandlot.core.node.capacity import Figures
from sandlot.core.node.ledger import Ledger
from sandlot.core.ports import Base, Clock, Greet, Template, Templates
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Ability, Capabilities, Change, Driver, Exit, ExitReason, Reading
from sandlot.model.specs import SandboxSpec
from sandlot.model.states import State

REMEMBERED = 1000
"""Ended sandboxes that can still be asked about."""

CLOSE_TIMEOUT_S = 60.0
"""For removing everything when the service stops; what is left then is swept by the next start."""

_log = structlog.get_logger("sandlot.core")


def _stopping() -> UnavailableError:
    return UnavailableError(
        "The service is stopping.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Try again once it has started anew.",
        fields={"retry_after_s": 1},
    )


class Sandboxes:
    """All sandboxes of this service.

    Args:
        drivers: Isolation name -> driver.
        templates: What sandboxes start from.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        rules: What the operator decided.
        read_host: Looks at what the host has; blocks for some milliseconds.
        budget: Of the memory that is held for clients.
    """

    def __init__(
        self,
        *,
        drivers: Mapping[str, Driver],
        templates: Templates,
        greet: Greet,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        rules: Rules,
        read_host: Callable[[], Reading],
        budget: Budget,
    ) -> None:
        self._drivers = drivers
        self._templates = templates
        self._greet = greet
        self._clock = clock
        self._new_id = new_id
        self._rules = rules
        self._budget = budget
        self._ledger = Ledger(read_host, rules.shares, clock)
        self._turns = asyncio.Semaphore(rules.max_creates)
        self._lives: dict[SandboxId, tuple[Sandbox, asyncio.Task[None]]] = {}
        self._past: OrderedDict[SandboxId, Sandbox] = OrderedDict()
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        self._building: dict[str, asyncio.Task[Base]] = {}
        self._closing = False
        self._close_by_s: float | None = None
        self._idle_since_monotonic_s = clock.monotonic_s()

    async def open(self) -> int:
        """Remove what an earlier service of this node left behind; how many sandboxes that were.

        Call it before anything else, and only while holding the state directory's lock.
        """
        swept = sum([await driver.sweep(keep=()) for driver in self._drivers.values()])
        if swept:
            _log.info("sandboxes.swept", count=swept)
        return swept

    def refuse(self) -> None:
        """Let nothing be created any more, because the service is about to stop."""
        self._closing = True

    async def aclose(self) -> None:
        """End every sandbox and wait until all of them are removed; nothing can be created any more.

        Idempotent, and however often it is called, what cannot be removed is waited for once.
        """
        self.refuse()
        tasks = [task for _, task in self._lives.values()]
        for box, _ in self._lives.values():
            box.end(Exit(ExitReason.KILLED, "the service was stopped"))
        now_s, first = asyncio.get_running_loop().time(), self._close_by_s is None
        self._close_by_s = now_s + CLOSE_TIMEOUT_S if self._close_by_s is None else self._close_by_s
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.0, self._close_by_s - now_s))
            if late and first:
                _log.error("sandboxes.not_removed", count=len(late), hint="The next start of the service removes them.")

    @property
    def held(self) -> int:
        """Sandboxes that still hold anything of the host."""
        return len(self._lives)

    def idle_s(self) -> float:
        """Seconds since the last sandbox was removed; 0 while there is one."""
        return 0.0 if self._lives else self._clock.monotonic_s() - self._idle_since_monotonic_s

    async def create(self, asked: NewSandbox, who: Principal) -> Sandbox:
        """Create a sandbox and wait until it runs.

        Args:
            asked: It, as it was asked for.
            who: Whose it will be.

        Raises:
            InvalidRequestError: The request makes no sense, or can never fit on this node.
            ForbiddenError: The operator does not allow the isolation.
            UnsupportedError: It asks for what cannot be enforced yet.
            NotFoundError: ``template_not_found``.
            HostError: This host cannot do it; says why.
            UnavailableError: There is no room, or the service is stopping.
            SandboxEndedError: Somebody killed it while it was created.
        """
        isolation = admission.choose_isolation(asked.isolation, self._rules, self._drivers)
        network = admission.choose_network(asked.network)
        self._check_template(asked.template)
        admission.check_host(await self.capabilities(isolation))
        reading = await self._ledger.look()
        if self._closing:  # asked last, because the checks before it may have waited
            raise _stopping()
        takes = self._drivers[isolation].takes(asked.limits)
        self._ledger.check_ever(takes, reading)  # first: what can never be is not told to try again
        waiting = sum(1 for box, _ in self._lives.values() if box.state is State.CREATING) - self._rules.max_creates
        admission.check_room(len(self._lives), waiting, self._rules)
        spec = SandboxSpec(
            id=self._new_id(),
            template=asked.template,
            env=asked.env,
            metadata=asked.metadata,
            limits=asked.limits,
            timeout_s=asked.timeout_s,
            network=network,
            isolation=isolation,
        )
        box = Sandbox(spec, owner=who.owner, name=asked.name, created_at=self._clock.now(), budget=self._budget.part())
        self._ledger.promise(box.id, takes, reading)
        means = Means(driver=self._drivers[isolation], base=self._base, greet=self._greet, clock=self._clock, turns=self._turns)
        task = asyncio.create_task(live(box, means), name=f"sandbox {box.id}")
        self._lives[box.id] = (box, task)
        task.add_done_callback(lambda _: self._gone(box))
        try:
            await asyncio.shield(box.ready)
        except asyncio.CancelledError:
            box.end(Exit(ExitReason.KILLED, "the client that created it went away"))
            raise
        except SandboxEndedError:
            if self._closing:  # nobody has seen it yet: its creator may simply ask the next service
                raise _stopping() from None
            raise
        _log.info("sandbox.created", sandbox=box.id, template=spec.template, isolation=isolation)
        return box

    def find(self, id_: str, who: Principal) -> Sandbox:
        """A sandbox by its id, ended ones that are remembered included; somebody else's is not found.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        live_one = self._lives.get(SandboxId(id_))
        box = live_one[0] if live_one is not None else self._past.get(SandboxId(id_))
        if box is not None and who.sees(box.owner):
            return box
        raise NotFoundError(
            f"There is no sandbox {id_[:64]!r}.",
            code=ErrorCode.SANDBOX_NOT_FOUND,
            hint="It may have ended long ago, or before the service was last started. List what there is, or create a new one.",
            fields={"sandbox": id_[:64]},
        )

    def all(self, who: Principal, *, ended: bool = False) -> list[Sandbox]:
        """The sandboxes that there are for somebody, oldest first.

        Args:
            who: For whom.
            ended: Also those that have ended and are remembered.
        """
        boxes = [box for box, _ in self._lives.values() if ended or not box.ended.is_set()]
        if ended:
            boxes += self._past.values()
        return sorted((box for box in boxes if who.sees(box.owner)), key=lambda box: (box.created_at, box.id))

    async def kill(self, id_: str, who: Principal) -> None:
        """End a sandbox; return when its processes are dead. Idempotent.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        box = self.find(id_, who)
        box.end(Exit(ExitReason.KILLED, "it was killed by request"))
        await box.ended.wait()

    async def update(
        self, id_: str, who: Principal, *, timeout_s: float | None = None, metadata: Mapping[str, str] | None = None, limits: Change | None = None
    ) -> Sandbox:
        """Change a sandbox: all of what is asked, or nothing.

        Args:
            id_: Which.
            who: Who asks.
            timeout_s: It ends that many seconds from now; None leaves its deadline.
            metadata: Replaces what there is; None leaves it.
            limits: What it may use from now on; None leaves that.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            InvalidRequestError: Out of bounds.
            UnsupportedError: A limit that cannot be changed while it runs.
            ConflictError: It uses more than it would be allowed, or is still being created.
            UnavailableError: ``busy``: the node has not so much to give now.
            SandboxEndedError: It has ended.
        """
        box = self.find(id_, who)
        box.require_link()
        if metadata is not None:
            admission.check_metadata(metadata)
        if timeout_s is not None:
            dataclasses.replace(box.spec, timeout_s=timeout_s)  # refuses what is out of bounds
        change = limits or Change()
        async with box.changing:
            box.require_link()  # again: it may have ended while this waited for its turn
            check_able(change, box.spec.limits, await self.capabilities(box.spec.isolation))
            async with changed(box, change, self._drivers[box.spec.isolation], self._ledger):
                if timeout_s is not None:
                    async with box.using() as link:
                        # The guest first: should that fail, the old deadline still holds on both ends.
                        await link.set_deadline(timeout_s + GUEST_GRACE_S)
        if timeout_s is not None:
            box.spec = dataclasses.replace(box.spec, timeout_s=timeout_s)
            extend(box, self._clock, timeout_s)
        if metadata is not None:
            box.metadata = dict(metadata)
        return box

    async def usage(self, id_: str, who: Principal) -> Used:
        """What a sandbox has used so far, and of how much.

        Raises:
            NotFoundError: ``sandbox_not_found``.
            SandboxEndedError: It has ended.
        """
        return await used(self.find(id_, who))

    async def figures(self) -> Figures:
        """What this node may promise, and what it has promised."""
        return await self._ledger.figures()

    async def templates(self) -> list[Template]:
        """What a sandbox can be started from."""
        return list(await asyncio.to_thread(self._templates.all))

    async def capabilities(self, isolation: str) -> Capabilities:
        """What a driver can do here. A driver that can start sandboxes is probed once; one that cannot, whenever it is asked for."""
        probe = self._probes.get(isolation)
        if probe is None:
            probe = self._probes[isolation] = asyncio.create_task(asyncio.to_thread(self._drivers[isolation].probe))
        try:
            found = await asyncio.shield(probe)
        except Exception:
            self._probes.pop(isolation, None)
            raise
        if not found.can(Ability.BOOT):
            self._probes.pop(isolation, None)
        return found

    async def all_capabilities(self) -> list[Capabilities]:
        """What every driver can do here."""
        return [await self.capabilities(name) for name in self._drivers]

    async def _base(self, template: str) -> Base:
        """What a template gives; however many wait for its build, they take one thread."""
        task = self._building.get(template)
        if task is None:
            task = self._building[template] = asyncio.create_task(asyncio.to_thread(self._templates.base, template))
            task.add_done_callback(lambda done: self._built(template, done))
        return await asyncio.shield(task)

    def _built(self, template: str, task: asyncio.Task[Base]) -> None:
        del self._building[template]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waited for it has been told; but they may all have gone away.
            _log.warning("template.failed", template=template, error=str(error))

    def _check_template(self, name: str) -> None:
        names = self._templates.names()
        if name not in names:
            raise NotFoundError(
                f"There is no template {name[:64]!r}.",
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"There are: {', '.join(sorted(names))}.",
                fields={"template": name[:64]},
            )

    def _gone(self, box: Sandbox) -> None:
        """Every trace of a sandbox is removed."""
        del self._lives[box.id]
        self._ledger.give_up(box.id)
        self._idle_since_monotonic_s = self._clock.monotonic_s()
        # One that could not be created is not remembered: its creator got the reason, and nobody else has the id.
        if box.expires_at is not None or box.wanted_exit is not None:
            box.spec = dataclasses.replace(box.spec, env={})
            box.instance = box.link = None
            box.inputs.clear()
            box.kernels.clear()
            self._past[box.id] = box
            while len(self._past) > REMEMBERED:
                self._past.popitem(last=False)
