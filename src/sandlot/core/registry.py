"""Registry of sandboxes: find, list and page them, and reserve names.

Invariants:
- A sandbox of another owner is not found, as if it did not exist.
- A name belongs to at most one live sandbox of an owner. A create or rename reserves the name before it begins. The name of a sandbox is free once
  the processes of the sandbox are dead.
- A limited number of ended sandboxes is kept in memory, without their environment. The store keeps the records of ended sandboxes for longer.
- A page begins directly after the last sandbox of the previous page, even if sandboxes were created or ended meanwhile. Sandboxes are ordered by
  ``created_at`` and id, which never change.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import ChainMap, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sandlot.core.ports import Clock
from sandlot.core.records.sandboxes import SandboxRecorder, from_record
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId, Principal
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ConflictError
from sandlot.model.ids import SandboxId
from sandlot.model.records import SandboxRecord
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ENDED, SandboxFilter, sandbox_not_found
from sandlot.model.specs import VolumeMount
from sandlot.model.states import State, is_terminal

MAX_REMEMBERED = 1000
"""Maximum number of ended sandboxes that are kept in memory."""


def sort_key(sandbox: Sandbox) -> tuple[str, str]:
    """Return the sort key of a sandbox in lists: its creation time, then its id."""
    return sandbox.created_at.isoformat(timespec="microseconds"), sandbox.id


class NameTakenError(ConflictError):
    """The name belongs to another live sandbox of the owner, or to one that is being created or renamed."""

    @classmethod
    def of(cls, name: str, holder: Sandbox | SandboxRecord | None) -> NameTakenError:
        """Return the error for a name. ``holder`` is None while the sandbox with the name is being admitted or renamed."""
        return cls(
            f"The name {name!r} belongs to another live sandbox{'' if holder is None else f', {holder.id}'}.",
            hint="Use that sandbox, kill it first, or choose another name.",
            fields={"name": name, **({} if holder is None else {"sandbox": holder.id})},
        )


@dataclass(eq=False, slots=True)
class _NameReservation:
    """Reservation of a name by creates or renames in progress.

    Args:
        renamed: Sandbox that is renamed. None: a sandbox is created.
        count: Number of renames that reserve the name; 1 for a create.
    """

    renamed: Sandbox | None
    count: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)


class SandboxRegistry:
    """The live and the recently ended sandboxes of this service, in memory.

    Args:
        buffers: Memory of the service for buffered client data; each sandbox gets a part.

    Attributes:
        known: Id -> sandbox in memory, including recently ended sandboxes.
        tasks: Id of a live sandbox -> task that owns the sandbox.
        without_driver: Id -> record of a sandbox that an earlier service created with a driver that this service does not have. The sandbox is left
            unchanged and no client finds it, but its name, limits and volumes stay in use.
    """

    def __init__(self, recorder: SandboxRecorder, buffers: BufferShares, clock: Clock) -> None:
        self._recorder = recorder
        self._buffers = buffers
        self._clock = clock
        self._live: dict[SandboxId, Sandbox] = {}
        self._detached: dict[SandboxId, Sandbox] = {}
        self._ended: OrderedDict[SandboxId, Sandbox] = OrderedDict()
        self._reserved_names: dict[tuple[OwnerId, str], _NameReservation] = {}
        self._shared: set[SandboxId] = set()
        self._empty_since_monotonic_s = clock.monotonic_s()
        self.known: Mapping[SandboxId, Sandbox] = ChainMap(self._live, self._detached, self._ended)
        self.tasks: dict[SandboxId, asyncio.Task[None]] = {}
        self.without_driver: dict[SandboxId, SandboxRecord] = {}

    @property
    def count(self) -> int:
        """Number of sandboxes that still hold resources of the host."""
        return len(self._live)

    def empty_s(self) -> float:
        """Return the seconds since the last live sandbox was removed, or since the service started; 0 while there is a live sandbox."""
        return 0.0 if self._live else self._clock.monotonic_s() - self._empty_since_monotonic_s

    # Find and list --------------------------------------------------------------------------------------------------------

    def live(self) -> Sequence[Sandbox]:
        """Return the sandboxes that hold resources of the host, including hibernated sandboxes."""
        return list(self._live.values())

    def count_hibernated(self, owner: OwnerId) -> int:
        """Return the number of an owner's sandboxes that are hibernated, or are being hibernated or woken."""
        return sum(1 for sandbox in self._live.values() if sandbox.owner == owner and sandbox.is_hibernated)

    def live_states(self) -> Sequence[State]:
        """Return the state of every sandbox that has not ended."""
        states = [sandbox.state for sandbox in self._present() if not sandbox.ended.is_set()]
        return [*states, *(record.state for record in self.without_driver.values())]

    def mounts(self) -> Mapping[SandboxId, Sequence[VolumeMount]]:
        """Return the volumes of each live sandbox with volumes, including hibernated sandboxes. A sandbox whose processes are dead is left out."""
        of_records = {record.id: record.spec.volumes for record in self.without_driver.values() if record.spec.volumes}
        return of_records | {sandbox.id: sandbox.spec.volumes for sandbox in self.live() if sandbox.spec.volumes and not sandbox.ended.is_set()}

    def find(self, id_: str, principal: Principal) -> Sandbox:
        """Return a sandbox from memory if the principal may see the sandbox. Recently ended sandboxes are included.

        Raises:
            NotFoundError: The principal can see no such sandbox (code ``sandbox_not_found``).
        """
        sandbox = self.known.get(SandboxId(id_))
        if sandbox is not None and principal.sees(sandbox.owner):
            return sandbox
        raise sandbox_not_found(id_)

    async def load(self, id_: str, principal: Principal) -> Sandbox:
        """Return a sandbox that a principal may see. Ended sandboxes are included as long as the store keeps their records.

        Raises:
            NotFoundError: The principal can see no such sandbox (code ``sandbox_not_found``).
        """
        if SandboxId(id_) not in self.known and (record := await self._recorder.store.sandboxes.get(SandboxId(id_))) is not None:
            sandbox = self.revive(record)
            if principal.sees(sandbox.owner) and sandbox.ended.is_set():
                return sandbox
        return self.find(id_, principal)

    def find_by_name(self, name: str, principal: Principal) -> Sandbox:
        """Return the principal's own live sandbox with a name.

        Raises:
            NotFoundError: The principal has no such sandbox (code ``sandbox_not_found``).
        """
        holder = self._holder(principal.owner, name)
        if isinstance(holder, Sandbox):
            return holder
        raise sandbox_not_found(name)

    def list(self, principal: Principal, *, ended: bool = False) -> Sequence[Sandbox]:
        """Return the sandboxes that a principal may see, oldest first.

        Args:
            principal: Caller.
            ended: True includes recently ended sandboxes.
        """
        sandboxes = [sandbox for sandbox in self._present() if ended or not sandbox.ended.is_set()]
        if ended:
            sandboxes += self._ended.values()
        return sorted((sandbox for sandbox in sandboxes if principal.sees(sandbox.owner)), key=sort_key)

    async def page(self, principal: Principal, wanted: SandboxFilter, *, after: Position | None, limit: int) -> tuple[Sequence[Sandbox], bool]:
        """Return a page of live and ended sandboxes, oldest first, and True if more sandboxes follow.

        Args:
            principal: Caller. Sandboxes of the service itself (``INTERNAL``) are not listed for operators.
            wanted: Conditions that the sandboxes meet.
            after: Position of the last sandbox of the previous page. None: the first page.
            limit: Maximum number of sandboxes to return.
        """
        start = ("", "") if after is None else (after.at.isoformat(timespec="microseconds"), after.id)
        found = {
            sandbox.id: sandbox
            for sandbox in self._present()
            if principal.lists(sandbox.owner) and wanted.matches(sandbox.info()) and sort_key(sandbox) > start
        }
        if ended := wanted.states & ENDED:
            owner = None if principal.operator else principal.owner
            table = self._recorder.store.sandboxes
            for record in await table.list_ended(owner=owner, metadata=wanted.metadata, states=ended, name=wanted.name, after=after, limit=limit + 1):
                found.setdefault(record.id, self.revive(record))
        ordered = sorted(found.values(), key=sort_key)
        return ordered[:limit], len(ordered) > limit

    # Add and remove -------------------------------------------------------------------------------------------------------

    @contextmanager
    def reserve_name(self, owner: OwnerId, name: str | None, *, renamed: Sandbox | None = None) -> Iterator[None]:
        """Reserve a name while the body of the ``with`` block creates or renames a sandbox.

        A rename also reserves every other name that the sandbox has or is getting: the sandbox keeps its name if the new name cannot be recorded.

        Args:
            owner: Owner of the sandbox.
            name: The name. None: nothing is reserved.
            renamed: Sandbox that is renamed. None: the sandbox is new.

        Raises:
            NameTakenError: Another live sandbox of the owner has the name or is getting the name.
        """
        if name is None:
            yield
            return
        holder, reservation = self._holder(owner, name), self._reserved_names.get((owner, name))
        if (holder is not None and holder is not renamed) or (reservation is not None and (renamed is None or reservation.renamed is not renamed)):
            raise NameTakenError.of(name, holder)
        keys = {(owner, name)}
        if renamed is not None:
            keys |= {key for key, other in self._reserved_names.items() if other.renamed is renamed}
            keys |= set() if renamed.name is None else {(owner, renamed.name)}
        for key in keys:
            self._reserved_names.setdefault(key, _NameReservation(renamed)).count += 1
        try:
            yield
        finally:
            for key in keys:
                reservation = self._reserved_names[key]
                reservation.count -= 1
                if reservation.count == 0:
                    del self._reserved_names[key]
                    reservation.released.set()

    async def share_by_name(self, owner: OwnerId, name: str) -> Sandbox | None:
        """Return an owner's live sandbox with a name, or None if the name is free.

        Waits while a sandbox with the name is created, renamed, recovered or ended. The sandbox is shared from now on: it stays when the client that
        creates it disconnects.

        Raises:
            NameTakenError: This service does not have the driver of the sandbox.
            UnavailableError: The service is stopping; code ``service_stopping``.
        """
        while True:
            if (reservation := self._reserved_names.get((owner, name))) is not None:
                await reservation.released.wait()
                continue
            holder = self._holder(owner, name)
            if holder is None:
                return None
            if not isinstance(holder, Sandbox):
                raise NameTakenError.of(name, holder)
            if holder.end_requested.is_set():
                await self.wait_ended(holder)
            elif holder.detaching.is_set():
                raise holder.stopping_error()
            elif not holder.recovered.is_set():
                await holder.recovered.wait()
            elif not holder.is_announced:
                await asyncio.wait({holder.ready})
            else:
                self._shared.add(holder.id)
                return holder

    def is_shared(self, sandbox: Sandbox) -> bool:
        """Return True if :meth:`share_by_name` has returned a live sandbox."""
        return sandbox.id in self._shared

    async def wait_ended(self, sandbox: Sandbox) -> None:
        """Wait until the processes of a sandbox whose end is requested are dead.

        Raises:
            UnavailableError: The service stops and leaves the sandbox to the next service; code ``service_stopping``.
        """
        task = self.tasks.get(sandbox.id)
        if task is not None:
            ended = asyncio.ensure_future(sandbox.ended.wait())
            try:
                await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
        if not sandbox.ended.is_set():
            raise sandbox.stopping_error()

    def _holder(self, owner: OwnerId, name: str) -> Sandbox | SandboxRecord | None:
        """Return the live sandbox of an owner that has a name."""
        live = (sandbox for sandbox in self._present() if not is_terminal(sandbox.state))
        others: Sequence[Sandbox | SandboxRecord] = [*live, *self.without_driver.values()]
        return next((other for other in others if other.owner == owner and other.name == name), None)

    def add(self, sandbox: Sandbox, task: asyncio.Task[None]) -> None:
        """Add a live sandbox and the task that owns the sandbox."""
        self._live[sandbox.id] = sandbox
        self.tasks[sandbox.id] = task

    def remove(self, sandbox: Sandbox) -> None:
        """Move a live sandbox to the ended sandboxes, or to the detached sandboxes if its processes continue.

        For an ended sandbox, call this method only when nothing of the sandbox is left on the host.

        An ended sandbox that was never announced is forgotten: its creator got the error, and no other client knows its id.
        """
        del self._live[sandbox.id], self.tasks[sandbox.id]
        self._shared.discard(sandbox.id)
        self._empty_since_monotonic_s = self._clock.monotonic_s()
        if sandbox.exit is None:
            self._detached[sandbox.id] = sandbox
        elif sandbox.is_announced:
            sandbox.spec = dataclasses.replace(sandbox.spec, env={})
            sandbox.forget()
            self.remember(sandbox)

    def remember(self, sandbox: Sandbox) -> None:
        """Keep an ended sandbox in memory, so that it is found without the store."""
        self._ended[sandbox.id] = sandbox
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def revive(self, record: SandboxRecord) -> Sandbox:
        """Create a sandbox object from a stored record."""
        return from_record(record, self._buffers.of(record.owner).part(), self._clock)

    def _present(self) -> Sequence[Sandbox]:
        return [*self.live(), *self._detached.values()]
