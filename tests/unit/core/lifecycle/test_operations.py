"""Operations of a supervisor: their order, the deadline between them, and how the requested end of the sandbox cuts them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.lifecycle import mounts
from sandlot.core.lifecycle.supervisor import CUT_S
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, SandboxEndedError, SandlotError
from sandlot.model.ports import Exit, ExitReason, HostReading
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange, UpdateSandboxParams
from sandlot.model.specs import GIB, Limits, OnTimeout, VolumeMount
from sandlot.model.states import State
from sandlot.model.volumes import MIN_SIZE_BYTES
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled
from tests.unit.core.pools.test_manager import filled_pool
from tests.unit.core.volumes.test_manager import Disks

LIMITS = Limits(memory_bytes=GIB)
BASE = CreateSandboxParams(template="base", limits=LimitsChange.to(LIMITS))
LARGER = UpdateSandboxParams(limits=LimitsChange(memory_bytes=2 * GIB))


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    return await create(node)


async def create(node: MemoryNode, **changes: Any) -> Sandbox:  # noqa: ANN401 - fields of CreateSandboxParams
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, **changes))
    return sandbox


def update(node: MemoryNode, sandbox: Sandbox, params: UpdateSandboxParams = LARGER) -> asyncio.Task[Sandbox]:
    return asyncio.create_task(node.sandboxes.update(OPERATOR, sandbox.id, params))


def attach(node: MemoryNode, sandbox: Sandbox) -> asyncio.Task[Sandbox]:
    return asyncio.create_task(node.internals.mounts.attach(OPERATOR, sandbox.id, VolumeMount("data", "/data")))


async def run_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def kill(node: MemoryNode, sandbox: Sandbox) -> None:
    """Kill a sandbox while the clock stands still."""
    killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
    await settled(killing.done)
    killing.result()


def is_in(sandbox: Sandbox, state: State) -> bool:
    return sandbox.state is state


class Blocker:
    """An operation that runs until it is released."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.begun, self.released = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(sandbox.operations.submit(self._run))

    async def _run(self, _supervisor: object) -> None:
        self.begun.set()
        await self.released.wait()


@pytest.fixture
def steps(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All steps of the driver, oldest first. Held steps are released at the end."""
    done: list[str] = []
    at = node.driver.faults.at

    async def recorded(step: str) -> None:
        done.append(step)
        await at(step)

    monkeypatch.setattr(node.driver.faults, "at", recorded)
    yield done
    for hold in node.driver.faults._holds.values():  # noqa: SLF001 - a failed test must not keep the node from stopping
        hold.set()


class Stubborn:
    """A step of the driver that does not end when it is cancelled.

    Attributes:
        reached: Event that is set when the step has begun.
        released: Event that lets the step end.
    """

    def __init__(self, node: MemoryNode, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = asyncio.Event(), asyncio.Event()
        at = node.driver.faults.at

        async def outlasting(at_step: str) -> None:
            if at_step == step and not self.released.is_set():
                self.reached.set()
                while not self.released.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await self.released.wait()
            await at(at_step)

        monkeypatch.setattr(node.driver.faults, "at", outlasting)


MakeStubborn = Callable[[str], Stubborn]


@pytest.fixture
def stubborn(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStubborn]:
    """Function that makes a step of the driver stubborn until the end of the test."""
    made: list[Stubborn] = []

    def make(step: str) -> Stubborn:
        made.append(Stubborn(node, step, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        each.released.set()


# One writer -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def volumes(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes without file systems, and guests that mount nothing."""

    async def ask(_sandbox: Sandbox, **_request: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(mounts, "ask", ask)
    node.use_disks(Disks())


async def all_end(calls: Sequence[asyncio.Task[Any]]) -> bool:
    """Return True if all calls end by themselves. The others are cancelled."""
    try:
        await settled(lambda: all(call.done() for call in calls))
    except AssertionError:
        for call in calls:
            call.cancel()
        return False
    return True


class HeldReading:
    """Readings of the host, which requests for room wait for while :attr:`held` is set."""

    def __init__(self, node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: asyncio.Event | None = None
        self.reached = asyncio.Event()
        read_host = node.internals.reservations.read_host

        async def read() -> HostReading:
            if self.held is not None:
                self.reached.set()
                await self.held.wait()
            return await read_host()

        monkeypatch.setattr(node.internals.reservations, "read_host", read)


@pytest.mark.usefixtures("volumes")
async def test_updates_attach_and_pause_all_end_whenever_they_begin(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of limits waits for room, with an attach and a pause behind it. Another update begins at each turn around the end of the wait."""
    await node.services.volumes.create(OPERATOR, name="data", size_bytes=MIN_SIZE_BYTES)
    reading, stuck = HeldReading(node, monkeypatch), []
    for attached_at in (None, 10, 12, 14):
        for updated_at in range(24):
            sandbox = await create(node)
            reading.held = asyncio.Event()
            reading.reached.clear()
            calls: list[asyncio.Task[Any]] = [update(node, sandbox)]
            await reading.reached.wait()
            if attached_at is None:
                calls.append(attach(node, sandbox))
            await run_pending()
            calls.append(asyncio.create_task(node.sandboxes.pause(OPERATOR, sandbox.id)))
            await run_pending()
            for turn in range(24):
                if turn == attached_at:
                    calls.append(attach(node, sandbox))
                if turn == 12:
                    reading.held.set()
                if turn == updated_at:
                    calls.append(update(node, sandbox, UpdateSandboxParams(metadata={"a": "b"})))
                await asyncio.sleep(0)
            if not await all_end(calls):
                stuck.append((attached_at, updated_at))
            reading.held = None
            await asyncio.gather(*calls, return_exceptions=True)
            await node.sandboxes.kill(OPERATOR, sandbox.id)
            await settled(lambda: node.sandboxes.count == 0)
    assert stuck == []


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that would run in threads runs in the event loop, so the number of turns is the same in each run."""

    async def call(function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", call)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("auto_resume", [True, False])
async def test_hibernation_during_an_update_waits_for_the_update(node: MemoryNode, *, auto_resume: bool) -> None:
    sandbox = await create(node, auto_resume=auto_resume)
    release = node.driver.hold("configure")
    updating = update(node, sandbox)
    await node.driver.faults.reach("configure")
    hibernating = asyncio.create_task(node.sandboxes.hibernate(OPERATOR, sandbox.id))
    await run_pending()
    release.set()
    await updating
    await hibernating
    await run_pending()

    assert is_in(sandbox, State.HIBERNATED)
    assert sandbox.spec.limits.memory_bytes == 2 * GIB
    assert (await node.reservations.reserved()).memory_bytes == 0
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert (await node.reservations.reserved()).memory_bytes == node.instance(sandbox).limits.memory_bytes == 2 * GIB


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("auto_resume", [True, False])
async def test_reservation_equals_the_state_after_an_update_and_a_hibernation(node: MemoryNode, *, auto_resume: bool) -> None:
    for turns in range(-40, 60):
        sandbox = await create(node, auto_resume=auto_resume)
        calls: dict[str, asyncio.Task[Any]] = {}
        if turns >= 0:
            calls["update"] = update(node, sandbox)
        await run_turns(turns)
        calls["hibernate"] = asyncio.create_task(node.sandboxes.hibernate(OPERATOR, sandbox.id))
        await run_turns(-turns)
        if turns < 0:
            calls["update"] = update(node, sandbox)
        await asyncio.wait(calls.values())

        assert calls["hibernate"].result() is sandbox
        updated = calls["update"].exception() or calls["update"].result()
        if isinstance(updated, ConflictError):
            assert (updated.code, auto_resume) == (ErrorCode.SANDBOX_PAUSED, False)
        else:
            assert updated is sandbox
        await run_pending()
        is_running = is_in(sandbox, State.RUNNING)
        assert is_running or is_in(sandbox, State.HIBERNATED)
        assert sandbox.spec.limits.memory_bytes == (GIB if isinstance(updated, ConflictError) else 2 * GIB)
        assert (await node.reservations.reserved()).memory_bytes == (sandbox.spec.limits.memory_bytes if is_running else 0)
        await node.sandboxes.kill(OPERATOR, sandbox.id)
        await settled(lambda: node.sandboxes.count == 0)


async def test_suspended_sandbox_is_updated_without_waking_unless_its_limits_change(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    await update(node, sandbox, UpdateSandboxParams(metadata={"a": "b"}, timeout_s=50, name="new"))
    assert is_in(sandbox, State.HIBERNATED)
    assert (dict(sandbox.metadata), sandbox.spec.timeout_s, sandbox.name) == ({"a": "b"}, 50, "new")

    await update(node, sandbox)
    assert is_in(sandbox, State.RUNNING)
    assert sandbox.spec.limits.memory_bytes == 2 * GIB


async def test_limits_of_a_suspended_sandbox_without_auto_resume_are_not_changed(node: MemoryNode) -> None:
    sandbox = await create(node, auto_resume=False)
    await node.sandboxes.pause(OPERATOR, sandbox.id)
    with pytest.raises(ConflictError) as refused:
        await update(node, sandbox)
    assert refused.value.code is ErrorCode.SANDBOX_PAUSED
    assert is_in(sandbox, State.PAUSED)


async def test_update_that_has_begun_is_finished_when_its_client_leaves(node: MemoryNode, sandbox: Sandbox) -> None:
    release = node.driver.hold("configure")
    updating = update(node, sandbox)
    await node.driver.faults.reach("configure")
    updating.cancel()
    await asyncio.wait({updating})
    release.set()

    await settled(lambda: sandbox.spec.limits.memory_bytes == 2 * GIB)
    await settled(lambda: sandbox.activity.held == 0)


async def test_queued_update_is_withdrawn_when_its_client_leaves(node: MemoryNode, sandbox: Sandbox) -> None:
    blocker = Blocker(sandbox)
    updating = update(node, sandbox)
    await run_pending()
    updating.cancel()
    await asyncio.wait({updating})
    blocker.released.set()
    await blocker.task

    await node.sandboxes.pause(OPERATOR, sandbox.id)
    assert (sandbox.spec.limits, sandbox.activity.held) == (LIMITS, 0)


# Names ----------------------------------------------------------------------------------------------------------------

RENAMED = UpdateSandboxParams(name="name")


async def test_name_is_reserved_while_its_update_is_queued_and_free_once_it_is_withdrawn(node: MemoryNode, sandbox: Sandbox) -> None:
    blocker = Blocker(sandbox)
    updating = update(node, sandbox, RENAMED)
    await run_pending()
    with pytest.raises(ConflictError):
        await create(node, name="name")

    updating.cancel()
    await asyncio.wait({updating})
    assert (await create(node, name="name")).name == "name"
    blocker.released.set()
    await blocker.task


async def test_name_stays_reserved_until_its_update_ends_although_the_client_has_left(node: MemoryNode, sandbox: Sandbox) -> None:
    hold = node.guest(sandbox).hold("guest.deadline")
    updating = update(node, sandbox, replace(RENAMED, timeout_s=500))
    await hold.reached.wait()
    updating.cancel()
    await asyncio.wait({updating})
    with pytest.raises(ConflictError):
        await create(node, name="name")

    hold.release()
    await settled(lambda: sandbox.name == "name")
    with pytest.raises(ConflictError):
        await create(node, name="name")


async def test_sandbox_keeps_its_names_until_the_last_of_several_renames_ends(node: MemoryNode) -> None:
    sandbox = await create(node, name="first")
    blocker = Blocker(sandbox)
    renames = [update(node, sandbox, UpdateSandboxParams(name=name)) for name in ("second", "third", "third")]
    await run_pending()
    for name in ("first", "second", "third"):
        with pytest.raises(ConflictError):
            await create(node, name=name)

    blocker.released.set()
    await asyncio.wait(renames)
    assert (sandbox.name, [task.exception() for task in renames]) == ("third", [None, None, None])
    for name in ("first", "second"):
        assert (await create(node, name=name)).name == name
    with pytest.raises(ConflictError):
        await create(node, name="third")


async def test_name_is_not_free_while_its_sandbox_may_have_to_keep_it(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await create(node, name="old")
    saving, refused = asyncio.Event(), asyncio.Event()

    async def refuse(*_: object) -> None:
        saving.set()
        await refused.wait()
        raise HostError("The store failed.")

    monkeypatch.setattr(SandboxRecorder, "save_update", refuse)
    updating = update(node, sandbox, UpdateSandboxParams(name="new"))
    await saving.wait()
    with pytest.raises(ConflictError):
        await create(node, name="old")

    refused.set()
    await asyncio.wait({updating})
    assert (sandbox.name, isinstance(updating.exception(), HostError)) == ("old", True)
    assert (await create(node, name="new")).name == "new"


async def test_name_of_an_earlier_rename_is_not_free_while_its_sandbox_may_have_to_keep_it(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await create(node, name="first")
    save, saving, refused = SandboxRecorder.save_update, asyncio.Event(), asyncio.Event()

    async def refuse_third(recorder: SandboxRecorder, changed: Sandbox, *names: str) -> None:
        if changed.name == "third":
            saving.set()
            await refused.wait()
            raise HostError("The store failed.")
        await save(recorder, changed, *names)

    monkeypatch.setattr(SandboxRecorder, "save_update", refuse_third)
    blocker = Blocker(sandbox)
    renames = [update(node, sandbox, UpdateSandboxParams(name=name)) for name in ("second", "third")]
    await run_pending()
    blocker.released.set()
    await saving.wait()
    with pytest.raises(ConflictError):
        await create(node, name="second")

    refused.set()
    await asyncio.wait(renames)
    assert (sandbox.name, isinstance(renames[1].exception(), HostError)) == ("second", True)
    assert (await create(node, name="first")).name == "first"


async def test_rename_to_the_own_name_or_to_a_name_of_another_owner_is_allowed(node: MemoryNode) -> None:
    sandbox = await create(node, name="own")
    alice = Principal(OwnerId("a" * 12), "alice")
    hers = await node.sandboxes.create(alice, replace(BASE, name="hers"))
    assert (await update(node, sandbox, UpdateSandboxParams(name="own"))).name == "own"
    assert (await update(node, sandbox, UpdateSandboxParams(name="hers"))).name == "hers"
    other = await node.sandboxes.create(alice, replace(BASE, name="other"))
    with pytest.raises(ConflictError) as taken:  # the operator renames the sandbox of another owner: her names count
        await update(node, other, UpdateSandboxParams(name="hers"))
    assert taken.value.fields["sandbox"] == hers.id


# Order ----------------------------------------------------------------------------------------------------------------


async def test_update_that_was_submitted_before_the_deadline_runs_before_the_expiry(node: MemoryNode) -> None:
    sandbox = await create(node, timeout_s=100)
    blocker = Blocker(sandbox)
    await blocker.begun.wait()
    updates = [update(node, sandbox, UpdateSandboxParams(metadata={"a": "b"})), update(node, sandbox, UpdateSandboxParams(timeout_s=500))]
    await run_pending()
    node.clock.advance(100)
    blocker.released.set()

    await asyncio.gather(*updates)
    await run_pending()
    assert is_in(sandbox, State.RUNNING)
    assert sandbox.deadline.remaining_s() == 500


async def test_updates_that_were_submitted_after_the_deadline_do_not_postpone_the_expiry(node: MemoryNode) -> None:
    sandbox = await create(node, timeout_s=100)
    blocker = Blocker(sandbox)
    await blocker.begun.wait()
    earlier = update(node, sandbox, UpdateSandboxParams(metadata={"a": "b"}))
    await run_pending()
    node.clock.advance(100)
    later = update(node, sandbox, UpdateSandboxParams(timeout_s=500))
    await run_pending()
    blocker.released.set()

    await earlier
    with pytest.raises(SandboxEndedError, match="its timeout passed"):
        await later


async def test_update_that_was_submitted_after_the_deadline_finds_the_sandbox_suspended(node: MemoryNode) -> None:
    sandbox = await create(node, timeout_s=100, on_timeout=OnTimeout.PAUSE)
    blocker = Blocker(sandbox)
    await blocker.begun.wait()
    node.clock.advance(100)
    later = update(node, sandbox, UpdateSandboxParams(timeout_s=500))
    await run_pending()
    blocker.released.set()

    await later
    assert is_in(sandbox, State.PAUSED)
    assert sandbox.spec.timeout_s == 500


# Cut ------------------------------------------------------------------------------------------------------------------

Operation = Callable[[MemoryNode, Sandbox], Awaitable[object]]


async def hibernate(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)


async def pause(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, sandbox.id)


async def snapshot(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.services.snapshots.create(OPERATOR, sandbox.id)


async def wake(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.resume(OPERATOR, sandbox.id)


CUT: dict[str, tuple[Operation | None, Operation, str]] = {
    "update": (None, update, "configure"),
    "pause": (None, pause, "pause"),
    "thaw": (pause, wake, "resume"),
    "hibernate": (None, hibernate, "snapshot"),
    "hibernate-paused": (pause, hibernate, "snapshot"),
    "snapshot": (None, snapshot, "snapshot"),
    "snapshot-paused": (pause, snapshot, "snapshot"),
    "wake-prepare": (hibernate, wake, "prepare"),
    "wake-restore": (hibernate, wake, "restore"),
    "wake-connect": (hibernate, wake, "connect"),
}


@pytest.mark.parametrize("before, operation, step", CUT.values(), ids=CUT)
async def test_kill_cuts_an_operation_and_nothing_is_repaired(
    node: MemoryNode, sandbox: Sandbox, steps: list[str], before: Operation | None, operation: Operation, step: str
) -> None:
    if before is not None:
        await before(node, sandbox)
        await run_pending()
    node.driver.hold(step)
    running = asyncio.ensure_future(operation(node, sandbox))
    await node.driver.faults.reach(step)
    steps.clear()

    await kill(node, sandbox)
    with pytest.raises(SandboxEndedError, match="killed by request"):
        await running

    node.driver.faults.release(step)
    await settled(lambda: node.sandboxes.count == 0)
    assert set(steps) <= {"destroy", "clean"}
    assert node.driver.leftovers() == []
    assert (await node.reservations.reserved()).memory_bytes == 0


@pytest.mark.parametrize("step", ["pause", "snapshot"])
async def test_kill_cuts_the_action_of_a_timeout(node: MemoryNode, step: str) -> None:
    sandbox = await create(node, timeout_s=100, on_timeout=OnTimeout.PAUSE if step == "pause" else OnTimeout.HIBERNATE)
    node.driver.hold(step)
    node.clock.advance(100)
    await node.driver.faults.reach(step)
    await kill(node, sandbox)
    node.driver.faults.release(step)


@pytest.mark.usefixtures("volumes")
async def test_kill_cuts_an_attach_and_nothing_is_repaired(node: MemoryNode, sandbox: Sandbox, steps: list[str]) -> None:
    await node.services.volumes.create(OPERATOR, name="data", size_bytes=MIN_SIZE_BYTES)
    node.driver.hold("configure")
    attaching = attach(node, sandbox)
    await node.driver.faults.reach("configure")
    steps.clear()

    await kill(node, sandbox)
    with pytest.raises(SandboxEndedError):
        await attaching
    assert set(steps) <= {"destroy", "clean"}
    node.driver.faults.release("configure")


async def test_kill_cuts_an_update_that_waits_for_room(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=4 * GIB, memory_reserve_bytes=0) as node:
        sandbox = await create(node)
        await filled_pool(node, warm=1, limits=replace(LIMITS, cpus=0.5))
        removal = node.driver.hold("destroy")
        updating = update(node, sandbox, UpdateSandboxParams(limits=LimitsChange(memory_bytes=4 * GIB)))
        await node.driver.faults.reach("destroy")
        assert not updating.done()

        sandbox.request_end(Exit(ExitReason.KILLED, "it was killed by request"))
        await run_pending()
        assert is_in(sandbox, State.STOPPING)
        removal.set()
        with pytest.raises(SandboxEndedError, match="killed by request"):
            await updating


@pytest.mark.parametrize("step", ["configure", "snapshot"])
async def test_stop_of_the_service_waits_for_the_operation_of_a_sandbox_that_it_keeps(state: NodeState, step: str) -> None:
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await create(node)
        release = node.driver.hold(step)
        operation = update(node, sandbox) if step == "configure" else asyncio.create_task(hibernate(node, sandbox))
        await node.driver.faults.reach(step)
        queued = update(node, sandbox, UpdateSandboxParams(metadata={"a": "b"}))
        await run_pending()

        async def release_during_the_stop() -> None:
            await sandbox.detaching.wait()
            await run_pending()
            release.set()

        releasing = asyncio.create_task(release_during_the_stop())
    await releasing
    await operation
    with pytest.raises(SandlotError) as refused:
        await queued
    assert refused.value.code is ErrorCode.SERVICE_STOPPING
    async with open_node(state) as node:
        again = node.internals.registry.find(sandbox.id, OPERATOR)
        await again.recovered.wait()
        assert again.spec.limits.memory_bytes == (2 * GIB if step == "configure" else GIB)
        assert is_in(again, State.RUNNING if step == "configure" else State.HIBERNATED)


async def test_end_waits_for_an_operation_that_cannot_be_cancelled_no_longer_than_two_seconds(
    node: MemoryNode, sandbox: Sandbox, stubborn: MakeStubborn
) -> None:
    held = stubborn("configure")
    updating = update(node, sandbox)
    await held.reached.wait()
    killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
    await run_pending()
    assert not is_in(sandbox, State.STOPPING)

    node.clock.advance(CUT_S)
    await settled(killing.done)
    with pytest.raises(SandboxEndedError, match="killed by request"):
        await updating
    await run_pending()
    assert node.sandboxes.count == 1
    assert (await node.reservations.reserved()).memory_bytes == 2 * GIB

    held.released.set()
    await settled(lambda: node.sandboxes.count == 0)
    assert (await node.reservations.reserved()).memory_bytes == 0


@pytest.mark.parametrize("step", ["prepare", "restore", "connect"])
async def test_resources_that_a_cut_wake_makes_later_are_removed(node: MemoryNode, sandbox: Sandbox, stubborn: MakeStubborn, step: str) -> None:
    await hibernate(node, sandbox)
    await settled(lambda: node.driver.leftovers() == [])
    held = stubborn(step)
    waking = asyncio.create_task(wake(node, sandbox))
    await held.reached.wait()
    killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
    await run_pending()
    node.clock.advance(CUT_S)
    await settled(killing.done)
    with pytest.raises(SandboxEndedError):
        await waking
    assert (await node.reservations.reserved()).memory_bytes == GIB

    held.released.set()
    await settled(lambda: node.sandboxes.count == 0)
    assert node.driver.leftovers() == []
    assert (await node.reservations.reserved()).memory_bytes == 0
    record = await node.store.sandboxes.get(sandbox.id)
    assert record is not None
    assert record.state is State.STOPPED


async def test_wake_that_is_killed_while_it_gets_a_start_slot_releases_it(tmp_path: Path) -> None:
    """The kill comes one turn of the event loop later each time, until it comes when the wake holds the slot."""
    async with open_node(NodeState(tmp_path), max_creates=1) as node:
        for turns in range(100):
            sandbox = await create(node)
            await hibernate(node, sandbox)
            node.driver.hold("boot")
            starting = asyncio.create_task(create(node))
            await node.driver.faults.reach("boot")
            waking = asyncio.create_task(wake(node, sandbox))
            await run_pending()
            prepared = len(node.driver.prepared)

            node.driver.faults.release("boot")
            await run_turns(turns)
            has_begun = len(node.driver.prepared) > prepared
            await kill(node, sandbox)
            await asyncio.gather(starting, waking, return_exceptions=True)
            third = asyncio.create_task(create(node))
            await settled(third.done)
            for each in node.sandboxes.list(OPERATOR):
                await node.sandboxes.kill(OPERATOR, each.id)
            await settled(lambda: node.sandboxes.count == 0)
            if has_begun:
                return
    raise AssertionError("the wake never got the slot")


@pytest.mark.parametrize("turns", range(5))
async def test_result_of_an_operation_that_ends_while_the_end_is_requested_is_not_lost(sandbox: Sandbox, turns: int) -> None:
    may_end, effects = asyncio.Event(), []

    async def work(_supervisor: object) -> int:
        await may_end.wait()
        effects.append("done")
        return 5

    working = asyncio.create_task(sandbox.operations.submit(work))
    await run_pending()
    may_end.set()
    await run_turns(turns)
    sandbox.request_end(Exit(ExitReason.KILLED))
    assert await working == 5
    assert effects == ["done"]


async def test_operation_that_is_cut_ends_before_the_removal_begins(node: MemoryNode, sandbox: Sandbox, steps: list[str]) -> None:
    may_end = asyncio.Event()

    async def work(_supervisor: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            steps.append("cleaned up")

    working = asyncio.create_task(sandbox.operations.submit(work))
    await run_pending()
    killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
    await run_pending()
    may_end.set()
    await killing
    assert steps[:2] == ["cleaned up", "destroy"]
    with pytest.raises(SandboxEndedError):
        await working


async def test_hibernation_that_has_ended_its_processes_is_completed(node: MemoryNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    save = SandboxRecorder.save_eventually

    async def save_later(recorder: SandboxRecorder, *args: Any, **data: Any) -> None:  # noqa: ANN401 - arguments of save_eventually
        await run_pending()  # the end of the processes is noticed meanwhile
        await save(recorder, *args, **data)

    monkeypatch.setattr(SandboxRecorder, "save_eventually", save_later)
    hibernating = asyncio.create_task(hibernate(node, sandbox))
    await settled(hibernating.done)

    hibernating.result()
    record = await node.store.sandboxes.get(sandbox.id)
    assert record is not None
    assert record.state is sandbox.state is State.HIBERNATED


async def test_update_that_fails_after_the_end_was_requested_is_not_undone(
    node: MemoryNode, sandbox: Sandbox, steps: list[str], stubborn: MakeStubborn
) -> None:
    held = stubborn("configure")
    node.driver.fail_next("configure", HostError("The kernel refused the limits."))
    updating = update(node, sandbox)
    await held.reached.wait()
    killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
    await run_pending()
    held.released.set()
    await killing
    with pytest.raises(HostError, match="refused the limits"):
        await updating

    assert steps.count("configure") == 1
