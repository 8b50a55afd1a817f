"""Pausing, hibernating and waking in core: late writes, releases that take long, and failures. ``tests/service`` has what the runtime saves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.files import overlay
from sandlot.core.lifecycle.idle import TICK_S
from sandlot.core.lifecycle.suspend import EXPIRY_RETRY_S
from sandlot.core.resources.reservations import READING_MAX_AGE_S
from sandlot.core.sandbox import Sandbox
from sandlot.host.capacity import held_bytes
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, OnTimeout, ProcessSpec, shell_argv
from sandlot.model.states import State
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled
from tests.unit.core.pools.test_manager import new_key

BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, BASE)
    return sandbox


async def hibernated(node: MemoryNode, sandbox: Sandbox) -> None:
    """Hibernate a sandbox and wait until its resources are released."""
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await settled(lambda: node.driver.leftovers() == [])


def is_in(sandbox: Sandbox, state: State) -> bool:
    return sandbox.state is state


async def test_process_of_a_paused_sandbox_gets_no_time(node: MemoryNode, sandbox: Sandbox) -> None:
    process = (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 10")))).process
    await node.sandboxes.pause(OPERATOR, sandbox.id)
    assert node.instance(sandbox).is_paused
    node.clock.advance(60)
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert (await node.services.processes.get(OPERATOR, sandbox.id, process)).running

    node.clock.advance(10)
    outcome = await node.services.processes.wait(OPERATOR, sandbox.id, process, timeout_s=5)
    assert outcome is not None
    assert outcome.exit_code == 0


async def test_concurrent_requests_resume_a_paused_sandbox_once(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, sandbox.id)

    runs = await asyncio.gather(
        *(node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv(f"echo {number}"))) for number in range(5))
    )

    assert [run.stdout.text() for run in runs] == [f"{number}\n" for number in range(5)]
    page = await node.store.events.page(owner=None, sandbox=sandbox.id, after=0, limit=10)
    assert [each.event.type for each in page] == ["sandbox.created", "sandbox.paused", "sandbox.resumed"]


async def test_sandbox_that_cannot_be_hibernated_at_its_timeout_is_paused(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.SNAPSHOT})) as node:
        sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=50, on_timeout=OnTimeout.HIBERNATE))
        node.clock.advance(51)
        await settled(lambda: is_in(sandbox, State.PAUSED))


async def test_idle_sandbox_is_paused_if_the_request_says_so(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, idle_timeout_s=60, on_timeout=OnTimeout.PAUSE))
    await node.clock.pass_s(90, TICK_S)
    await settled(lambda: is_in(sandbox, State.PAUSED))


@pytest.mark.parametrize("step", ["pause", "resume"])
async def test_failed_pause_or_resume_leaves_the_sandbox_as_it_was(node: MemoryNode, sandbox: Sandbox, step: str) -> None:
    if step == "resume":
        await node.sandboxes.pause(OPERATOR, sandbox.id)
    before = sandbox.state
    node.driver.fail_next(step, OSError("no"))

    with pytest.raises(HostError):
        await getattr(node.sandboxes, step)(OPERATOR, sandbox.id)

    assert is_in(sandbox, before)
    assert (await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv("echo on")))).stdout.text() == "on\n"


async def test_paused_sandbox_stays_paused_over_a_restart_of_the_service(state: NodeState) -> None:
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv("echo kept > /tmp/kept")))
        await node.sandboxes.pause(OPERATOR, sandbox.id)
    async with open_node(state) as node:
        again = node.internals.registry.find(sandbox.id, OPERATOR)
        await again.recovered.wait()
        assert is_in(again, State.PAUSED)
        assert node.instance(again).is_paused
        assert (await node.services.processes.run(OPERATOR, again.id, ProcessSpec(shell_argv("cat /tmp/kept")))).stdout.text() == "kept\n"
        assert is_in(again, State.RUNNING)


async def test_hibernation_that_finishes_after_its_timeout_counts_as_done(
    node: MemoryNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = node.instance(sandbox)
    write = instance.snapshot

    async def write_late(into: Path, *, keep_running: bool, headroom_bytes: int) -> int:
        await write(into, keep_running=keep_running, headroom_bytes=headroom_bytes)
        raise TimeoutError

    monkeypatch.setattr(instance, "snapshot", write_late)
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.HIBERNATED)

    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)
    assert not instance.guest.is_frozen


async def test_failed_hibernation_leaves_a_running_sandbox_running(node: MemoryNode, sandbox: Sandbox) -> None:
    node.driver.fail_next("snapshot", HostError("the disk is broken"))
    node.driver.fail_next("usage", HostError("the usage cannot be read"))

    with pytest.raises(HostError, match="the disk is broken"):
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    assert is_in(sandbox, State.RUNNING)
    assert not node.guest(sandbox).is_frozen
    await hibernated(node, sandbox)
    assert is_in(sandbox, State.HIBERNATED)


async def test_failed_hibernation_leaves_a_paused_sandbox_paused(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, sandbox.id)
    node.driver.fail_next("snapshot", HostError("the disk is broken"))
    node.driver.fail_next("usage", HostError("the usage cannot be read"))

    with pytest.raises(HostError, match="the disk is broken"):
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    assert is_in(sandbox, State.PAUSED)
    assert node.guest(sandbox).is_frozen


async def test_timeout_begins_anew_if_a_paused_sandbox_can_neither_be_hibernated_nor_paused_again(node: MemoryNode) -> None:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=100))
    await node.sandboxes.pause(OPERATOR, sandbox.id)
    node.driver.fail_next("snapshot", HostError("the disk is broken"))
    node.driver.fail_next("pause", HostError("cannot freeze"))

    with pytest.raises(HostError, match="the disk is broken"):
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

    assert is_in(sandbox, State.RUNNING)
    assert sandbox.deadline.monotonic_s == node.clock.monotonic_s() + 100


async def test_guest_does_not_end_a_sandbox_that_could_not_be_suspended_at_its_timeout(node: MemoryNode) -> None:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=100, on_timeout=OnTimeout.PAUSE))
    node.driver.fail_next("pause", HostError("cannot freeze"))

    node.clock.advance(100)
    await settled(lambda: sandbox.deadline.remaining_s() == EXPIRY_RETRY_S)
    assert is_in(sandbox, State.RUNNING)
    assert node.guest(sandbox).requests("guest.deadline")[-1]["deadline_s"] > EXPIRY_RETRY_S

    node.clock.advance(EXPIRY_RETRY_S)
    await settled(lambda: is_in(sandbox, State.PAUSED))


@pytest.mark.parametrize("work", ["pause", "hibernate"])
async def test_sandbox_that_cannot_run_again_after_a_failed_work_ends_with_the_reason(node: MemoryNode, sandbox: Sandbox, work: str) -> None:
    node.driver.fail_next("pause", HostError("cannot freeze"))
    node.driver.fail_next("snapshot", HostError("the disk is broken"))
    node.driver.fail_next("resume", HostError("cannot thaw"))

    with pytest.raises(SandlotError):
        await getattr(node.sandboxes, work)(OPERATOR, sandbox.id)
    await settled(sandbox.ended.is_set)

    assert is_in(sandbox, State.FAILED)
    assert sandbox.exit is not None
    assert sandbox.exit.detail == "it could not be made to run again: cannot thaw"


async def test_paused_sandbox_of_an_earlier_service_ends_if_its_guest_cannot_be_reached(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as first:
        paused: Sandbox = await first.sandboxes.create(OPERATOR, BASE)
        await first.sandboxes.pause(OPERATOR, paused.id)
    async with open_node(state) as second:
        sandbox = second.internals.registry.find(paused.id, OPERATOR)
        await sandbox.recovered.wait()
        closed = SandboxEndedError("The link is closed.", code=ErrorCode.SANDBOX_ENDED)
        second.driver.fail_next("connect", closed, closed)

        with pytest.raises(SandboxEndedError):
            await second.sandboxes.hibernate(OPERATOR, sandbox.id)
        await settled(sandbox.ended.is_set)

        assert sandbox.exit is not None
        assert sandbox.exit.detail == "its guest cannot be reached"


async def test_resources_from_before_a_hibernation_stay_reserved_until_they_are_removed(node: MemoryNode, sandbox: Sandbox) -> None:
    release = node.driver.hold("clean")
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await node.sandboxes.resume(OPERATOR, sandbox.id)

    assert is_in(sandbox, State.RUNNING)
    assert (await node.reservations.reserved()).memory_bytes == 2 * GIB
    release.set()
    await settled(lambda: node.driver.leftovers() == [sandbox.ref])
    await run_pending()
    assert (await node.reservations.reserved()).memory_bytes == GIB


async def test_hibernation_image_counts_until_the_host_shows_its_space_as_used(node: MemoryNode, sandbox: Sandbox) -> None:
    image = node.state.data_dir / "saved" / sandbox.id
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await settled(lambda: node.driver.leftovers() == [])
    await run_pending()
    size_bytes = held_bytes(image)
    assert size_bytes > 0
    assert (await node.reservations.reserved()).disk_bytes == size_bytes
    node.clock.advance(READING_MAX_AGE_S)
    assert (await node.reservations.reserved()).disk_bytes == 0


async def test_wake_waits_for_the_room_of_its_earlier_resources(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path), memory_bytes=GIB, memory_reserve_bytes=0) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        release = node.driver.hold("clean")
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        waking = asyncio.create_task(node.sandboxes.resume(OPERATOR, sandbox.id))
        await node.driver.faults.reach("clean")
        await run_pending()
        assert is_in(sandbox, State.HIBERNATED)
        release.set()
        await waking
        assert is_in(sandbox, State.RUNNING)
        assert (await node.reservations.reserved()).memory_bytes == GIB


@pytest.mark.parametrize("step", ["prepare", "restore", "connect"])
async def test_failed_wake_keeps_the_image(node: MemoryNode, sandbox: Sandbox, step: str) -> None:
    await hibernated(node, sandbox)
    node.driver.fail_next(step, HostError("no more loop devices"))

    with pytest.raises(HostError, match="no more loop devices"):
        await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.HIBERNATED)

    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)


async def test_wake_that_the_store_refuses_keeps_the_image(node: MemoryNode, sandbox: Sandbox) -> None:
    await hibernated(node, sandbox)
    release = node.driver.hold("restore")
    waking = asyncio.create_task(node.sandboxes.resume(OPERATOR, sandbox.id))
    await node.driver.faults.reach("restore")  # what was intended is recorded
    node.state.database.faults.fail_next("sandboxes.save", HostError("the database cannot be written"))
    release.set()

    with pytest.raises(HostError, match="cannot be written"):
        await waking
    assert is_in(sandbox, State.HIBERNATED)

    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)


async def test_hibernation_beyond_the_quota_is_refused_and_changes_nothing(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", hibernated_sandboxes=2)
    sandboxes = [await node.sandboxes.create(anne, BASE) for _ in range(4)]
    results = await asyncio.gather(*(node.sandboxes.hibernate(anne, sandbox.id) for sandbox in sandboxes), return_exceptions=True)
    refused = [result for result in results if isinstance(result, SandlotError)]
    assert [(error.code, error.fields["quota"]) for error in refused] == [(ErrorCode.QUOTA_EXCEEDED, "hibernated_sandboxes")] * 2
    assert sorted(sandbox.state for sandbox in sandboxes) == sorted([State.HIBERNATED] * 2 + [State.RUNNING] * 2)
    assert (await node.services.keys.usage(anne)).hibernated_sandboxes == 2

    asleep = next(sandbox for sandbox in sandboxes if sandbox.state is State.HIBERNATED)
    awake = next(sandbox for sandbox in sandboxes if sandbox.state is State.RUNNING)
    await node.sandboxes.resume(anne, asleep.id)
    await node.sandboxes.hibernate(anne, awake.id)
    bert = await new_key(node, "bert", hibernated_sandboxes=1)
    await node.sandboxes.hibernate(bert, (await node.sandboxes.create(bert, BASE)).id)


async def test_sandbox_beyond_the_quota_of_hibernated_ones_is_paused_at_its_timeout(node: MemoryNode) -> None:
    anne = await new_key(node, "anne", hibernated_sandboxes=0)
    sandbox = await node.sandboxes.create(anne, replace(BASE, timeout_s=50, on_timeout=OnTimeout.HIBERNATE))
    node.clock.advance(51)
    await settled(lambda: is_in(sandbox, State.PAUSED))


# Without memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Layers that were applied. The scripted guest has no files of its own, so each layer is one empty file."""
    layers: list[Path] = []

    async def pack(_sandbox: Sandbox, into: Path, _root: Path, _link: Link) -> int:
        into.touch()  # noqa: ASYNC240 - a short write
        return 0

    async def apply(_sandbox: Sandbox, layer: Path, _link: Link) -> None:
        assert layer.is_file()  # noqa: ASYNC240 - a short look
        layers.append(layer)

    monkeypatch.setattr(overlay, "pack_overlay", pack)
    monkeypatch.setattr(overlay, "apply_overlay", apply)
    return layers


@pytest.mark.parametrize("paused", [False, True])
async def test_sandbox_without_memory_boots_with_its_files(node: MemoryNode, sandbox: Sandbox, applied: list[Path], *, paused: bool) -> None:
    if paused:
        await node.sandboxes.pause(OPERATOR, sandbox.id)
    process = None if paused else (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 1000")))).process
    await node.sandboxes.hibernate_files(OPERATOR, sandbox.id)
    await node.sandboxes.hibernate_files(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.HIBERNATED)
    await settled(lambda: node.driver.leftovers() == [])
    with pytest.raises(ConflictError, match="without its memory"):
        await node.services.snapshots.create(OPERATOR, sandbox.id, name=None)

    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)
    assert len(applied) == 1
    assert not applied[0].exists()
    if process is not None:
        with pytest.raises(NotFoundError):
            await node.services.processes.get(OPERATOR, sandbox.id, process)


async def test_sandbox_without_memory_at_its_timeout_boots_with_its_files(node: MemoryNode, applied: list[Path]) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=50, on_timeout=OnTimeout.HIBERNATE_FILES))
    process = (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 1000")))).process
    node.clock.advance(51)
    await settled(lambda: is_in(sandbox, State.HIBERNATED))
    await settled(lambda: node.driver.leftovers() == [])

    with pytest.raises(NotFoundError):
        await node.services.processes.wait(OPERATOR, sandbox.id, process, timeout_s=0)
    assert is_in(sandbox, State.RUNNING)
    assert len(applied) == 1


async def test_sandbox_whose_files_cannot_be_written_at_its_timeout_is_paused(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pack(*_: object) -> int:
        raise LimitError("the disk is full", code=ErrorCode.NODE_DISK_FULL)

    monkeypatch.setattr(overlay, "pack_overlay", pack)
    sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, timeout_s=50, on_timeout=OnTimeout.HIBERNATE_FILES))
    node.clock.advance(51)
    await settled(lambda: is_in(sandbox, State.PAUSED))


async def test_sandbox_whose_files_cannot_be_written_keeps_running(node: MemoryNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pack(*_: object) -> int:
        raise LimitError("the disk is full", code=ErrorCode.NODE_DISK_FULL)

    monkeypatch.setattr(overlay, "pack_overlay", pack)
    with pytest.raises(LimitError, match="the disk is full"):
        await node.sandboxes.hibernate_files(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)
    assert (await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv("echo on")))).stdout.text() == "on\n"


async def test_failed_boot_keeps_the_files(node: MemoryNode, sandbox: Sandbox, applied: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    await node.sandboxes.hibernate_files(OPERATOR, sandbox.id)
    await settled(lambda: node.driver.leftovers() == [])
    with monkeypatch.context() as patched:
        patched.setattr(overlay, "apply_overlay", failing_apply)
        with pytest.raises(HostError, match="helper"):
            await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.HIBERNATED)
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.RUNNING)
    assert len(applied) == 1


async def failing_apply(*_: object) -> None:
    raise HostError("the helper failed")


@pytest.mark.parametrize("waking", [False, True])
async def test_sandbox_without_memory_stays_hibernated_over_a_restart_of_the_service(
    state: NodeState, applied: list[Path], monkeypatch: pytest.MonkeyPatch, *, waking: bool
) -> None:
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await node.sandboxes.hibernate_files(OPERATOR, sandbox.id)
        await settled(lambda: node.driver.leftovers() == [])
        if waking:  # the instance runs, and the service ends before all files are there
            reached = asyncio.Event()

            async def stuck(*_: object) -> None:
                reached.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patched:
                patched.setattr(overlay, "apply_overlay", stuck)
                resuming = asyncio.create_task(node.sandboxes.resume(OPERATOR, sandbox.id))
                await reached.wait()
                resuming.cancel()
    async with open_node(state) as node:
        again = node.internals.registry.find(sandbox.id, OPERATOR)
        await again.recovered.wait()
        assert is_in(again, State.HIBERNATED)
        await node.sandboxes.resume(OPERATOR, sandbox.id)
        assert len(applied) == 1
