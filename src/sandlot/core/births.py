"""How a sandbox comes to be: everything that is checked, chosen and promised before its life begins.

Laws:
- What can never be is refused before what is only not possible now; a promise is made in the same step as the last checks, and nobody comes between.
- What goes on from a snapshot or a fork is of its template, isolation and root, whatever else is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandlot.core import admission
from sandlot.core.admission import NewSandbox, Rules
from sandlot.core.lives.starts import Source, Start, boot
from sandlot.core.node.budget import Budget
from sandlot.core.node.ledger import Ledger
from sandlot.core.pools.pools import Pools
from sandlot.core.pools.starts import Claim
from sandlot.core.ports import Clock
from sandlot.core.records import quotas
from sandlot.core.sandbox import Sandbox
from sandlot.core.supply import Supply
from sandlot.core.volumes import attaching
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.access import OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Ability, Reading, Resources
from sandlot.model.specs import SandboxSpec, VolumeMount
from sandlot.model.states import State

Inject = Callable[[Sandbox], Coroutine[Any, Any, object]]
Injects = Callable[[Principal, Sequence[str]], Coroutine[Any, Any, Inject]]
"""Finds files of the file store for a principal, and gives what puts them into a sandbox."""


@dataclass(frozen=True, slots=True)
class Born:
    """A sandbox whose life may begin.

    Args:
        box: It.
        start: How it comes to its first answer.
        inject: What is done in it before its client is told that it runs.
    """

    box: Sandbox
    start: Start
    inject: Inject | None


class Births:
    """Where sandboxes come from.

    Args:
        supply: What they are made of.
        ledger: Where the node's promises are.
        rules: What the operator decided.
        budget: Of the memory that is held for clients.
        clock: The time.
        new_id: Makes ids that carry this node.
        injects: Finds files of the file store that are to be in a new sandbox.
        pools: What was made before anybody asked; None is nothing.
        quota_of: What an owner may take.
        volumes: What sandboxes may have; None is nothing.
    """

    def __init__(
        self,
        *,
        supply: Supply,
        ledger: Ledger,
        rules: Rules,
        budget: Budget,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        injects: Injects | None,
        pools: Pools | None = None,
        quota_of: Callable[[OwnerId], Quota],
        volumes: Volumes | None = None,
    ) -> None:
        self._pools = pools
        self._quota_of = quota_of
        self.volumes = volumes
        self._supply = supply
        self.ledger = self._ledger = ledger
        self._rules = rules
        self._budget = budget
        self._clock = clock
        self._new_id = new_id
        self._injects = injects

    async def conceive(
        self, asked: NewSandbox, who: Principal, source: Source | None, here: Callable[[], Sequence[Sandbox]], may: Callable[[], None]
    ) -> Born:
        """A sandbox as it was asked for, with all that it may use promised to it; nothing of it exists yet.

        Args:
            asked: It.
            who: Whose it will be.
            source: What it goes on from; None is its template.
            here: Gives the sandboxes that hold something of the host.
            may: Refuses where the service is about to stop; asked last, because the checks before it may have waited.

        Raises:
            SandlotError: It may not be, or not now; see ``Sandboxes.create``.
        """
        if asked.snapshot is not None and source is None:
            raise InternalError("A sandbox that goes on from a snapshot is created by Snapshots.create.")
        isolation = self._isolation(asked, source)
        network = admission.choose_network(asked.network)
        mounts = self._mounts(asked, who)
        template = asked.template if source is None else source.spec.template
        if source is None:
            self._supply.check_template(template)
        can = await self._supply.capabilities(isolation)
        admission.check_host(can, volumes=bool(mounts))
        inject = None if self._injects is None or not asked.files else await self._injects(who, asked.files)
        inject = _all(
            None if source is None else source.inject,
            attaching.shown(() if source is None else source.volumes, () if source is not None and source.shares else mounts),
            inject,
        )
        takes = self._supply.drivers[isolation].takes(asked.limits)

        def check(reading: Reading | None) -> None:
            may()
            if reading is not None:
                self._ledger.check_ever(takes, reading)  # first: what can never be is not told to try again
            boxes = [box for box in here() if box.state is not State.HIBERNATED]
            quotas.check_create(who, asked, [box for box in boxes if box.owner == who.owner])
            waiting = sum(1 for box in boxes if box.state is State.CREATING) - self._rules.max_creates
            admission.check_room(len(boxes), waiting, self._rules)

        pools = self._pools if source is None and (not mounts or can.can(Ability.CONFIGURE_VOLUMES)) else None
        waits = pools is not None and pools.waits(template, isolation, asked.limits, who.owner)
        reading = None if waits else await self._ledger.look()  # what waits has its room, and need not be looked for
        check(reading)
        if not waits:
            reading = await self._ledger.make_room(takes)
            check(reading)
        spec = SandboxSpec(
            id=self._new_id(),
            template=template,
            env=asked.env if source is None else {**source.spec.env, **asked.env},
            metadata=asked.metadata,
            limits=asked.limits,
            timeout_s=asked.timeout_s,
            network=network,
            isolation=isolation,
            on_timeout=asked.on_timeout,
            auto_resume=asked.auto_resume,
            snapshot=None if source is None else source.spec.snapshot,
            parent=None if source is None else source.spec.parent,
            root="" if source is None else source.spec.root,
            restored="" if source is None else source.restored,
            volumes=self._mounts(asked, who),
        )
        start = boot if source is None else source.start
        if pools is not None:
            start = pools.choose(spec, who.owner)
        if isinstance(start, Claim):
            spec = replace(spec, id=start.member.id)  # it is called so already, where a name cannot be changed
        box = Sandbox(
            spec,
            owner=who.owner,
            name=asked.name,
            created_at=self._clock.now(),
            budget=self._budget.part(),
            clock=self._clock,
            idle_timeout_s=asked.idle_timeout_s,
        )
        if isinstance(start, Claim):
            self._ledger.hand_over(start.member.holder, box.id, takes)
        else:
            reading = reading or await self._ledger.look()
            self._mounts(asked, who)  # one may have been deleted meanwhile
            self._ledger.promise(box.id, takes, reading)
        return Born(box, start, inject)

    async def reserve(self, holder: str, asked: NewSandbox, who: Principal, count: int, here: Callable[[], Sequence[Sandbox]]) -> None:
        """Promise what some sandboxes of a kind may use together, before the first of them is conceived; give it up then.

        Args:
            holder: Who has the promise until then.
            asked: Each of them; its isolation is a driver's name.
            who: Whose they will be.
            count: How many they will be.
            here: Gives the sandboxes that there are.

        Raises:
            InvalidRequestError: They can never fit on this node together; says how much they need.
            LimitError: ``quota_exceeded``.
            UnavailableError: ``busy``: there is no room for all of them now.
        """
        one = self._supply.drivers[asked.isolation].takes(asked.limits)
        all_of_them = Resources(memory_bytes=count * one.memory_bytes, disk_bytes=count * one.disk_bytes, pids=count * one.pids)

        def check(reading: Reading) -> None:
            try:
                self._ledger.check_ever(all_of_them, reading)
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    f"{count} of these at once are more than this node can ever hold. {error.message}",
                    hint="Ask for fewer at once.",
                    fields={**error.fields, "field": "count"},
                ) from None
            boxes = [box for box in here() if box.state is not State.HIBERNATED]
            quotas.check_create(who, asked, [box for box in boxes if box.owner == who.owner], count)
            admission.check_room(len(boxes) + count - 1, 0, self._rules)

        check(await self._ledger.look())
        reading = await self._ledger.make_room(all_of_them)
        check(reading)
        self._ledger.promise(holder, all_of_them, reading)

    async def claim(self, box: Sandbox, here: Callable[[], Sequence[Sandbox]]) -> None:
        """Promise anew what a sandbox may use that has only what it occupies on the disk.

        Args:
            box: It: hibernated.
            here: Gives the sandboxes that there are.

        Raises:
            LimitError: ``quota_exceeded``: its owner has others by now.
            UnavailableError: ``busy``: there is no room.
        """
        takes = self._supply.drivers[box.spec.isolation].takes(box.spec.limits)
        reading = await self._ledger.make_room(takes, besides=box.id)
        boxes = [other for other in here() if other.state is not State.HIBERNATED and other is not box]
        quotas.check_live(self._quota_of(box.owner), box.spec.limits, [other for other in boxes if other.owner == box.owner])
        admission.check_room(len(boxes), 0, self._rules)
        with self._ledger.changing(box.id, takes, reading):
            pass

    def _mounts(self, asked: NewSandbox, who: Principal) -> tuple[VolumeMount, ...]:
        """The volumes that a sandbox is to have."""
        if not asked.volumes:
            return ()
        if self.volumes is None:
            raise UnsupportedError("This service has no volumes.", code=ErrorCode.UNSUPPORTED, fields={"field": "volumes"})
        return self.volumes.resolve(who, asked.volumes)

    def _isolation(self, asked: NewSandbox, source: Source | None) -> str:
        if source is None:
            return admission.choose_isolation(asked.isolation, self._rules, self._supply.drivers)
        return admission.choose_isolation(
            source.spec.isolation if asked.isolation == admission.AUTO else admission.same_isolation(asked.isolation, source.spec.isolation),
            self._rules,
            self._supply.drivers,
        )


def _all(*injects: Inject | None) -> Inject | None:
    """One after the other."""
    works = [inject for inject in injects if inject is not None]
    if not works:
        return None

    async def work(box: Sandbox) -> None:
        for each in works:
            await each(box)

    return work
