"""Seeded schedules: random calls race on a node in memory, beside a ledger that knows what was confirmed.

A schedule is a function of its seed. Clients create, update, pause, hibernate, resume, fork, snapshot and kill sandboxes, attach and detach volumes,
and disconnect. Steps of the driver are held and released, fail, or are slow; timeouts pass; the host is short of memory; the service restarts. After
some actions the schedule becomes quiet: nothing is held, every call must be answered, and then must hold:

- No call has waited longer than ``ANSWER_S`` for its answer.
- No sandbox id is alive twice in the driver. This is checked after every action.
- What a call has confirmed is what the sandbox, its record and the driver's instance say: state, name, metadata, limits, timeout and volumes. Several
  calls at once may take effect in any order; a refused call has no effect.
- A sandbox ends only if something has ended it, and stays ended. No sandbox lives that no client knows.
- The reservations of memory and tasks are exactly what the states need.
- The events of a sandbox are a path of :mod:`sandlot.model.states`, with one ``created`` and one ``ended``.

When the schedule is over, nothing is reserved, mounted, or left in the driver or on the disk.

``python -m tests.support.schedules 17 42`` runs two seeds and prints what happened.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import pytest
from structlog.testing import capture_logs

from sandlot.core.lifecycle import mounts
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, HostError, InternalError, SandlotError
from sandlot.model.ids import SandboxId
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import Resources
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, UpdateSandboxParams
from sandlot.model.specs import GIB, Limits, OnTimeout, VolumeMount
from sandlot.model.states import SUSPENDED, State, is_terminal
from sandlot.model.volumes import MIN_SIZE_BYTES
from sandlot.server import composition
from tests.support.clock import ManualClock
from tests.support.ledger import VOLUMES, Entry, Register, Write, can_reach, view
from tests.support.node import ENDLESS_HOST, MemoryNode, NodeState, open_node
from tests.support.simulation import SimulatedClock, SimulatedLoop, StuckError, simulate

NODE_BYTES: Final = 4 * GIB
"""Memory of the node: four sandboxes, so that creates, wakes and larger limits need the room of warm sandboxes."""
ANSWER_S: Final = 900.0
"""Simulated seconds within which every call is answered, even while a step of the driver hangs: longer than a hibernation may be written."""
CLOSE_S: Final = 60.0
"""Simulated seconds within which every call is answered when the service has stopped."""
QUIET_S: Final = 30.0
"""Simulated seconds between two checks of a quiet node."""
QUIET_ROUNDS: Final = 8
"""Number of checks after which work in the background, such as repeated removals and refills, must be done."""
LONG_S: Final = 6 * 24 * 3600.0
"""Timeout that does not pass in a schedule."""
MAX_SANDBOXES: Final = 5
STABLE: Final = frozenset({State.RUNNING, State.PAUSED, State.HIBERNATED})
"""States of a live sandbox on a quiet node."""


class Kind(Enum):
    """Kind of a schedule."""

    CALM = "calm"
    """Nothing fails; steps are held for at most 20 seconds."""
    STUCK = "stuck"
    """As calm, but the end of a removal is held for longer than ``ANSWER_S``."""
    FAULTY = "faulty"
    """Steps of the driver, calls of the guest and saves of the store fail, and sandboxes crash."""


class ScheduleError(AssertionError):
    """A schedule found a defect."""


@dataclass(eq=False)
class Call:
    """One call of one client.

    Args:
        effects: Registers that the call writes, and its writes.
        wakes: Write of the state by a call that resumes a suspended sandbox first, so that the sandbox may run although the call is refused.
    """

    text: str
    begun_s: float
    on: Entry | None
    effects: list[tuple[Register, Write]]
    wakes: Write | None = None
    task: asyncio.Task[None] | None = None
    outcome: str = "cancelled"

    @property
    def is_answered(self) -> bool:
        return self.task is not None and self.task.done()


# What the schedule puts in place of the host --------------------------------------------------------------------------


class Disks:
    """Disks of volumes in memory."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.mounted: set[str] = set()

    def max_disk_bytes(self, size_bytes: int) -> int:
        return size_bytes

    def make(self, volume: str, _size_bytes: int) -> None:
        self.made.add(volume)

    def mount(self, volume: str) -> Path:
        self.mounted.add(volume)
        return Path("/mounted") / volume

    def unmount(self, volume: str) -> None:
        self.mounted.discard(volume)

    def used_bytes(self, _volume: str) -> int | None:
        return None

    def remove(self, volume: str) -> None:
        self.mounted.discard(volume)
        self.made.discard(volume)

    def ids(self) -> frozenset[str]:
        return frozenset(self.made)


async def mount_inside(sandbox: Sandbox, **_request: object) -> dict[str, object]:
    """Stand for the program that mounts volumes inside a sandbox."""
    async with sandbox.connection() as link:
        await link.info()
    return {}


# Schedule -------------------------------------------------------------------------------------------------------------


class Schedule:
    """One schedule.

    Attributes:
        trace: Actions, answers and log entries, with time and turn of the loop.
        problems: Defects that were found.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.kind = self.rng.choices([Kind.CALM, Kind.STUCK, Kind.FAULTY], [5, 2, 3])[0]
        self.keep_suspended_s = 600.0 if self.rng.random() < 0.15 else LONG_S
        self.folder = folder
        self.trace: list[str] = []
        self.problems: list[str] = []
        self.calls: list[Call] = []
        self.entries: dict[SandboxId, Entry] = {}
        self.snapshots: dict[str, Register] = {}
        self.volumes = {name: Register(False) for name in VOLUMES}
        self.held: dict[str, asyncio.TimerHandle] = {}
        self.is_stopping = self.is_over = self.has_restarted = False
        self.disks = Disks()
        self._moments = itertools.count(1)
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()
        self.state: NodeState
        self.node: MemoryNode

    @property
    def loop(self) -> SimulatedLoop:
        return cast("SimulatedLoop", asyncio.get_running_loop())

    def say(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():10.3f} {self.loop.turns:6d} {self._labelled(text)}")

    def _labelled(self, text: str) -> str:
        for entry in self.entries.values():
            text = text.replace(entry.id, entry.label)
        return text

    def failed(self) -> ScheduleError:
        """Return the error that describes the problems."""
        unanswered = [f"  {call.text}, since {call.begun_s:.3f} s, in {_place(call.task)}" for call in self.calls if not call.is_answered]
        parts = [f"Seed {self.seed} ({self.kind.value}) failed:", *(f"  {self._labelled(problem)}" for problem in self.problems)]
        parts += ["Unanswered calls:", *unanswered] if unanswered else []
        parts += ["Trace (seconds, turns):", *self.trace, f"Run it again: python -m tests.support.schedules {self.seed}"]
        return ScheduleError("\n".join(parts))

    def hear(self, _logger: object, _level: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take a log entry into the trace. An entry about an unexpected exception is a problem."""
        event = str(entry["event"])
        if self.is_over:
            return entry
        about = {key: str(value) for key, value in entry.items() if key in {"sandbox", "detail", "error", "volume"} and isinstance(value, str)}
        if event != "snapshot.not_verified_yet":  # repeated every ten seconds
            self.say(f"    log {event} {about or ''}")
        if event.endswith("internal_error"):
            error = entry.get("exc_info")
            text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else traceback.format_exc()
            self.problems.append(f"{event}: {text}")
        return entry

    # -- the node ----------------------------------------------------------------------------------------------------------

    async def open(self, *, keep: bool) -> None:
        settings: dict[str, Any] = {"suspended_keep_s": self.keep_suspended_s, "max_creates": self.rng.choice([1, 4])}
        opening = open_node(self.state, keep_sandboxes=keep, memory_bytes=NODE_BYTES, memory_reserve_bytes=0, **settings)
        self.node = await self._stack.enter_async_context(opening)
        self.is_stopping = False

    async def close(self, *, race: bool) -> None:
        """Stop the service, on demand while calls are in progress. Every call must then be answered."""
        self.say("stop the service")
        self.is_stopping = True
        closing = asyncio.ensure_future(self._stack.aclose())
        if race:
            await self.turns(0, 30)
        self.release_all()
        await asyncio.wait({closing}, timeout=ANSWER_S)
        if not closing.done():
            raise self._problem("The service has not stopped.")
        closing.result()
        if waiting := [call.task for call in self.calls if call.task is not None and not call.is_answered]:
            await asyncio.wait(waiting, timeout=CLOSE_S)
        if any(not call.is_answered for call in self.calls):
            raise self._problem("A call is unanswered although the service has stopped.")

    async def restart(self, *, race: bool, keep: bool = True) -> None:
        await self.close(race=race)
        self.say("start the service again")
        self.has_restarted = True
        await self.open(keep=keep)

    # -- time --------------------------------------------------------------------------------------------------------------

    async def turns(self, least: int, most: int) -> None:
        for _ in range(self.rng.randint(least, most)):
            await asyncio.sleep(0)

    async def gap(self) -> None:
        """Let some turns or some time pass before the next action."""
        kind = self.rng.random()
        if kind < 0.7:
            await self.turns(0, 12)
        elif kind < 0.85:
            await self.turns(10, 80)
        else:
            await asyncio.sleep(self.rng.choice([0.01, 1.0, 6.0, 15.0]))

    # -- calls -------------------------------------------------------------------------------------------------------------

    def call(
        self,
        text: str,
        work: Coroutine[Any, Any, Any],
        *,
        on: Entry | None = None,
        writes: Iterable[tuple[Register, Iterable[object]]] = (),
        wakes: bool = False,
        done: Callable[[Any], None] = lambda _: None,
    ) -> Call:
        """Let a client make a call.

        Args:
            text: Name of the call in the trace.
            work: The call.
            on: Sandbox of the call.
            writes: Registers that the call changes, and their values after a confirmed change.
            wakes: True if the call resumes a suspended sandbox first.
            done: Function that is called with the confirmed result.
        """
        effects = [(register, Write(next(self._moments), frozenset(values))) for register, values in writes]
        for register, write in effects:
            register.writes.append(write)
        call = Call(f"#{len(self.calls) + 1} {text}", self.loop.time(), on, effects)
        if wakes and on is not None:
            call.wakes = Write(next(self._moments), frozenset({State.RUNNING}))
            on.registers["state"].writes.append(call.wakes)
        self.calls.append(call)
        self.say(f"{call.text}")
        call.task = asyncio.ensure_future(self._follow(call, work, done))
        call.task.add_done_callback(lambda _: self._answered(call, work))
        return call

    def _answered(self, call: Call, work: Coroutine[Any, Any, Any]) -> None:
        work.close()  # the client may have disconnected before the call began
        self.say(f"  {call.text}: {call.outcome}")

    async def _follow(self, call: Call, work: Coroutine[Any, Any, Any], done: Callable[[Any], None]) -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            pass
        except SandlotError as error:
            self._refused(call, error)
        except Exception as error:  # noqa: BLE001 - reported
            call.outcome = f"failed: {error!r}"
            self.problems.append(f"{call.text} raised {error!r}: {traceback.format_exc(limit=-3)}")
        else:
            call.outcome = "ok"
            for write in [*(write for _, write in call.effects), *filter(None, [call.wakes])]:
                write.ended, write.is_certain = next(self._moments), True
            done(result)
            self._check_answer(call)

    def _refused(self, call: Call, error: SandlotError) -> None:
        call.outcome = f"refused: {error.code}: {error.message[:100]}"
        if isinstance(error, InternalError):
            self.problems.append(f"{call.text} was answered with an internal error: {error.message}")
        if error.code is ErrorCode.SANDBOX_ENDED and call.on is not None:
            call.on.told_ended = call.text
        if self.kind is Kind.FAULTY or self.is_stopping or error.code in {ErrorCode.TIMEOUT, ErrorCode.SERVICE_STOPPING}:
            return  # the change may be in force
        for register, write in call.effects:
            register.writes.remove(write)
        if call.wakes is not None:
            call.wakes.ended = next(self._moments)

    def _check_answer(self, call: Call) -> None:
        """Check what a client sees that gets the sandbox as soon as its call is confirmed."""
        entry = call.on
        if (
            entry is None
            or entry.is_killed
            or entry.may_end
            or any(other is not call and not other.is_answered for other in self.calls if other.on is entry)
        ):
            return
        sandbox = self.find(entry)
        if sandbox is not None and not any(register.is_busy() for register in entry.registers.values()):
            self.problems += self._contradictions(entry, sandbox, f"when {call.text} was answered")

    def find(self, entry: Entry) -> Sandbox | None:
        return next((sandbox for sandbox in self.node.sandboxes.list(OPERATOR) if sandbox.id == entry.id), None)

    def _contradictions(self, entry: Entry, sandbox: Sandbox, when: str) -> list[str]:
        free = {"state"} if entry.is_mortal or self.kind is Kind.FAULTY else set()
        return [
            f"{entry.label} has {name} {value} {when}; confirmed: {sorted(map(str, allowed))}"
            for name, value in view(sandbox).items()
            if name not in free and (name != "state" or value in STABLE) and (allowed := entry.registers[name].allowed()) and value not in allowed
        ]

    def _enter(self, sandbox: Sandbox, *, mortal: bool) -> None:
        """Take a sandbox that was confirmed into the ledger."""
        registers = {name: Register(value) for name, value in view(sandbox).items()}
        entry = Entry(sandbox.id, f"s{len(self.entries) + 1}", registers, ends_at_timeout=sandbox.spec.on_timeout is OnTimeout.KILL)
        entry.may_end = self.kind is Kind.FAULTY
        if mortal:
            self._expect_timeout(entry)
        self.entries[entry.id] = entry
        self.say(f"    {entry.label} is {sandbox.id}")

    def _expect_timeout(self, entry: Entry) -> None:
        entry.is_mortal = True
        entry.may_end = entry.may_end or entry.ends_at_timeout or self._is_suspension_short

    # -- actions -----------------------------------------------------------------------------------------------------------

    def live(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.is_killed and self.find(entry) is not None]

    def some(self) -> Entry | None:
        """Return a live sandbox; most often the one that was created first, so that calls meet."""
        live = self.live()
        return None if not live else live[0] if self.rng.random() < 0.7 else self.rng.choice(live)

    def create(self) -> Call | None:
        if len(self.live()) + sum(1 for call in self.calls if not call.is_answered and "create" in call.text) >= MAX_SANDBOXES:
            return None
        is_mortal = self.rng.random() < 0.2
        note = f"n{next(self._numbers)}"
        params = CreateSandboxParams(
            template="base",
            limits=LimitsChange(memory_bytes=GIB, cpus=self.rng.choice([1.0, 1.0, 0.5])),
            metadata={"note": note},
            timeout_s=self.rng.choice([5.0, 40.0]) if is_mortal else self.rng.choice([LONG_S, None]),
            idle_timeout_s=10.0 if is_mortal and self.rng.random() < 0.3 else None,
            on_timeout=self.rng.choice(list(OnTimeout)),
            auto_resume=self.rng.random() < 0.6,
            volumes=(VolumeMount(self.rng.choice(VOLUMES), "/data"),) if self.rng.random() < 0.2 else (),
        )
        saved = [id_ for id_, register in self.snapshots.items() if register.allowed() == {True}]
        if saved and self.rng.random() < 0.4:
            params = replace(params, snapshot=self.rng.choice(saved))
            text, work = f"create from {params.snapshot}", self.node.sandboxes.create(OPERATOR, params)
        else:
            text, work = f"create {params.limits.cpus:g} cpus", self.node.sandboxes.create(OPERATOR, params)

        def done(sandbox: Sandbox) -> None:
            self._enter(sandbox, mortal=is_mortal or self._is_suspension_short)
            if sandbox.metadata.get("note") != note:
                self.problems.append(f"{sandbox.id} was created with note {sandbox.metadata.get('note')} instead of {note}")

        return self.call(f"{text}, note {note}{', mortal' if is_mortal else ''}", work, done=done)

    @property
    def _is_suspension_short(self) -> bool:
        return self.keep_suspended_s < LONG_S

    def kill(self, entry: Entry) -> Call:
        def done(_: object) -> None:
            entry.is_killed = True

        entry.may_end = True
        return self.call(f"kill {entry.label}", self.node.sandboxes.kill(OPERATOR, entry.id), on=entry, done=done)

    def suspend(self, entry: Entry) -> Call:
        return self.rng.choice([self.pause, self.hibernate])(entry)

    def pause(self, entry: Entry) -> Call:
        writes = [(entry.registers["state"], SUSPENDED)]
        return self.call(f"pause {entry.label}", self.node.sandboxes.pause(OPERATOR, entry.id), on=entry, writes=writes)

    def hibernate(self, entry: Entry) -> Call:
        writes = [(entry.registers["state"], {State.HIBERNATED})]
        return self.call(f"hibernate {entry.label}", self.node.sandboxes.hibernate(OPERATOR, entry.id), on=entry, writes=writes)

    def resume(self, entry: Entry) -> Call:
        writes = [(entry.registers["state"], {State.RUNNING})]
        return self.call(f"resume {entry.label}", self.node.sandboxes.resume(OPERATOR, entry.id), on=entry, writes=writes)

    def _update(self, entry: Entry, text: str, params: UpdateSandboxParams, *, wakes: bool = False, **writes: object) -> Call:
        effects = [(entry.registers[name], [value]) for name, value in writes.items()]
        work = self.node.sandboxes.update(OPERATOR, entry.id, params)
        return self.call(f"update {entry.label} {text}", work, on=entry, writes=effects, wakes=wakes)

    def describe(self, entry: Entry) -> Call:
        """Change metadata or name, or both."""
        note, name = f"n{next(self._numbers)}", f"name-{next(self._numbers)}"
        which = self.rng.choice(["metadata", "name", "both"])
        if which == "metadata":
            return self._update(entry, note, UpdateSandboxParams(metadata={"note": note}), note=note)
        if which == "name":
            return self._update(entry, name, UpdateSandboxParams(name=name), name=name)
        return self._update(entry, f"{note} {name}", UpdateSandboxParams(metadata={"note": note}, name=name), note=note, name=name)

    def set_timeout(self, entry: Entry) -> Call:
        timeout_s = self.rng.choice([None, LONG_S, LONG_S - 1, LONG_S - 2, 20.0])
        if timeout_s == 20.0:
            self._expect_timeout(entry)
        params = UpdateSandboxParams(persistent=timeout_s is None, timeout_s=timeout_s)
        return self._update(entry, f"timeout {timeout_s}", params, timeout=timeout_s)

    def set_high_limits(self, entry: Entry) -> Call:
        """Raise the memory limit as far as the node allows, which needs the room of warm sandboxes."""
        return self.set_limits(entry, NODE_BYTES // GIB)

    def set_limits(self, entry: Entry, memory: int | None = None) -> Call:
        memory = self.rng.choice([1, 2, 3, 4]) if memory is None else memory
        params = UpdateSandboxParams(limits=LimitsChange(memory_bytes=memory * GIB))
        if self.rng.random() < 0.3:
            note = f"n{next(self._numbers)}"
            params = replace(params, metadata={"note": note})
            return self._update(entry, f"{memory} GiB {note}", params, wakes=True, memory=memory, note=note)
        return self._update(entry, f"{memory} GiB", params, wakes=True, memory=memory)

    def attach(self, entry: Entry) -> Call:
        volume = self.rng.choice(VOLUMES)
        writes = [(entry.registers[volume], {True})]
        work = self.node.internals.mounts.attach(OPERATOR, entry.id, VolumeMount(volume, f"/{volume}"))
        return self.call(f"attach {volume} to {entry.label}", work, on=entry, writes=writes, wakes=True)

    def detach(self, entry: Entry) -> Call:
        volume = self.rng.choice(VOLUMES)
        writes = [(entry.registers[volume], {False})]
        work = self.node.internals.mounts.detach(OPERATOR, entry.id, volume)
        return self.call(f"detach {volume} from {entry.label}", work, on=entry, writes=writes, wakes=True)

    def mount(self, entry: Entry) -> Call:
        return self.rng.choice([self.attach, self.attach, self.detach])(entry)

    def fork(self, entry: Entry) -> Call:
        def done(children: Sequence[Sandbox]) -> None:
            for child in children:
                self._enter(child, mortal=entry.is_mortal)

        params = ForkParams(count=self.rng.choice([1, 1, 2]), share_volumes=True)
        return self.call(
            f"fork {entry.label} {params.count} times", self.node.internals.forks.create(OPERATOR, entry.id, params), on=entry, done=done
        )

    def snapshot(self, entry: Entry) -> Call:
        def done(record: Any) -> None:  # noqa: ANN401 - a snapshot record
            self.snapshots[record.id] = Register(True)
            self.say(f"    snapshot {record.id}")

        return self.call(f"snapshot {entry.label}", self.node.services.snapshots.create(OPERATOR, entry.id), on=entry, done=done)

    def delete_snapshot(self) -> Call | None:
        if not self.snapshots:
            return None
        id_ = self.rng.choice(list(self.snapshots))
        return self.call(f"delete {id_}", self.node.services.snapshots.delete(OPERATOR, id_), writes=[(self.snapshots[id_], {False})])

    def change_volume(self) -> Call:
        """Create a volume, or delete it."""
        name = self.rng.choice(VOLUMES)
        register = self.volumes[name]
        if True in register.allowed():
            return self.call(f"delete volume {name}", self.node.services.volumes.delete(OPERATOR, name), writes=[(register, {False})])
        return self.create_volume(name)

    def create_volume(self, name: str) -> Call:
        work = self.node.services.volumes.create(OPERATOR, name=name, size_bytes=MIN_SIZE_BYTES)
        return self.call(f"create volume {name}", work, writes=[(self.volumes[name], {True})])

    def change_pool(self) -> Call:
        pools = self.node.pools.list(OPERATOR)
        warm = self.rng.choice([0, 1, 1, 2])
        if not pools:
            work: Awaitable[Any] = self.node.pools.create(OPERATOR, "base", "auto", Limits(memory_bytes=GIB), PoolSizes(warm=warm, max=2))
            return self.call(f"create a pool of {warm}", cast("Coroutine[Any, Any, Any]", work))
        id_ = pools[0].pool.id
        if self.rng.random() < 0.3:
            return self.call("delete the pool", self.node.pools.delete(OPERATOR, id_))
        return self.call(f"update the pool to {warm}", self.node.pools.update(OPERATOR, id_, warm=warm))

    def disconnect(self) -> None:
        """Cancel one call in progress: its client disconnects."""
        waiting = [call for call in self.calls if not call.is_answered and call.task is not None]
        if waiting:
            call = self.rng.choice(waiting)
            self.say(f"{call.text}: its client disconnects")
            assert call.task is not None
            call.task.cancel()

    # -- faults ------------------------------------------------------------------------------------------------------------

    def hold(self, step: str, for_s: float) -> None:
        """Hold a step of the driver for at most ``for_s`` seconds."""
        if step not in self.held:
            self.say(f"hold {step} for {for_s:g} s")
            self.node.driver.hold(step)
            self.held[step] = self.loop.call_later(for_s, self.release, step)

    def release(self, step: str) -> None:
        if (timer := self.held.pop(step, None)) is not None:
            timer.cancel()
            self.say(f"release {step}")
            self.node.driver.faults.release(step)

    def release_all(self) -> None:
        for step in tuple(self.held):
            self.release(step)

    def hold_some(self) -> None:
        if self.kind is Kind.STUCK and self.rng.random() < 0.6:
            self.hold("clean", ANSWER_S + 300.0)
        else:
            step = self.rng.choice(["configure", "destroy", "clean", "snapshot", "restore", "boot", "pause", "resume", "prepare", "connect"])
            self.hold(step, self.rng.choice([0.5, 5.0, 20.0]))

    def fail_some(self) -> None:
        """Let a step of the driver, a call of a guest or a save of the store fail."""
        if self.kind is not Kind.FAULTY:
            return
        what = self.rng.choice(["driver", "driver", "guest", "store", "crash"])
        instances = self.node.driver.instances
        if what == "driver":
            step = self.rng.choice(
                ["boot", "restore", "connect", "configure", "pause", "resume", "snapshot", "destroy", "clean", "prepare", "usage", "attach"]
            )
            times = self.rng.choice([1, 1, 2, 5])
            self.say(f"fail {step} {times} times")
            self.node.driver.fail_next(step, *[HostError(f"The host failed to {step}.", hint="Repair it.")] * times)
        elif what == "store":
            self.say("fail sandboxes.save")
            self.state.database.faults.fail_next("sandboxes.save", HostError("The store failed.", hint="Repair it."))
        elif instances:
            instance = self.rng.choice(instances)
            if what == "crash":
                self.say(f"crash {instance.guest.identity}")
                instance.crash()
            else:
                name = self.rng.choice(["guest.wake", "guest.limit", "guest.checkpoint", "guest.deadline", "guest.info"])
                self.say(f"fail {name} of {instance.guest.identity}")
                instance.guest.fail_next(name, "limit_exceeded")

    def press(self) -> None:
        """Make the host short of memory, or end the shortage."""
        calm = replace(
            ENDLESS_HOST, total=replace(ENDLESS_HOST.total, memory_bytes=NODE_BYTES), free=replace(ENDLESS_HOST.free, memory_bytes=NODE_BYTES)
        )
        is_short = self.state.host.free.memory_bytes == 0
        self.say("the host is short of memory no more" if is_short else "the host is short of memory")
        self.state.host = calm if is_short else replace(calm, free=replace(calm.free, memory_bytes=0))

    # -- races -------------------------------------------------------------------------------------------------------------

    async def race(self) -> None:
        """Hold a step, start a call that needs the step, start more calls on the sandbox, release the step, and start calls at about this turn."""
        entry = self.some()
        if entry is None:
            return
        needs: dict[str, Sequence[Callable[[Entry], Call]]] = {
            "configure": (self.set_limits, self.mount),
            "destroy": (self.set_high_limits, self.set_high_limits, self.hibernate),
            "snapshot": (self.hibernate, self.snapshot, self.fork),
            "restore": (self.resume, self.mount, self.fork),
            "pause": (self.pause,),
            "resume": (self.resume, self.snapshot),
        }
        if self.rng.random() < 0.5:  # a running sandbox beside a full pool, so that the calls do not just meet refusals
            self.resume(entry)
            self.set_limits(entry, 1)
            await asyncio.sleep(2.0)
        step = self.rng.choice(["configure", "configure", "destroy", "destroy", "destroy", "snapshot", "restore", "pause", "resume"])
        self.hold(step, 30.0)
        first = self.rng.choice(needs[step])(entry)
        await self.turns(8, 40)
        for other in (self.rng.choice([self.mount, self.hibernate]), self.suspend, self.rng.choice([self.mount, self.describe, self.set_limits])):
            if self.rng.random() < 0.75:
                other(entry)
                await self.turns(*self.rng.choice([(0, 4), (10, 30)]))
        if self.rng.random() < 0.3 and first.task is not None and not first.is_answered:
            self.say(f"{first.text}: its client disconnects")
            first.task.cancel()
        else:
            self.release(step)
        for _ in range(self.rng.randint(1, 4)):
            await self.turns(0, 3)
            late = [self.describe, self.suspend, self.resume, self.set_timeout, self.mount, self.kill]
            self.rng.choices(late, [8, 1, 1, 1, 1, 0.3])[0](entry)
        await self.turns(0, 20)
        self.release(step)

    async def act(self) -> None:
        """Do one random action."""
        alone: dict[Callable[[], object], float] = {
            self.create: 3.0,
            self.disconnect: 1.0,
            self.hold_some: 1.5,
            self.release_all: 1.0,
            self.fail_some: 2.0,
            self.press: 0.3,
            self.change_pool: 0.7,
            self.change_volume: 0.3,
            self.delete_snapshot: 0.3,
        }
        on_sandbox: dict[Callable[[Entry], object], float] = {
            self.kill: 0.4,
            self.describe: 1.5,
            self.set_limits: 2.0,
            self.set_timeout: 0.7,
            self.pause: 1.5,
            self.hibernate: 1.5,
            self.resume: 1.5,
            self.mount: 2.0,
            self.fork: 0.8,
            self.snapshot: 0.8,
        }
        if self.rng.random() < 0.4:
            await self.race()
            return
        entry = self.some()
        if entry is None or self.rng.random() < 0.4:
            self.rng.choices(list(alone), list(alone.values()))[0]()
        else:
            self.rng.choices(list(on_sandbox), list(on_sandbox.values()))[0](entry)

    # -- checks ------------------------------------------------------------------------------------------------------------

    def _problem(self, *texts: str) -> ScheduleError:
        self.problems += texts
        return self.failed()

    def watch(self) -> None:
        """Check what must hold at every moment."""
        known: dict[str, Entry] = {entry.id: entry for entry in self.entries.values()}
        alive = Counter(instance.guest.identity for instance in self.node.driver.instances if not instance.guest.is_asleep)
        self.problems += [f"{id_} is alive {count} times" for id_, count in alive.items() if count > 1 and id_ in known]
        self.problems += [f"{id_} is alive after its end was confirmed" for id_ in alive if id_ in known and known[id_].is_killed]
        now_s = self.loop.time()
        self.problems += [
            f"{call.text} has no answer after {ANSWER_S:g} s" for call in self.calls if not call.is_answered and now_s - call.begun_s > ANSWER_S
        ]
        if self.problems:
            raise self.failed()

    async def settle(self) -> None:
        """Release what is held, wait until every call is answered and the node is quiet, and check everything."""
        if self.kind is Kind.STUCK and self.held and self.rng.random() < 0.7:
            self.say("wait while steps are held")
            for _ in range(40):
                await asyncio.sleep(ANSWER_S / 30)
                self.watch()
        self.say("become quiet")
        self.release_all()
        self.node.driver.faults.raises.clear()
        if self.state.host.free.memory_bytes == 0:
            self.press()
        await self.turns(300, 300)
        while any(not call.is_answered for call in self.calls):
            await asyncio.sleep(1.0 if self.loop.time() < 1 else 15.0)
            self.watch()
        found: list[str] = []
        for _ in range(QUIET_ROUNDS):
            await asyncio.sleep(QUIET_S)
            self.watch()
            found = await self.check()
            if not found:
                return
        raise self._problem(*found)

    async def check(self) -> list[str]:
        """Return what does not hold on the quiet node, and let the ledger continue from what the clients see."""
        found: list[str] = []
        live = {sandbox.id: sandbox for sandbox in self.node.sandboxes.list(OPERATOR)}
        found += [f"{id_} lives, but no client knows it" for id_ in live if id_ not in self.entries]
        for entry in self.entries.values():
            sandbox = live.get(entry.id)
            found += await (self._check_ended(entry) if sandbox is None else self._check_live(entry, sandbox))
            found += await self._check_events(entry, sandbox)
        found += await self._check_host(live)
        found += await self._check_stored()
        if not found:
            for entry in self.entries.values():
                if entry.id in live:
                    for name, value in view(live[entry.id]).items():
                        in_doubt = self.kind is Kind.FAULTY and name == "memory" and entry.registers[name].is_busy()
                        entry.registers[name] = Register(*entry.registers[name].allowed()) if in_doubt else Register(value)
        return found

    async def _check_ended(self, entry: Entry) -> list[str]:
        record = await self.node.store.sandboxes.get(entry.id)
        if record is None or not is_terminal(record.state):
            return [f"{entry.label} is gone, but its record says {None if record is None else record.state}"]
        return [] if entry.may_end else [f"{entry.label} has ended although nothing ended it: {record.exit_reason} {record.exit_detail}"]

    async def _check_live(self, entry: Entry, sandbox: Sandbox) -> list[str]:
        if entry.is_killed:
            return [f"{entry.label} lives after its end was confirmed"]
        if entry.told_ended and self.kind is not Kind.FAULTY:
            return [f"{entry.label} is {sandbox.state}, but {entry.told_ended} was answered that it has ended"]
        if sandbox.state not in STABLE:
            return [f"{entry.label} stays {sandbox.state}"]
        found = self._contradictions(entry, sandbox, "on the quiet node")
        expires_at = sandbox.deadline.expires_at
        if expires_at is not None and expires_at < self.node.clock.now():
            found.append(f"{entry.label} lives although its deadline has passed")
        if (expires_at is None) != (sandbox.spec.timeout_s is None and sandbox.state is State.RUNNING):
            found.append(f"{entry.label} is {sandbox.state} with timeout {sandbox.spec.timeout_s} and deadline {expires_at}")
        return [*found, *await self._check_record(entry, sandbox), *self._check_instance(entry, sandbox)]

    async def _check_record(self, entry: Entry, sandbox: Sandbox) -> list[str]:
        record = await self.node.store.sandboxes.get(entry.id)
        assert record is not None
        pairs: dict[str, tuple[object, object]] = {
            "state": (sandbox.state, record.state),
            "name": (sandbox.name, record.name),
            "metadata": (dict(sandbox.metadata), dict(record.spec.metadata)),
            "limits": (sandbox.spec.limits, record.spec.limits),
            "volumes": (sandbox.spec.volumes, record.spec.volumes),
            "deadline": (sandbox.deadline.expires_at, record.expires_at),
        }
        if self.kind is Kind.FAULTY:
            del pairs["limits"]  # those of a change that failed may be in force or not
        return [f"{entry.label} has {name} {seen}, but its record has {kept}" for name, (seen, kept) in pairs.items() if seen != kept]

    def _check_instance(self, entry: Entry, sandbox: Sandbox) -> list[str]:
        """Check the driver's side of a sandbox."""
        instances = [instance for instance in self.node.driver.instances if instance.ref == sandbox.ref]
        if len(instances) != (sandbox.state is not State.HIBERNATED):
            return [f"{entry.label} is {sandbox.state} with {len(instances)} instances"]
        found = []
        for instance in instances:
            if instance.guest.identity != entry.id:
                found.append(f"the instance of {entry.label} is {instance.guest.identity}")
            if instance.is_paused != (sandbox.state is State.PAUSED):
                found.append(f"{entry.label} is {sandbox.state}, but its instance {'is' if instance.is_paused else 'is not'} paused")
            if sandbox.spec.limits.memory_bytes < instance.limits.memory_bytes:
                found.append(f"{entry.label} has less memory than its instance")
            if self.kind is Kind.FAULTY:
                continue  # limits and volumes of a change that failed may be in force or not
            if sandbox.spec.limits != instance.limits:
                found.append(f"{entry.label} has {sandbox.spec.limits}, but its instance has {instance.limits}")
            slots = {mount.slot for mount in sandbox.spec.volumes}
            if set(instance.volumes) != slots:
                found.append(f"{entry.label} has volumes {slots}, but its instance has {set(instance.volumes)}")
        return found

    async def _check_events(self, entry: Entry, sandbox: Sandbox | None) -> list[str]:
        """Check that the events of a sandbox are a path of its lifecycle."""
        page = await self.node.store.events.page(owner=None, sandbox=entry.id, after=0, limit=1000)
        types = [record.event.type.removeprefix("sandbox.") for record in page if record.event.type.startswith("sandbox.")]
        states = {
            "created": State.RUNNING,
            "resumed": State.RUNNING,
            "woken": State.RUNNING,
            "paused": State.PAUSED,
            "hibernated": State.HIBERNATED,
            "ended": State.STOPPED,
        }
        path = [type_ for type_ in types if type_ in states]
        found = []
        if path[:1] != ["created"] or path.count("created") != 1 or path.count("ended") != (sandbox is None) or "ended" in path[:-1]:
            found.append(f"the events of {entry.label} are {path}")
        for before, after in itertools.pairwise(path):
            if not can_reach(states[before], states[after], through_running=self.kind is Kind.FAULTY):
                found.append(f"{entry.label} went from {before} to {after}")
        if sandbox is not None and path and states[path[-1]] is not sandbox.state and self.kind is not Kind.FAULTY:
            found.append(f"{entry.label} is {sandbox.state}, but its last event is {path[-1]}")
        return found

    async def _check_host(self, live: Mapping[SandboxId, Sandbox]) -> list[str]:
        """Check that the driver, the mounted volumes and the reservations are what the sandboxes and pools need."""
        found = []
        running = [sandbox for sandbox in live.values() if sandbox.state in {State.RUNNING, State.PAUSED}]
        warm = [warm.instance for status in self.node.pools.list(OPERATOR) for warm in status.pool.ready]
        needed = sorted([*(str(sandbox.ref) for sandbox in running), *(instance.ref for instance in warm)])
        if self.node.driver.leftovers() != needed:
            found.append(f"the driver has {self.node.driver.leftovers()} for {needed}")
        limits = [*(sandbox.spec.limits for sandbox in running), *(instance.limits for instance in warm)]
        reserved = await self.node.reservations.reserved()
        if reserved.memory_bytes != sum(each.memory_bytes for each in limits):
            found.append(f"{reserved.memory_bytes / GIB:g} GiB are reserved for {[each.memory_bytes / GIB for each in limits]}")
        if reserved.pids != sum(each.pids for each in limits):
            found.append(f"{reserved.pids} tasks are reserved for {[each.pids for each in limits]}")
        mounted = {mount.volume for sandbox in running for mount in sandbox.spec.volumes}
        if self.disks.mounted - mounted or (not self.has_restarted and self.disks.mounted != mounted):
            found.append(f"volumes {sorted(self.disks.mounted)} are mounted for {sorted(mounted)}")
        return found

    async def _check_stored(self) -> list[str]:
        """Check the volumes and snapshots that were confirmed."""
        volumes = {volume.name for volume in await self.node.services.volumes.list(OPERATOR)}
        page = await self.node.services.snapshots.list(OPERATOR, after=None, limit=1000)
        snapshots: set[str] = {record.id for record in page.items}
        registers = [(name, name in volumes, register) for name, register in self.volumes.items()]
        registers += [(id_, id_ in snapshots, register) for id_, register in self.snapshots.items()]
        found = []
        for name, is_there, register in registers:
            if is_there not in register.allowed():
                found.append(f"{name} {'exists' if is_there else 'is lost'}; confirmed: {register.allowed()}")
        return found

    # -- the whole ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the schedule.

        Raises:
            ScheduleError: Something does not hold.
        """
        self.state = NodeState(self.folder, clock=cast("ManualClock", SimulatedClock()))
        try:
            await self._run()
        finally:
            self.is_over = True

    async def _run(self) -> None:
        await self.open(keep=True)
        for name in VOLUMES:
            self.create_volume(name)
        self.change_pool()
        await self.turns(100, 200)
        self.create()
        await self.turns(100, 200)
        for _ in range(self.rng.randint(2, 3)):
            for _ in range(self.rng.randint(8, 16)):
                await self.act()
                await self.gap()
                self.watch()
            if self.rng.random() < 0.2:
                await self.restart(race=True)
            await self.settle()
            if self.rng.random() < 0.2:
                await self.restart(race=False)
                await self.settle()
        await self.finish()

    async def finish(self) -> None:
        """End everything that is left, and check that nothing remains."""
        if self.rng.random() < 0.2:
            await self.restart(race=False, keep=False)
            await self.settle()
            for entry in self.entries.values():
                entry.may_end = True
            await self.restart(race=False)
        else:
            for entry in self.live():
                self.kill(entry)
        for status in self.node.pools.list(OPERATOR):
            self.call("delete the pool", self.node.pools.delete(OPERATOR, status.pool.id))
        await self.settle()
        for name in VOLUMES:
            if True in self.volumes[name].allowed():
                self.call(f"delete volume {name}", self.node.services.volumes.delete(OPERATOR, name), writes=[(self.volumes[name], {False})])
        await self.settle()
        reserved = await self.node.reservations.reserved()
        page = await self.node.services.snapshots.list(OPERATOR, after=None, limit=1000)
        kept = {str(record.id) for record in page.items}
        left = {
            "live": [sandbox.id for sandbox in self.node.sandboxes.list(OPERATOR)],
            "driver": self.node.driver.leftovers(),
            "mounted": sorted(self.disks.mounted),
            "disks": sorted(self.disks.made),
            "images": sorted({path.name for path in self.state.data_dir.rglob("s*-*") if path.is_dir() and path.name not in kept}),
            "reserved": [] if reserved == Resources(memory_bytes=0, disk_bytes=0, pids=0) else [reserved],
        }
        if any(left.values()):
            raise self._problem(f"When all is over, something is left: {left}")
        await self.close(race=False)
        if self.problems:
            raise self.failed()


def _place(task: asyncio.Task[None] | None) -> str:
    """Return the functions in which a task waits, the outermost first."""
    names = []
    awaited: Any = None if task is None else task.get_coro()
    while awaited is not None and hasattr(awaited, "cr_await"):
        names.append(awaited.__qualname__)
        awaited = awaited.cr_await
    return " > ".join(names[1:])


def run_schedule(seed: int, folder: Path) -> Sequence[str]:
    """Run the schedule of a seed and return its trace.

    Args:
        seed: Seed of all choices.
        folder: Empty folder for the node.

    Raises:
        ScheduleError: Something does not hold; the message has the problems, the unanswered calls and the trace.
    """
    schedule = Schedule(seed, folder)
    with pytest.MonkeyPatch.context() as patch, capture_logs(processors=[schedule.hear]):
        patch.setattr(mounts, "ask", mount_inside)
        patch.setattr(composition, "VolumeFiles", lambda *_: schedule.disks)
        try:
            simulate(schedule.run, seed)
        except StuckError as error:
            schedule.problems.append(str(error))
            raise schedule.failed() from error
    return schedule.trace


def main(seeds: Iterable[int]) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print("\n".join(run_schedule(seed, Path(folder))))
            except ScheduleError as error:
                print(error)


if __name__ == "__main__":
    main(map(int, sys.argv[1:]))
