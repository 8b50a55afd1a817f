"""Errors of calls to a sandbox: cut off by its end, or refused because too many are under way."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.execution import processes
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, SandboxEndedError, UnavailableError
from sandlot.model.ports import ExitReason
from sandlot.protocol.table import HOST_STREAMS_MAX
from tests.support.node import Node, settled

TURNS = 100
"""Turns of the event loop in which a call that does not wait would have failed."""


@pytest.fixture
async def sandbox(node: Node) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
    return sandbox


async def test_call_that_is_cut_off_reports_the_drivers_reason(node: Node, sandbox: Sandbox) -> None:
    guest = node.guest(sandbox)
    guest.drop_next("process.list")
    call = asyncio.create_task(processes.listing(sandbox))
    await settled(lambda: bool(guest.requests("process.list")))

    guest.break_link()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    node.instance(sandbox).crash(ExitReason.OOM, "status 137")

    with pytest.raises(SandboxEndedError) as failed:
        await call
    assert (failed.value.fields["reason"], failed.value.fields["detail"]) == ("oom", "status 137")


async def test_call_beyond_the_limit_of_a_link_fails_as_busy(node: Node, sandbox: Sandbox) -> None:
    guest = node.guest(sandbox)
    for _ in range(HOST_STREAMS_MAX):
        guest.drop_next("process.list")
    calls = [asyncio.create_task(processes.listing(sandbox)) for _ in range(HOST_STREAMS_MAX)]
    await settled(lambda: len(guest.requests("process.list")) == HOST_STREAMS_MAX)

    with pytest.raises(UnavailableError) as refused:
        await processes.listing(sandbox)
    assert refused.value.code is ErrorCode.BUSY

    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
