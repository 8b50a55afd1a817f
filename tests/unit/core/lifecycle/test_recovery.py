"""Recovery of the sandboxes of an earlier service, on a driver that outlives both services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.admission import SINGLE_USE_METADATA
from sandlot.core.files import files
from sandlot.core.lifecycle import mounts
from sandlot.core.lifecycle.recovery import CLIENT_LOST, ENDED_UNATTENDED, EXPIRED, NOT_CREATED, NOT_REMOVED, over
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.ports import ExitReason
from sandlot.model.records import SandboxRecord
from sandlot.model.sandboxes import ENDED, LIVE, CreateSandboxParams, LimitsChange, SandboxFilter
from sandlot.model.specs import GIB, CellSpec, ProcessSpec, SandboxSpec, User, VolumeMount
from sandlot.model.states import State
from sandlot.model.volumes import MIN_SIZE_BYTES
from sandlot.server.composition import RunningService
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.clock import START, ManualClock
from tests.support.node import MemoryNode, NodeState, open_node, settled
from tests.support.service import BASE, serving
from tests.unit.core.volumes.test_manager import Disks

ALICE, BOB = Principal(OwnerId("a" * 12), "alice"), Principal(OwnerId("b" * 12), "bob")


async def output(service: RunningService, id_: str, *argv: str) -> str:
    sandbox = service.internals.registry.find(id_, OPERATOR)
    return (await service.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=argv))).stdout.text()


async def test_recovered_sandbox_keeps_its_processes_and_variables(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, replace(BASE, env={"A": "of the sandbox"}, name="mine", metadata={"k": "v"}))
        await first.node.code.run(OPERATOR, sandbox.id, CellSpec("x = 41"))
        process = (await first.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(argv=("sh", "-c", "echo before; sleep 1000")))).process

        async def content() -> AsyncIterator[bytes]:
            yield b"kept"

        await files.write(sandbox, "/workspace/a", content(), user=User.USER)
    async with serving(tmp_path, driver, keep=True) as second:
        again = second.internals.registry.find(sandbox.id, ALICE)
        assert again is not sandbox
        assert (again.name, again.metadata, again.created_at, again.owner) == ("mine", {"k": "v"}, sandbox.created_at, ALICE.owner)
        assert (await second.node.code.run(OPERATOR, again.id, CellSpec("print(x + 1)"))).stdout.text() == "42\n"
        assert await output(second, sandbox.id, "sh", "-c", "cat /workspace/a; echo $A") == "keptof the sandbox\n"
        outcome, stdout, _ = await second.node.processes.read(OPERATOR, again.id, process, stdout_from=0, stderr_from=0)
        assert (outcome, stdout.text()) == (None, "before\n")
        with pytest.raises(NotFoundError):
            second.internals.registry.find(sandbox.id, BOB)
        await second.internals.manager.kill(ALICE, sandbox.id)
    async with serving(tmp_path, driver) as third:
        assert third.internals.registry.list(OPERATOR) == []
        with pytest.raises(SandboxEndedError):
            await output(third, sandbox.id, "true")


async def test_call_waits_for_the_recovery_of_its_sandbox(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
    release = driver.faults.hold("adopt")
    async with serving(tmp_path, driver) as second:
        call = asyncio.create_task(output(second, sandbox.id, "echo", "hi"))
        await driver.faults.reach("adopt")
        await asyncio.sleep(0.05)
        assert not call.done()
        assert second.internals.registry.find(sandbox.id, ALICE).state is State.RUNNING
        assert driver.kept_in_sweeps[1:] == [], "nothing is removed before everything is taken over"
        release.set()
        assert await call == "hi\n"


async def test_sandbox_that_ended_without_a_service_reports_a_reason(tmp_path: Path, driver: MemoryDriver, clock: ManualClock) -> None:
    async with serving(tmp_path, driver, clock=clock, keep=True) as first:
        dead = await first.internals.manager.create(ALICE, BASE)
        late = await first.internals.manager.create(ALICE, replace(BASE, timeout_s=100))
        lives = await first.internals.manager.create(ALICE, replace(BASE, timeout_s=None))
    driver.booted[0].crash()
    await driver.booted[0].wait()
    clock.advance(101)
    async with serving(tmp_path, driver, clock=clock, keep=True) as second:
        for sandbox in (dead, late):
            await second.internals.registry.find(sandbox.id, ALICE).ended.wait()
        found, more = await second.internals.registry.page(ALICE, SandboxFilter(states=ENDED), after=None, limit=10)
        assert not more
        reasons = {sandbox.id: (sandbox.state, sandbox.exit.reason, sandbox.exit.detail) for sandbox in found if sandbox.exit is not None}
        assert reasons == {dead.id: (State.FAILED, ExitReason.CRASHED, ENDED_UNATTENDED), late.id: (State.STOPPED, ExitReason.KILLED, EXPIRED)}
        assert await output(second, lives.id, "echo", "still") == "still\n"
        assert second.internals.registry.find(lives.id, ALICE).deadline.expires_at is None


async def test_recovered_sandbox_keeps_its_deadline(tmp_path: Path, driver: MemoryDriver, clock: ManualClock) -> None:
    async with serving(tmp_path, driver, clock=clock, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, replace(BASE, timeout_s=100))
    clock.advance(60)
    async with serving(tmp_path, driver, clock=clock, keep=True) as second:
        again = second.internals.registry.find(sandbox.id, ALICE)
        await again.wait_reachable()
        assert again.deadline.expires_at == sandbox.deadline.expires_at
        clock.advance(39)
        assert await output(second, sandbox.id, "echo", "yet") == "yet\n"
        clock.advance(2)
        await again.ended.wait()
        assert again.exit is not None
        assert again.exit.detail == EXPIRED


async def test_recovery_ends_only_the_sandbox_whose_guest_responds_with_garbage(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandboxes = [await first.internals.manager.create(ALICE, BASE) for _ in range(2)]
    driver.faults.raises["connect"] = [HostError("the pipes are gone", code=ErrorCode.HOST_NOT_READY)]
    async with serving(tmp_path, driver) as second:
        results = await asyncio.gather(*(output(second, sandbox.id, "echo", "hi") for sandbox in sandboxes), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["SandboxEndedError", "str"]


async def test_failed_adoption_is_repeated(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
    driver.faults.raises["adopt"] = [HostError("too many open files", code=ErrorCode.HOST_NOT_READY)]
    async with serving(tmp_path, driver) as second:
        assert await output(second, sandbox.id, "echo", "hi") == "hi\n"


async def test_silent_guest_delays_no_other_recovery_and_can_be_killed_or_detached(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        silent = [await first.internals.manager.create(ALICE, BASE) for _ in range(first.settings.max_creates + 1)]
        speaks = await first.internals.manager.create(BOB, BASE)
    for instance in driver.booted[:-1]:
        instance.guest.is_silent = True
    async with serving(tmp_path, driver, keep=True) as second:
        assert await output(second, speaks.id, "echo", "hi") == "hi\n"
        assert (await second.internals.manager.create(BOB, BASE)).state is State.RUNNING
        await second.internals.manager.kill(ALICE, silent[0].id)
    for instance in driver.instances:
        instance.guest.is_silent = False
    async with serving(tmp_path, driver) as third:
        assert await output(third, silent[1].id, "echo", "again") == "again\n"


async def test_guest_of_a_recovered_persistent_sandbox_has_no_deadline(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, replace(BASE, timeout_s=None))
        async with sandbox.connection() as link:
            await link.set_deadline(1.0)  # a change that was said to the guest, and recorded by nobody
    async with serving(tmp_path, driver) as second:
        await second.internals.registry.find(sandbox.id, ALICE).wait_reachable()
        assert [call["deadline_s"] for call in driver.booted[0].guest.requests("guest.deadline")] == [1.0, None]


async def test_detached_sandboxes_are_found_while_the_service_stops(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
        await first.internals.manager.aclose(keep=True)
        assert [each.id for each in first.internals.registry.list(ALICE)] == [sandbox.id]
        for call in (output(first, sandbox.id, "true"), first.internals.manager.kill(ALICE, sandbox.id)):
            with pytest.raises(UnavailableError) as told:
                await call
            assert told.value.code is ErrorCode.SERVICE_STOPPING
    async with serving(tmp_path, driver) as second:
        assert await output(second, sandbox.id, "echo", "on") == "on\n"


async def test_unfinished_create_fails_and_is_removed_when_the_service_stops(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        driver.faults.hold("connect")
        creating = asyncio.create_task(first.internals.manager.create(ALICE, BASE))
        await driver.faults.reach("connect")
        first.internals.manager.refuse()
        closing = asyncio.create_task(first.internals.manager.aclose(keep=True))
        with pytest.raises(SandlotError) as told:
            await creating
        assert told.value.retryable
        await closing
    driver.faults.release("connect")
    assert driver.leftovers() == []
    async with serving(tmp_path, driver) as second:
        assert second.internals.registry.list(OPERATOR) == []


async def test_call_is_interrupted_when_the_service_stops_and_its_process_keeps_running(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
        spec = ProcessSpec(argv=("sh", "-c", "sleep 0.5; echo done > /workspace/proof"))
        running = asyncio.create_task(first.node.processes.run(OPERATOR, sandbox.id, spec))
        async with asyncio.timeout(30):
            while not [info for info in await first.node.processes.list(OPERATOR, sandbox.id) if info.running]:  # noqa: ASYNC110 - it is asked, not told
                await asyncio.sleep(0.01)
        await first.internals.manager.aclose(keep=True)
        with pytest.raises(SandlotError) as told:
            await running
        assert told.value.code is ErrorCode.SERVICE_STOPPING
        assert not told.value.retryable, "it was begun"
    async with serving(tmp_path, driver) as second:
        assert await output(second, sandbox.id, "sh", "-c", "sleep 0.6; cat /workspace/proof") == "done\n"


async def test_unfinished_creates_and_removals_are_settled(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
        record = await first.store.sandboxes.get(sandbox.id)
        assert record is not None
    async with serving(tmp_path, driver, keep=True) as second:
        await second.internals.registry.find(sandbox.id, ALICE).wait_reachable()
        half = replace(
            record, spec=replace(record.spec, id=SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")), state=State.CREATING, ref=None, idempotency_key="k"
        )
        await second.store.sandboxes.save(half)
    async with serving(tmp_path, driver, keep=True) as third:
        settled = await third.store.sandboxes.get(half.id)
        assert settled is not None
        assert (settled.state, settled.exit_detail, settled.idempotency_key) == (State.FAILED, NOT_CREATED, None)
        await third.store.sandboxes.save(replace(record, state=State.STOPPING))
    async with serving(tmp_path, driver) as fourth:
        ended = await fourth.internals.registry.load(sandbox.id, ALICE)
        assert ended.exit is not None
        assert (ended.state, ended.exit.detail) == (State.STOPPED, NOT_REMOVED)
        assert ended.spec.env == {}


async def test_recovered_sandbox_has_the_limits_of_the_drivers_record(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
    driver.booted[0].limits = replace(sandbox.spec.limits, memory_bytes=GIB // 2, pids=30000)  # a change that was cut in half
    async with serving(tmp_path, driver) as second:
        again = second.internals.registry.find(sandbox.id, ALICE)
        await again.wait_reachable()
        assert again.spec.limits == driver.booted[0].limits
        assert (await second.internals.reservations.capacity()).reserved.memory_bytes == GIB // 2
        assert driver.booted[0].guest.pids == 30000


@asynccontextmanager
async def open_without_driver(state: NodeState, **settings: Any) -> AsyncIterator[MemoryNode]:  # noqa: ANN401 - fields of Settings
    """Run a service that does not have the driver of the sandboxes, at least until it has swept."""
    name, state.driver.name = state.driver.name, "container"
    sweeps = len(state.driver.kept_in_sweeps)
    async with open_node(state, keep_sandboxes=True, isolation_default="container", isolation_allowed=("container",), **settings) as node:
        yield node
        await settled(lambda: len(state.driver.kept_in_sweeps) > sweeps)
    state.driver.name = name


async def test_running_sandbox_of_a_missing_driver_is_kept(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))

    async with open_without_driver(state):
        pass

    async with open_node(state) as node:
        assert await output(node.service, sandbox.id, "echo", "hi") == "hi\n"
    assert state.driver.leftovers() == []


async def test_hibernation_image_of_a_missing_driver_is_kept(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    async with open_without_driver(state):
        pass

    async with open_node(state) as node:
        woken = await node.sandboxes.resume(OPERATOR, sandbox.id)
        assert woken.state is State.RUNNING
    assert state.driver.leftovers() == []


async def test_sandbox_of_a_missing_driver_keeps_its_reservation_volumes_name_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "ask", answer_mounts)
    state, disks = NodeState(tmp_path), Disks()
    params = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB), name="mine")
    async with open_node(state, keep_sandboxes=True) as node:
        node.use_disks(disks)
        record, _secret = await node.keys.create("anne", quota=Quota(memory_bytes=GIB))
        anne = node.keys.principal_of(record.id)
        assert anne is not None
        volume = await node.services.volumes.create(anne, name="data", size_bytes=MIN_SIZE_BYTES)
        sandbox = await node.sandboxes.create(anne, replace(params, volumes=(VolumeMount("data", "/data"),)))

    async with open_without_driver(state, max_sandboxes=1) as node:
        node.use_disks(disks)
        capacity = await node.reservations.capacity()
        assert (capacity.reserved.memory_bytes, capacity.sandboxes) == (GIB, 1)
        disks.mount(volume.id)
        assert (await node.services.volumes.get(anne, volume.id)).used_bytes == disks.used_bytes(volume.id), "the volume counts as mounted"
        with pytest.raises(ConflictError, match=sandbox.id):
            await node.services.volumes.delete(anne, volume.id)
        with pytest.raises(ConflictError, match=sandbox.id):
            await node.sandboxes.create(anne, params)
        with pytest.raises(LimitError) as error:
            await node.sandboxes.create(anne, replace(params, name="other"))
        assert error.value.code is ErrorCode.QUOTA_EXCEEDED
        with pytest.raises(UnavailableError) as busy:
            await node.sandboxes.create(OPERATOR, params)
        assert busy.value.fields["max_sandboxes"] == 1


async def test_hibernated_sandbox_of_a_missing_driver_keeps_its_disk_and_its_volume_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "ask", answer_mounts)
    state, disks = NodeState(tmp_path), Disks()
    async with open_node(state, keep_sandboxes=True) as node:
        node.use_disks(disks)
        volume = await node.services.volumes.create(OPERATOR, name="data", size_bytes=MIN_SIZE_BYTES)
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", volumes=(VolumeMount("data", "/data"),)))
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    async with open_without_driver(state, max_sandboxes=1) as node:
        node.use_disks(disks)
        capacity = await node.reservations.capacity()
        assert (capacity.reserved.memory_bytes, capacity.reserved.pids, capacity.sandboxes) == (0, 0, 1)
        with pytest.raises(ConflictError, match=sandbox.id):
            await node.services.volumes.delete(OPERATOR, volume.id)
        assert (await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))).state is State.RUNNING


async def answer_mounts(_sandbox: Sandbox, **_request: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Respond to every request about volumes, in place of the guest."""
    return {}


async def test_sandbox_of_one_run_is_ended_by_the_next_service(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", metadata=SINGLE_USE_METADATA))

    async with open_node(state, keep_sandboxes=True) as node:
        await settled(lambda: node.sandboxes.count == 0)
        ended = await node.sandboxes.load(sandbox.id, OPERATOR)
        assert ended.exit is not None
        assert (ended.exit.reason, ended.exit.detail) == (ExitReason.KILLED, CLIENT_LOST)
    assert state.driver.leftovers() == []


async def test_each_change_of_a_recovered_sandbox_has_one_event(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(ALICE, BASE)
    async with serving(tmp_path, driver) as second:
        await second.internals.registry.find(sandbox.id, ALICE).wait_reachable()
        await second.internals.manager.kill(ALICE, sandbox.id)
        told = await second.store.events.page(owner=ALICE.owner, sandbox=sandbox.id, after=0, limit=10)
    assert [each.event.type for each in told] == ["sandbox.created", "sandbox.adopted", "sandbox.ended"]
    assert sorted(each.sequence for each in told) == [each.sequence for each in told]


@pytest.mark.parametrize(
    "state, ref, reason, expired, becomes, detail",
    [
        (State.CREATING, None, None, False, State.FAILED, NOT_CREATED),
        (State.RUNNING, None, None, False, State.FAILED, NOT_CREATED),
        (State.STOPPING, "r", None, False, State.STOPPED, NOT_REMOVED),
        (State.STOPPING, "r", "oom", False, State.FAILED, "told"),
        (State.STOPPING, None, "killed", True, State.STOPPED, "told"),
        (State.RUNNING, "r", None, True, State.STOPPED, EXPIRED),
        (State.RUNNING, "r", None, False, State.FAILED, ENDED_UNATTENDED),
    ],
)
def test_record_of_a_sandbox_that_does_not_run_gets_a_final_state(
    state: State,
    ref: str | None,
    reason: str | None,
    expired: bool,  # noqa: FBT001
    becomes: State,
    detail: str,
) -> None:
    spec = SandboxSpec(id=SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa"))
    record = SandboxRecord(
        spec=spec,
        node=NodeId("aaaa"),
        owner=ALICE.owner,
        name=None,
        state=state,
        created_at=START,
        ref=ref,
        exit_reason=reason,
        exit_detail="told",
    )
    why, after = over(record, expired)
    assert (after, why.detail) == (becomes, detail)
    assert after in ENDED
    assert after not in LIVE
