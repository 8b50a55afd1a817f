"""What the store knows of sandboxes: written before what it says is done, and read back at the start of a service.

Laws:
- An intent that cannot be recorded is not carried out: nothing is created, and no change is answered.
- An end that cannot be recorded is carried out all the same: a sandbox that should be gone must not live because a disk is full. It is
  tried again every few seconds, the newest record of each sandbox; the next start finds what is gone all the same.
- A record and the event that tells of it are committed together.
- The records of one sandbox are written in the order in which it came to be so, one at a time.
- Of an ended sandbox no environment is kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import placed
from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.states import State, is_terminal
from sandlot.model.storage import Store

AGAIN_S: Final = 5.0
"""Between tries to record what could not be."""

LAST_TRY_S: Final = 5.0
"""How long the end of the service waits for that."""

HELD: Final = 1000
"""Sandboxes of which that is kept; what is beyond is left to the next start."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class _Refused:
    """What could not be recorded of a sandbox, and the lock that keeps its records in order."""

    recording: asyncio.Lock
    record: SandboxRecord
    event: NewEvent | None


class SandboxRecorder:
    """The durable side of a node's sandboxes.

    Args:
        store: Where it is kept.
        node: Whose sandboxes.
        clock: The time.
        told: Called with its owner after an event was committed.
        metrics: Where creates are counted.
        execution_counter: Where runs in them are counted against their owners' quotas.
    """

    def __init__(
        self,
        store: Store,
        node: NodeId,
        clock: Clock,
        told: Callable[[OwnerId], None],
        *,
        metrics: Metrics | None = None,
        execution_counter: MonthlyExecutionCounter | None = None,
    ) -> None:
        self.execution_counter = execution_counter
        self._metrics = metrics or Metrics()
        self._store = store
        self._node = node
        self._clock = clock
        self._told = told
        self._refused: OrderedDict[SandboxId, _Refused] = OrderedDict()
        self._again: asyncio.Task[None] | None = None

    @property
    def store(self) -> Store:
        """Where it is kept."""
        return self._store

    @property
    def metrics(self) -> Metrics:
        """Where it is counted."""
        return self._metrics

    async def aclose(self) -> None:
        """Try once more to record what could not be, for some seconds."""
        if self._again is not None:
            self._again.cancel()
        if self._refused:
            last = asyncio.create_task(self._write_again())
            await asyncio.wait({last}, timeout=LAST_TRY_S)
            last.cancel()

    async def unfinished(self) -> Sequence[SandboxRecord]:
        """What an earlier service of this node left."""
        return await self._store.sandboxes.unfinished(self._node)

    async def ended_lately(self, limit: int) -> Sequence[SandboxRecord]:
        """Sandboxes of this node that ended last, oldest first."""
        return list(reversed(await self._store.sandboxes.ended_last(self._node, limit=limit)))

    async def intend(self, sandbox: Sandbox) -> None:
        """It is to be created.

        Raises:
            SandlotError: It cannot be recorded.
        """
        await self._save(sandbox, record_of(sandbox, self._node))

    async def runs(self, sandbox: Sandbox) -> None:
        """It runs, and its client is about to be told so.

        Raises:
            SandlotError: It cannot be recorded.
        """
        spec = sandbox.spec
        record = replace(record_of(sandbox, self._node), state=State.RUNNING)
        self._metrics.created(spec.isolation, (self._clock.now() - sandbox.created_at).total_seconds())
        about = {"template": spec.template, "isolation": spec.isolation, "name": sandbox.name}
        come_from = {"snapshot": spec.snapshot, "parent": spec.parent, "restored": spec.restored}
        await self._save(
            sandbox, record, self._event("sandbox.created", sandbox, **about, **{name: word for name, word in come_from.items() if word})
        )

    async def changed(self, sandbox: Sandbox, *what: str) -> None:
        """Something of it was changed.

        Args:
            sandbox: It.
            what: The names of what: ``timeout``, ``metadata``, ``limits``.

        Raises:
            SandboxEndedError: It is to end, or has ended.
            SandlotError: It cannot be recorded.
        """
        if sandbox.end_requested.is_set():
            raise sandbox.ended_error()
        await self._save(sandbox, record_of(sandbox, self._node), self._event("sandbox.updated", sandbox, changed=list(what)))

    async def rests(self, sandbox: Sandbox, state: State, event: str | None = None) -> None:
        """It is about to be in another state, or is about to be said to be.

        Args:
            sandbox: It.
            state: Which.
            event: What happened; None where that is only an intent.

        Raises:
            SandlotError: It cannot be recorded.
        """
        await self._save(sandbox, replace(record_of(sandbox, self._node), state=state), None if event is None else self._event(event, sandbox))

    async def moved(self, sandbox: Sandbox, event: str | None = None, **data: int | str) -> None:
        """It is in another state by now, whatever can be recorded of that. Never fails."""
        await self._try(sandbox, record_of(sandbox, self._node), None if event is None else self._event(event, sandbox, **data))

    async def ends(self, sandbox: Sandbox) -> None:
        """It is to be removed. Never fails."""
        await self._try(sandbox, record_of(sandbox, self._node), None)

    async def ended(self, sandbox: Sandbox) -> None:
        """Its processes are dead. Never fails."""
        why = sandbox.exit
        if not sandbox.ready.done():
            self._metrics.not_created(sandbox.spec.isolation, why.reason if why is not None else ExitReason.CRASHED)
        reason, detail = (None, "") if why is None else (str(why.reason), why.detail)
        event = self._event("sandbox.ended", sandbox, reason=reason, detail=detail, state=str(sandbox.state))
        await self._try(sandbox, record_of(sandbox, self._node), event)

    async def adopted(self, sandbox: Sandbox) -> None:
        """It was taken over from an earlier service. Never fails."""
        await self._try(sandbox, record_of(sandbox, self._node), self._event("sandbox.adopted", sandbox))

    async def settle(self, record: SandboxRecord, why: Exit, state: State) -> None:
        """What an earlier service left is over.

        Raises:
            SandlotError: It cannot be recorded.
        """
        was_made = record.state is not State.CREATING
        done = replace(
            record,
            spec=replace(record.spec, env={}),
            state=state,
            exit_reason=str(why.reason),
            exit_detail=why.detail,
            ended_at=self._clock.now(),
            # Nobody was told of it, so the same request may make another one.
            idempotency_key=record.idempotency_key if was_made else None,
        )
        data = {"reason": done.exit_reason, "detail": done.exit_detail, "state": str(state)}
        await self._store.sandboxes.save(done, NewEvent("sandbox.ended", self._clock.now(), record.owner, record.id, data))
        self._told(record.owner)

    async def _save(self, sandbox: Sandbox, record: SandboxRecord, event: NewEvent | None = None) -> None:
        async with sandbox.recording:
            await self._store.sandboxes.save(record, event)
            self._refused.pop(sandbox.id, None)  # older than this
        if event is not None:
            self._told(event.owner)

    async def _try(self, sandbox: Sandbox, record: SandboxRecord, event: NewEvent | None) -> None:
        try:
            await self._save(sandbox, record, event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox must go on to its end
            _log.error("sandbox.not_recorded", sandbox=sandbox.id, state=str(record.state), error=str(error))
            self._refused[sandbox.id] = _Refused(sandbox.recording, record, event)
            self._refused.move_to_end(sandbox.id)
            while len(self._refused) > HELD:
                self._refused.popitem(last=False)
            if self._again is None or self._again.done():
                self._again = asyncio.create_task(self._until_written())

    async def _until_written(self) -> None:
        while self._refused:
            await asyncio.sleep(AGAIN_S)
            await self._write_again()

    async def _write_again(self) -> None:
        for sandbox, refused in tuple(self._refused.items()):
            async with refused.recording:
                if self._refused.get(sandbox) is not refused:
                    continue  # something newer was written, or refused
                try:
                    await self._store.sandboxes.save(refused.record, refused.event)
                except Exception:  # noqa: BLE001, S112 - it is in the log, and stays here
                    continue
                del self._refused[sandbox]
            _log.info("sandbox.recorded_late", sandbox=sandbox, state=str(refused.record.state))
            if refused.event is not None:
                self._told(refused.record.owner)

    def _event(self, kind: str, sandbox: Sandbox, **data: Any) -> NewEvent:  # noqa: ANN401 - JSON
        return NewEvent(kind, self._clock.now(), sandbox.owner, sandbox.id, data)


def record_of(sandbox: Sandbox, node: NodeId) -> SandboxRecord:
    """What is kept of a sandbox. Pure."""
    why = sandbox.exit or sandbox.requested_exit
    over = is_terminal(sandbox.state)
    spec = replace(sandbox.spec, env={} if over else sandbox.spec.env, metadata=sandbox.metadata)
    return SandboxRecord(
        spec=spec,
        node=node,
        owner=sandbox.owner,
        name=sandbox.name,
        state=sandbox.state,
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
        idle_timeout_s=sandbox.idle_timeout_s,
        ref=sandbox.ref,
        exit_reason=None if why is None else str(why.reason),
        exit_detail="" if why is None else why.detail,
        ended_at=sandbox.ended_at,
        idempotency_key=sandbox.idempotency_key,
        request_digest=sandbox.request_digest,
    )


def revived(record: SandboxRecord, buffers: BufferBudget, clock: Clock) -> Sandbox:
    """The sandbox of a record, as it is before it is taken over; or as it ended."""
    sandbox = Sandbox(
        replace(record.spec, volumes=placed(record.spec.volumes)),  # before volumes had places of their own, they were where they stood
        owner=record.owner,
        name=record.name,
        created_at=record.created_at,
        buffers=buffers,
        clock=clock,
        idle_timeout_s=record.idle_timeout_s,
        state=record.state,
    )
    sandbox.ready.set_result(None)  # a client was told of it
    sandbox.ref = record.ref
    sandbox.idempotency_key, sandbox.request_digest = record.idempotency_key, record.request_digest
    sandbox.expires_at, sandbox.ended_at = record.expires_at, record.ended_at
    if record.expires_at is not None:
        sandbox.deadline_monotonic_s = clock.monotonic_s() + (record.expires_at - clock.now()).total_seconds()
    if is_terminal(record.state):
        sandbox.exit = Exit(ExitReason(record.exit_reason or ExitReason.CRASHED), record.exit_detail)
        sandbox.recovered.set()
        sandbox.ended.set()
    return sandbox
