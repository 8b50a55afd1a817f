"""Streams of processes, cells and terminals: their events in order, and what closing them causes."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.executions import (
    CellStarted,
    CodeAccepted,
    CodeEnded,
    CodeEvent,
    ExecutionOptions,
    Output,
    ProcessEnded,
    ProcessEvent,
    ProcessStarted,
)
from sandlot.model.ids import new_process_id
from sandlot.model.specs import CellSpec, ProcessSpec, shell_argv
from sandlot.model.streams import Stream
from tests.support.node import run_pending
from tests.support.service import Bench
from tests.support.until import until

SOMEBODY = Principal(OwnerId("somebody"), "somebody")
ENDLESS = ProcessSpec(("sleep", "1000"), timeout_s=None)


async def kinds(stream: Stream[ProcessEvent] | Stream[CodeEvent]) -> list[type]:
    return [type(event) async for event in stream]


async def test_stream_of_a_process_begins_with_its_id_and_ends_with_its_outcome(at: Bench, sandbox: Sandbox) -> None:
    stream = await at.node.processes.stream(OPERATOR, sandbox.id, ProcessSpec(shell_argv("echo hi; exit 3")))
    events = [event async for event in stream]
    await stream.aclose()
    assert [type(event) for event in events] == [ProcessStarted, Output, ProcessEnded]
    assert isinstance(events[-1], ProcessEnded)
    assert (events[-1].outcome.exit_code, events[-1].files) == (3, None)


async def test_stream_of_a_cell_begins_with_its_id_and_ends_with_its_status(at: Bench, sandbox: Sandbox) -> None:
    stream = await at.node.code.stream(OPERATOR, sandbox.id, CellSpec("print('hi')"))
    events = [event async for event in stream]
    await stream.aclose()
    assert [type(event) for event in events] == [CodeAccepted, CellStarted, Output, CodeEnded]
    assert isinstance(events[-1], CodeEnded)
    assert events[-1].status.status == "ok"


@pytest.mark.parametrize("chosen", [False, True])
async def test_closing_a_stream_ends_a_waiting_iteration(at: Bench, sandbox: Sandbox, chosen: bool) -> None:  # noqa: FBT001 - a parameter
    options = ExecutionOptions(id=new_process_id() if chosen else None)
    stream = await at.node.processes.stream(OPERATOR, sandbox.id, ENDLESS, options=options)
    started = await anext(stream)
    assert isinstance(started, ProcessStarted)
    waiting = asyncio.create_task(kinds(stream))
    await run_pending()
    await stream.aclose()
    await stream.aclose()
    assert await asyncio.wait_for(waiting, 5) == []
    if not chosen:
        outcome = await at.node.processes.wait(OPERATOR, sandbox.id, started.process, timeout_s=5)
        assert outcome is not None
        assert outcome.signal == 9


async def test_stream_that_keeps_its_process_running_leaves_it_when_closed(at: Bench, sandbox: Sandbox) -> None:
    stream = await at.node.processes.stream(OPERATOR, sandbox.id, ENDLESS, keeps_running=True)
    started = await anext(stream)
    assert isinstance(started, ProcessStarted)
    await stream.aclose()
    assert (await at.node.processes.get(OPERATOR, sandbox.id, started.process)).running
    await at.node.processes.signal(OPERATOR, sandbox.id, started.process, 9)


async def test_closing_the_stream_of_a_follower_leaves_the_cell_alone(at: Bench, sandbox: Sandbox) -> None:
    execution = await at.node.code.launch(OPERATOR, sandbox.id, CellSpec("import time; time.sleep(1000)", timeout_s=None))
    stream = await at.node.code.follow(OPERATOR, sandbox.id, execution)
    assert await anext(stream) == CodeAccepted(execution)
    waiting = asyncio.create_task(kinds(stream))
    await run_pending()
    await stream.aclose()
    assert await asyncio.wait_for(waiting, 5) in ([], [CellStarted])
    assert (await at.node.code.read(OPERATOR, sandbox.id, execution)).outcome.status == "running"

    async def is_interrupted() -> bool:
        return await at.node.code.interrupt(OPERATOR, sandbox.id, execution)

    await until(is_interrupted)


async def test_sandbox_of_another_owner_is_not_found(at: Bench, sandbox: Sandbox) -> None:
    node = at.node
    with pytest.raises(NotFoundError):
        await node.processes.run(SOMEBODY, sandbox.id, ENDLESS)
    with pytest.raises(NotFoundError):
        await node.code.stream(SOMEBODY, sandbox.id, CellSpec("1"))
    with pytest.raises(NotFoundError):
        await node.contexts.list(SOMEBODY, sandbox.id)
    with pytest.raises(NotFoundError):
        await node.terminals.connect(SOMEBODY, sandbox.id, new_process_id())


async def test_equal_requests_with_one_key_share_a_cell_and_other_requests_do_not(at: Bench, sandbox: Sandbox) -> None:
    cell = CellSpec("print('once')")
    first, second = [await at.node.code.run(OPERATOR, sandbox.id, cell, idempotency_key="k") for _ in range(2)]
    other = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("print('other')"), idempotency_key="k")
    assert first.outcome == second.outcome
    assert other.outcome.execution != first.outcome.execution
