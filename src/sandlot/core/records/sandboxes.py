"""Records of sandboxes: written before a client gets the response that depends on them, and read back when the service starts.

Invariants:
- A create request or a change that cannot be recorded is refused, and not carried out.
- A sandbox ends even if its end cannot be recorded, because a full disk must not keep the sandbox alive. The newest record of such a sandbox is
  written again every few seconds until the store accepts it. If the service dies before that, the next service finds that the sandbox is gone.
- A record and its event are committed together.
- The records of one sandbox are written one at a time, in the order of its states. A record whose state cannot follow the recorded state is refused.
- The environment of an ended sandbox is not stored.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from sandlot.core.access.idempotency import IdempotencyKey
from sandlot.core.concurrency import KeyedLock
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.records.metrics import Metrics
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import InternalError
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import NewEvent, SandboxRecord
from sandlot.model.repositories import Store
from sandlot.model.specs import SandboxSpec
from sandlot.model.states import State, can_become, is_terminal

RETRY_S: Final = 5.0
"""Seconds between two attempts to write the records that the store refused."""
LAST_ATTEMPT_S: Final = 5.0
"""Maximum seconds that the last attempt to write refused records may take when the service stops."""
MAX_REFUSED: Final = 1000
"""Maximum number of sandboxes whose refused records are kept. After a restart, the service records the end of the other sandboxes."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class _Refused:
    """The newest record that the store refused for one sandbox."""

    record: SandboxRecord
    event: NewEvent | None


@dataclass(slots=True)
class _Recorded:
    """State of a sandbox in its newest record."""

    state: State


_RECORDED = SandboxLocal[_Recorded](lambda sandbox: _Recorded(sandbox.state))


class SandboxRecorder:
    """Writes the records of a node's sandboxes."""

    def __init__(self, store: Store, node: NodeId, clock: Clock, events: EventFeed, metrics: Metrics) -> None:
        self.store = store
        self._metrics = metrics
        self._node = node
        self._clock = clock
        self._events = events
        self._locks = KeyedLock()
        self._refused: OrderedDict[SandboxId, _Refused] = OrderedDict()
        self._retrying: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Try once more to write the refused records, for at most ``LAST_ATTEMPT_S`` seconds."""
        if self._retrying is not None:
            self._retrying.cancel()
        if self._refused:
            last = asyncio.create_task(self._write_refused())
            await asyncio.wait({last}, timeout=LAST_ATTEMPT_S)
            last.cancel()

    async def unfinished(self) -> Sequence[SandboxRecord]:
        """Return the records of this node's sandboxes whose end is not recorded."""
        return await self.store.sandboxes.list_unfinished(self._node)

    async def ended_lately(self, limit: int) -> Sequence[SandboxRecord]:
        """Return the records of this node's most recently ended sandboxes, at most ``limit``. The sandbox that ended last comes last."""
        return list(reversed(await self.store.sandboxes.list_last_ended(self._node, limit=limit)))

    async def save(self, sandbox: Sandbox, event: str | None = None, *, state: State | None = None, **data: Any) -> None:  # noqa: ANN401 - JSON
        """Write the record of a sandbox in its current state.

        Args:
            sandbox: Sandbox to record.
            event: Type of an event to commit with the record. None: no event.
            state: State to record instead of the current one, for a sandbox that is about to change its state.
            data: Data of the event.

        Raises:
            InternalError: :func:`~sandlot.model.states.can_become` does not allow the state after the recorded one.
        """
        record = to_record(sandbox, self._node)
        recorded, new_state = _RECORDED.of(sandbox).state, sandbox.state if state is None else state
        if not can_become(recorded, new_state):
            raise InternalError(f"Sandbox {sandbox.id} is recorded as {recorded} and cannot be recorded as {new_state}.")
        new_event = None if event is None else NewEvent(event, self._clock.now(), sandbox.owner, sandbox.id, data)
        await self._write(sandbox, replace(record, state=new_state), new_event)

    async def save_eventually(self, sandbox: Sandbox, event: str | None = None, **data: Any) -> None:  # noqa: ANN401 - JSON
        """Write the record of a sandbox in its current state. Never raises.

        A record that the store refuses is written again in the background, until the store accepts this record or a newer record of the sandbox.

        Args:
            sandbox: Sandbox to record.
            event: Type of an event to commit with the record. None: no event.
            data: Data of the event.
        """
        record = to_record(sandbox, self._node)
        new_event = None if event is None else NewEvent(event, self._clock.now(), sandbox.owner, sandbox.id, data)
        try:
            await self._write(sandbox, record, new_event)
        except Exception as error:  # noqa: BLE001 - a failing store must not prevent the end of a sandbox
            _log.error("sandbox.not_recorded", sandbox=sandbox.id, state=str(record.state), error=str(error))
            self._refused[sandbox.id] = _Refused(record, new_event)
            self._refused.move_to_end(sandbox.id)
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            if self._retrying is None or self._retrying.done():
                self._retrying = asyncio.create_task(self._retry())

    async def save_created(self, sandbox: Sandbox) -> None:
        """Record that a new sandbox runs, with its event. Call this once per sandbox, before the client gets the response."""
        spec = sandbox.spec
        data: dict[str, Any] = {"template": spec.template.name, "isolation": spec.isolation, "name": sandbox.name}
        source = {"snapshot": spec.snapshot, "parent": spec.parent, "restored": spec.restored}
        data.update({key: value for key, value in source.items() if value})
        await self.save(sandbox, "sandbox.created", state=State.RUNNING, **data)

    def count_created(self, sandbox: Sandbox) -> None:
        """Count a create request that succeeded. Failed create requests are counted by :meth:`save_end`."""
        spec = sandbox.spec
        self._metrics.created(source_of(spec), spec.isolation, (self._clock.now() - sandbox.created_at).total_seconds())

    async def save_update(self, sandbox: Sandbox, *changed: str) -> None:
        """Record an update of a live sandbox.

        Args:
            sandbox: Sandbox that was updated.
            changed: Names of the changed properties, such as ``timeout``, ``metadata`` or ``limits``.
        """
        if sandbox.end_requested.is_set():
            raise sandbox.ended_error()
        await self.save(sandbox, "sandbox.updated", changed=list(changed))

    async def save_end(self, sandbox: Sandbox) -> None:
        """Record that a sandbox has ended. If the sandbox was never ready, count a failed create request. Never raises."""
        exit_ = sandbox.exit
        if not sandbox.ready.done():
            self._metrics.not_created(source_of(sandbox.spec), sandbox.spec.isolation, exit_.reason if exit_ is not None else ExitReason.CRASHED)
        reason, detail = (None, "") if exit_ is None else (str(exit_.reason), exit_.detail)
        await self.save_eventually(sandbox, "sandbox.ended", reason=reason, detail=detail, state=str(sandbox.state))

    async def settle(self, record: SandboxRecord, exit_: Exit, state: State) -> None:
        """Record the end of a sandbox whose end an earlier service did not record."""
        ended = replace(
            record,
            spec=replace(record.spec, env={}),
            state=state,
            exit_reason=str(exit_.reason),
            exit_detail=exit_.detail,
            ended_at=self._clock.now(),
            # No client got a response to an unfinished create request, so the same request may create another sandbox.
            idempotency_key=None if record.is_unfinished_start else record.idempotency_key,
        )
        data = {"reason": ended.exit_reason, "detail": ended.exit_detail, "state": str(state)}
        await self.store.sandboxes.save(ended, NewEvent("sandbox.ended", self._clock.now(), record.owner, record.id, data))
        self._events.notify(record.owner)

    async def _write(self, sandbox: Sandbox, record: SandboxRecord, event: NewEvent | None) -> None:
        async with self._locks.hold(record.id):
            await self.store.sandboxes.save(record, event)
            _RECORDED.of(sandbox).state = record.state
            self._refused.pop(record.id, None)  # a refused record is older than this one
        if event is not None:
            self._events.notify(record.owner)

    async def _retry(self) -> None:
        while self._refused:
            await asyncio.sleep(RETRY_S)
            await self._write_refused()

    async def _write_refused(self) -> None:
        for sandbox_id, refused in tuple(self._refused.items()):
            async with self._locks.hold(sandbox_id):
                if self._refused.get(sandbox_id) is not refused:
                    continue  # a newer record was written or refused meanwhile
                try:
                    await self.store.sandboxes.save(refused.record, refused.event)
                except Exception:  # noqa: BLE001, S112 - logged at the first refusal; the record stays for the next attempt
                    continue
                del self._refused[sandbox_id]
            _log.info("sandbox.recorded_late", sandbox=sandbox_id, state=str(refused.record.state))
            if refused.event is not None:
                self._events.notify(refused.record.owner)


def source_of(spec: SandboxSpec) -> str:
    """Return the source of a sandbox as a label of metrics: ``template``, ``snapshot`` or ``fork``. Pure."""
    if spec.parent is not None:
        return "fork"
    return "template" if spec.snapshot is None else "snapshot"


def to_record(sandbox: Sandbox, node: NodeId) -> SandboxRecord:
    """Return the record of a sandbox in its current state. Pure."""
    exit_ = sandbox.exit or sandbox.requested_exit
    env = {} if is_terminal(sandbox.state) else sandbox.spec.env
    key = sandbox.idempotency_key
    return SandboxRecord(
        spec=replace(sandbox.spec, env=env, metadata=sandbox.metadata),
        node=node,
        owner=sandbox.owner,
        name=sandbox.name,
        state=sandbox.state,
        created_at=sandbox.created_at,
        expires_at=sandbox.deadline.expires_at,
        idle_timeout_s=sandbox.idle_timeout_s,
        waits_for_disk=sandbox.waits_for_disk,
        ref=sandbox.ref,
        exit_reason=None if exit_ is None else str(exit_.reason),
        exit_detail="" if exit_ is None else exit_.detail,
        ended_at=sandbox.ended_at,
        idempotency_key=None if key is None else key.key,
        request_digest=None if key is None else key.digest,
    )


def from_record(record: SandboxRecord, buffers: BufferBudget, clock: Clock) -> Sandbox:
    """Create the sandbox object for a record of an ended sandbox, or of a live sandbox that has not been recovered yet."""
    sandbox = Sandbox(
        record.spec,
        owner=record.owner,
        name=record.name,
        created_at=record.created_at,
        buffers=buffers,
        clock=clock,
        idle_timeout_s=record.idle_timeout_s,
        state=record.state,
    )
    sandbox.ready.set_result(None)  # its client got the response from an earlier service
    sandbox.ref = record.ref
    sandbox.waits_for_disk = record.waits_for_disk
    if record.idempotency_key is not None and record.request_digest is not None:
        sandbox.idempotency_key = IdempotencyKey(record.idempotency_key, record.request_digest)
    sandbox.deadline.set(record.expires_at)
    sandbox.ended_at = record.ended_at
    if is_terminal(record.state):
        sandbox.exit = Exit(ExitReason(record.exit_reason or ExitReason.CRASHED), record.exit_detail)
        sandbox.recovered.set()
        sandbox.ended.set()
    return sandbox
