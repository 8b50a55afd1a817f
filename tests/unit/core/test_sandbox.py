"""Sandboxes: errors of calls that are cut off or refused, and the state of features."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ports import ExitReason
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.protocol.stream_table import HOST_STREAMS_MAX
from tests.support.node import MemoryNode, settled

TURNS = 100
"""Turns of the event loop in which a call that does not wait would have failed."""


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    return sandbox


async def test_call_that_is_cut_off_reports_the_drivers_reason(node: MemoryNode, sandbox: Sandbox) -> None:
    guest = node.guest(sandbox)
    guest.drop_next("process.list")
    call = asyncio.create_task(node.services.processes.list(OPERATOR, sandbox.id))
    await settled(lambda: bool(guest.requests("process.list")))

    guest.break_link()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    node.instance(sandbox).crash(ExitReason.OOM, "status 137")

    with pytest.raises(SandboxEndedError) as failed:
        await call
    assert (failed.value.fields["reason"], failed.value.fields["detail"]) == ("oom", "status 137")


async def test_call_beyond_the_limit_of_a_link_fails_as_busy(node: MemoryNode, sandbox: Sandbox) -> None:
    guest = node.guest(sandbox)
    for _ in range(HOST_STREAMS_MAX):
        guest.drop_next("process.list")
    calls = [asyncio.create_task(node.services.processes.list(OPERATOR, sandbox.id)) for _ in range(HOST_STREAMS_MAX)]
    await settled(lambda: len(guest.requests("process.list")) == HOST_STREAMS_MAX)

    with pytest.raises(UnavailableError) as refused:
        await node.services.processes.list(OPERATOR, sandbox.id)
    assert refused.value.code is ErrorCode.BUSY

    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


def recording(closed: list[object]) -> SandboxLocal[object]:
    return SandboxLocal(lambda _: object(), closed.append)


async def test_state_of_a_feature_is_created_once_and_closed_when_the_sandbox_is_removed(node: MemoryNode, sandbox: Sandbox) -> None:
    closed: list[object] = []
    local = recording(closed)
    assert local.get(sandbox) is None

    state = local.of(sandbox)
    assert local.of(sandbox) is local.get(sandbox) is state
    await node.sandboxes.kill(OPERATOR, sandbox.id)
    await settled(lambda: bool(closed))

    assert closed == [state]
    assert local.get(sandbox) is None


async def test_removed_sandbox_gets_no_new_state(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.kill(OPERATOR, sandbox.id)
    await settled(lambda: sandbox.is_removed)

    with pytest.raises(SandboxEndedError):
        recording([]).of(sandbox)
