"""Pauses of sandboxes with sparse disks on a host whose disk is almost full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.lifecycle import suspend
from sandlot.core.lifecycle.disk_guard import MAX_PAUSE_S
from sandlot.core.resources import drivers
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, HostError, TimeoutExceededError, UnavailableError
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, ProcessSpec, shell_argv
from sandlot.model.states import State
from tests.support.node import ENDLESS_HOST, MemoryNode, NodeState, open_node, run_pending, settled

BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))
RESERVE, ROOM = 4 * GIB, 64 * GIB
"""Default reserve of a large host; free space that is enough for everything."""


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    made = NodeState(tmp_path)
    made.driver.has_sparse_disks = True
    return made


async def look(node: MemoryNode, free_bytes: int) -> None:
    """Let the disk have this much free space, and wait until the guard has looked at it."""
    node.state.host = replace(ENDLESS_HOST, free=replace(ENDLESS_HOST.free, disk_bytes=free_bytes))
    await node.clock.pass_s(2 * MAX_PAUSE_S, MAX_PAUSE_S)
    await run_pending()


def is_in(sandbox: Sandbox, state: State) -> bool:
    return sandbox.state is state


async def echo(node: MemoryNode, sandbox: Sandbox) -> str:
    return (await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(shell_argv("echo on")))).stdout.text()


async def reasons(node: MemoryNode, sandbox: Sandbox) -> list[tuple[str, object]]:
    page = await node.store.events.page(owner=None, sandbox=sandbox.id, after=0, limit=20)
    return [(each.event.type, each.event.data.get("reason")) for each in page if each.event.type != "sandbox.created"]


async def test_sandbox_is_paused_at_the_reserve_and_resumed_when_there_is_room(state: NodeState) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, RESERVE)
        assert is_in(sandbox, State.RUNNING)
        await look(node, RESERVE - 1)
        assert (sandbox.state, node.instance(sandbox).is_paused) == (State.PAUSED, True)
        await look(node, RESERVE)
        assert is_in(sandbox, State.PAUSED), "a little room is used up at once"
        await look(node, RESERVE + RESERVE // 8)
        assert (sandbox.state, node.instance(sandbox).is_paused) == (State.RUNNING, False)
        assert await echo(node, sandbox) == "on\n"
        assert await reasons(node, sandbox) == [("sandbox.paused", "disk"), ("sandbox.resumed", "disk")]


async def test_sandbox_whose_guest_does_not_respond_is_paused(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend, "UNWILLING_TIMEOUT_S", 0.01)
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        node.guest(sandbox).is_silent = True
        await look(node, 0)
        await settled(lambda: sandbox.state is State.PAUSED)
        assert node.instance(sandbox).is_paused
        await look(node, ROOM)
        await node.sandboxes.kill(OPERATOR, sandbox.id)


async def test_sandbox_whose_guest_does_not_respond_stays_paused_at_a_resume(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await node.sandboxes.pause(OPERATOR, sandbox.id)
        node.guest(sandbox).is_silent = True
        monkeypatch.setattr(suspend, "UNWILLING_TIMEOUT_S", 0.01)
        monkeypatch.setattr(drivers, "STEP_TIMEOUT_S", 0.5)  # the steps of the driver end within this time on a busy machine
        with pytest.raises(TimeoutExceededError):
            await node.sandboxes.resume(OPERATOR, sandbox.id)
        assert (sandbox.state, node.instance(sandbox).is_paused) == (State.PAUSED, True)
        await node.sandboxes.kill(OPERATOR, sandbox.id)


async def test_sandbox_is_paused_although_the_database_is_on_the_full_disk(state: NodeState) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        state.database.faults.disk_full = True
        await look(node, 0)
        assert (sandbox.state, node.instance(sandbox).is_paused) == (State.PAUSED, True)
        state.database.faults.disk_full = False
        await look(node, ROOM)
        assert is_in(sandbox, State.RUNNING)


async def test_no_request_resumes_a_sandbox_that_waits_for_the_disk(state: NodeState) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, 0)
        for call in (node.sandboxes.resume(OPERATOR, sandbox.id), echo(node, sandbox)):
            with pytest.raises(UnavailableError) as busy:
                await call
            assert busy.value.code is ErrorCode.BUSY
            assert busy.value.fields["retry_after_s"] > 0
        assert is_in(sandbox, State.PAUSED)
        await node.sandboxes.kill(OPERATOR, sandbox.id)


async def test_sandbox_with_an_allocated_disk_is_not_paused(state: NodeState) -> None:
    state.driver.has_sparse_disks = False
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, 0)
        assert is_in(sandbox, State.RUNNING)


async def test_sandbox_that_its_owner_paused_stays_paused(state: NodeState) -> None:
    async with open_node(state) as node:
        before, meanwhile = [await node.sandboxes.create(OPERATOR, BASE) for _ in range(2)]
        await node.sandboxes.pause(OPERATOR, before.id)
        await look(node, 0)
        await node.sandboxes.pause(OPERATOR, meanwhile.id)
        await look(node, ROOM)
        assert [before.state, meanwhile.state] == [State.PAUSED, State.PAUSED]
        assert await echo(node, meanwhile) == "on\n", "a request resumes the sandbox as usual"


async def test_sandbox_that_its_owner_hibernated_stays_hibernated(state: NodeState) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, RESERVE - 1)
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        await look(node, ROOM)
        assert is_in(sandbox, State.HIBERNATED)
        assert await echo(node, sandbox) == "on\n"


async def test_failed_hibernation_leaves_the_sandbox_waiting_for_the_disk(state: NodeState) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, RESERVE - 1)
        node.driver.fail_next("snapshot", HostError("no room"))
        with pytest.raises(HostError, match="no room"):
            await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        assert is_in(sandbox, State.PAUSED)
        await look(node, ROOM)
        assert is_in(sandbox, State.RUNNING)


async def test_next_service_resumes_what_a_killed_service_had_paused(state: NodeState) -> None:
    async with open_node(state, keep_sandboxes=True) as node:
        waiting, paused = [await node.sandboxes.create(OPERATOR, BASE) for _ in range(2)]
        await node.sandboxes.pause(OPERATOR, paused.id)
        await look(node, 0)
    async with open_node(state) as node:
        found = [node.internals.registry.find(each.id, OPERATOR) for each in (waiting, paused)]
        for each in found:
            await each.recovered.wait()
        await look(node, 0)
        assert [each.state for each in found] == [State.PAUSED, State.PAUSED]
        await look(node, ROOM)
        assert [each.state for each in found] == [State.RUNNING, State.PAUSED]


@pytest.mark.parametrize("step", ["pause", "resume"])
async def test_failed_pause_or_resume_is_repeated(state: NodeState, step: str) -> None:
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        if step == "resume":
            await look(node, 0)
        node.driver.fail_next(step, OSError("no"))
        await look(node, 0 if step == "pause" else ROOM)
        await look(node, 0 if step == "pause" else ROOM)
        assert is_in(sandbox, State.PAUSED if step == "pause" else State.RUNNING)


async def test_driver_that_cannot_pause_is_left_alone(tmp_path: Path) -> None:
    state = NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.PAUSE})
    state.driver.has_sparse_disks = True
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await look(node, 0)
        assert is_in(sandbox, State.RUNNING)
        assert await echo(node, sandbox) == "on\n"
