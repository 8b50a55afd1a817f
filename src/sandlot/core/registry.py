"""Sandboxes as they are listed: the live ones from memory, those that have ended from the store, as one order of time.

Law: A page goes on exactly where the one before ended, whatever was created or has ended meanwhile: the order is by ``created_at`` and id,
which never change.

Which sandboxes there are and were: found by their ids, listed, and remembered for a while after their end.

Laws:
- Somebody else's sandbox is one that is not there.
- A name that is asked for as the only one of its kind is no live sandbox's of the same owner, nor is it being given to another.
- What is remembered of an ended sandbox is bounded, and holds nothing of its environment; its record is in the store for longer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.ports import Clock
from sandlot.core.records.sandboxes import SandboxRecorder, from_record
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.ids import SandboxId
from sandlot.model.records import SandboxRecord
from sandlot.model.states import State, is_terminal
from sandlot.model.storage import Position, SandboxTable

LIVE = frozenset(state for state in State if not is_terminal(state))
ENDED = frozenset(State) - LIVE


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sandboxes.

    Args:
        states: In one of these.
        metadata: With all of these entries.
        name: Of that name; None is any.
    """

    states: frozenset[State] = LIVE
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    def fits(self, sandbox: Sandbox) -> bool:
        """Whether a sandbox is one of them."""
        return (
            sandbox.state in self.states
            and self.name in {None, sandbox.name}
            and all(sandbox.metadata.get(name) == value for name, value in self.metadata.items())
        )


def states_of(names: Iterable[str]) -> frozenset[State]:
    """States by their names.

    Raises:
        InvalidRequestError: There is none of that name.
    """
    found = set()
    for name in names:
        if name not in State.__members__.values():
            raise InvalidRequestError(
                f"There is no state {name[:50]!r}.",
                hint=f"There are: {', '.join(State)}; several are separated by commas.",
                fields={"field": "state"},
            )
        found.add(State(name))
    return frozenset(found)


def place(sandbox: Sandbox) -> tuple[str, str]:
    """Where a sandbox stands in the order."""
    return sandbox.created_at.isoformat(timespec="microseconds"), sandbox.id


async def page(
    table: SandboxTable,
    live: Iterable[Sandbox],
    principal: Principal,
    wanted: Wanted,
    *,
    after: Position | None,
    limit: int,
    revive: Callable[[SandboxRecord], Sandbox],
) -> tuple[Sequence[Sandbox], bool]:
    """One page, oldest first.

    Args:
        table: Of those that have ended.
        live: Those that have not.
        principal: For whom.
        wanted: Which.
        after: The last one of the page before.
        limit: At most so many.
        revive: Makes a sandbox of the record of one that has ended.

    Returns:
        They, and whether more follow.
    """
    start = ("", "") if after is None else (after.at.isoformat(timespec="microseconds"), after.id)
    found = {sandbox.id: sandbox for sandbox in live if principal.sees(sandbox.owner) and wanted.fits(sandbox) and place(sandbox) > start}
    if ended := wanted.states & ENDED:
        owner = None if principal.operator else principal.owner
        for record in await table.ended(owner=owner, metadata=wanted.metadata, states=ended, name=wanted.name, after=after, limit=limit + 1):
            found.setdefault(record.id, revive(record))
    ordered = sorted(found.values(), key=place)
    return ordered[:limit], len(ordered) > limit


REMEMBERED = 1000
"""Ended sandboxes that can still be asked about."""


class SandboxRegistry:
    """The sandboxes of a service.

    Args:
        recorder: The durable side of them.
        buffers: Of the memory that is held for clients.
        clock: The time.
    """

    def __init__(self, recorder: SandboxRecorder, buffers: BufferBudget, clock: Clock) -> None:
        self._recorder = recorder
        self._buffers = buffers
        self._clock = clock
        self._lives: dict[SandboxId, tuple[Sandbox, asyncio.Task[None]]] = {}
        self._left: dict[SandboxId, Sandbox] = {}
        self._past: OrderedDict[SandboxId, Sandbox] = OrderedDict()
        self._naming: set[tuple[OwnerId, str]] = set()
        self.unheld: set[SandboxId] = set()
        """Those that an earlier service left, and this one has no driver for: nothing of them is touched."""

    def live(self) -> Sequence[Sandbox]:
        """Those that hold something of the host, the hibernated ones included."""
        return [sandbox for sandbox, _ in self._lives.values()]

    def find(self, id_: str, principal: Principal) -> Sandbox:
        """A sandbox by its id, ended ones that are remembered included; somebody else's is ``sandbox_not_found``."""
        sandbox = self._known(id_)
        if sandbox is not None and principal.sees(sandbox.owner):
            return sandbox
        raise NotFoundError(
            f"There is no sandbox {id_[:64]!r}.",
            code=ErrorCode.SANDBOX_NOT_FOUND,
            hint="It may have ended long ago. List what there is, or create a new one.",
            fields={"sandbox": id_[:64]},
        )

    def named(self, name: str, principal: Principal) -> Sandbox:
        """The live sandbox of that name that is one's own, the newest where there are several; else ``sandbox_not_found``."""
        found = [sandbox for sandbox in self._here() if sandbox.name == name and sandbox.owner == principal.owner and not is_terminal(sandbox.state)]
        return max(found, key=place) if found else self.find(name, principal)

    @contextmanager
    def reserve_name(self, owner: OwnerId, name: str | None, besides: Sandbox | None = None) -> Iterator[None]:
        """Around what gives a name that is to be unique among its owner's live sandboxes.

        Args:
            owner: Whose sandbox gets it.
            name: It; None is one that need not be unique.
            besides: The sandbox that gets it.

        Raises:
            ConflictError: Another one has it, or is getting it; on entering.
        """
        if name is None:
            yield
            return
        others = (sandbox for sandbox in self._here() if sandbox.owner == owner and sandbox is not besides and not is_terminal(sandbox.state))
        there = next((sandbox.id for sandbox in others if sandbox.name == name), None)
        if there is not None or (owner, name) in self._naming:
            raise ConflictError(
                f"There is a live sandbox of the name {name!r} already{'' if there is None else f': {there}'}.",
                code=ErrorCode.CONFLICT,
                hint="Use that one, kill it first, or choose another name.",
                fields={"name": name, **({} if there is None else {"sandbox": there})},
            )
        self._naming.add((owner, name))
        try:
            yield
        finally:
            self._naming.discard((owner, name))

    def _revived(self, record: SandboxRecord) -> Sandbox:
        return from_record(record, self._buffers.part(), self._clock)

    def _known(self, id_: str) -> Sandbox | None:
        living = self._lives.get(SandboxId(id_))
        return living[0] if living is not None else self._left.get(SandboxId(id_)) or self._past.get(SandboxId(id_))

    async def load(self, id_: str, principal: Principal) -> Sandbox:
        """A sandbox by its id, however long ago it ended: for as long as its record is kept; else ``sandbox_not_found``."""
        if self._known(id_) is None and (record := await self._recorder.store.sandboxes.get(SandboxId(id_))) is not None:
            sandbox = self._revived(record)
            if principal.sees(sandbox.owner) and sandbox.ended.is_set():
                return sandbox
        return self.find(id_, principal)

    def list(self, principal: Principal, *, ended: bool = False) -> Sequence[Sandbox]:
        """The sandboxes that there are for somebody, oldest first; ``ended``: also those that have ended and are remembered."""
        sandboxes = [sandbox for sandbox in self._here() if ended or not sandbox.ended.is_set()]
        if ended:
            sandboxes += self._past.values()
        return sorted((sandbox for sandbox in sandboxes if principal.sees(sandbox.owner)), key=place)

    async def page(self, principal: Principal, wanted: Wanted, *, after: Position | None, limit: int) -> tuple[Sequence[Sandbox], bool]:
        """Some of the sandboxes that there are or were for somebody, oldest first, and whether more follow."""
        return await page(self._recorder.store.sandboxes, self._here(), principal, wanted, after=after, limit=limit, revive=self._revived)

    def check_runs(self, principal: Principal) -> None:
        """Refuse whoever may begin no more runs this month; ``quota_exceeded``."""
        if self._recorder.execution_counter is not None:
            self._recorder.execution_counter.check(principal.owner)

    def _here(self) -> Sequence[Sandbox]:
        return [*(sandbox for sandbox, _ in self._lives.values()), *self._left.values()]

    def _of(self, owner: OwnerId) -> Sequence[Sandbox]:
        return [sandbox for sandbox, _ in self._lives.values() if sandbox.owner == owner and sandbox.state is not State.HIBERNATED]

    def _remember(self, sandbox: Sandbox) -> None:
        self._past[sandbox.id] = sandbox
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
