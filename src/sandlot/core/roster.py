"""Which sandboxes there are and were: found by their ids, listed, and remembered for a while after their end.

Laws:
- Somebody else's sandbox is one that is not there.
- A name that is asked for as the only one of its kind is no live sandbox's of the same owner, nor is it being given to another.
- What is remembered of an ended sandbox is bounded, and holds nothing of its environment; its record is in the store for longer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sandlot.core.listing import Wanted, page, place
from sandlot.core.node.budget import BufferBudget
from sandlot.core.ports import Clock
from sandlot.core.records.register import SandboxRecorder, revived
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.ids import SandboxId
from sandlot.model.records import SandboxRecord
from sandlot.model.states import State, is_terminal
from sandlot.model.storage import Position

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
        return revived(record, self._buffers.part(), self._clock)

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
