"""Standard input: by several clients, in pieces, each byte once, also after a restart of the service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.executions import Output
from sandlot.model.ids import ProcessId
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import ProcessSpec, shell_argv
from sandlot.protocol import schema
from sandlot.protocol.schema import STDOUT
from sandlot.protocol.streams import WINDOW_BYTES
from sandlot.testing.memory.guest import MemoryGuest
from tests.support.node import MemoryNode, NodeState, open_node, settled
from tests.support.service import Bench, pieces


async def test_repeated_write_is_done_once(at: Bench, sandbox: Sandbox) -> None:
    id_ = await cat(at.node, sandbox)
    for _ in range(3):
        assert await at.service.internals.stdin.write(sandbox, id_, pieces(b"on", b"ce"), offset=0) == 4
    assert await at.service.internals.stdin.write(sandbox, id_, pieces(b"ce+mo", b"re"), offset=2) == 9, "what overlaps is left out"
    with pytest.raises(ConflictError) as missing:
        await at.service.internals.stdin.write(sandbox, id_, pieces(b"late"), offset=100)
    assert missing.value.fields["stdin_bytes"] == 9
    assert await ending(at.node, sandbox, id_) == b"once+more"


async def test_input_can_be_written_after_a_restart_of_the_service(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        id_ = await cat(node.services, sandbox)
        await node.internals.stdin.write(sandbox, id_, pieces(b"before,"), offset=0)
    async with open_node(state) as node:
        sandbox = node.sandboxes.find(sandbox.id, OPERATOR)
        assert await node.internals.stdin.write(sandbox, id_, pieces(b"before,after"), offset=0) == 12
        assert await ending(node.services, sandbox, id_) == b"before,after"
        with pytest.raises(ConflictError):
            await node.internals.stdin.write(sandbox, id_, pieces(b"late"))
        with pytest.raises(ConflictError):
            await node.internals.stdin.close(sandbox, id_)


async def test_no_request_is_sent_while_a_process_does_not_read(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    id_ = (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 60; wc -c"), stdin=True, timeout_s=None))).process
    guest = node.guest(sandbox)
    await settled(lambda: bool(guest.requests("process.wait")))
    before = requests(guest)
    writing = asyncio.create_task(node.internals.stdin.write(sandbox, id_, pieces(b"x" * 300_000)))
    await settled(lambda: received(guest, id_) == WINDOW_BYTES)
    waiting = requests(guest)
    assert not writing.done()

    node.state.clock.advance(60)

    assert await writing == 300_000
    assert (waiting - before, requests(guest) - before) == (1, 1), "the call that carries the input"
    assert guest.requests("process.get") == []
    assert await ending(node.services, sandbox, id_) == b"300000\n"


async def test_write_is_confirmed_although_the_output_is_not_read(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    run = await node.services.processes.start(sandbox, ProcessSpec(shell_argv("seq 1 1000000; cat"), stdin=True, timeout_s=None))

    writing = asyncio.create_task(node.internals.stdin.write(sandbox, run.id, pieces(b"x")))

    await settled(writing.done)
    assert writing.result() == 1
    await run.close()


@pytest.mark.parametrize("end", ["kill", "close"])
async def test_write_that_waits_ends_when_the_input_is_closed(node: MemoryNode, end: str) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    id_ = (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(("sleep", "1000"), stdin=True, timeout_s=None))).process
    guest = node.guest(sandbox)
    writing = asyncio.create_task(node.internals.stdin.write(sandbox, id_, pieces(b"x" * 300_000)))
    await settled(lambda: received(guest, id_) == WINDOW_BYTES)

    if end == "kill":
        await node.services.processes.signal(OPERATOR, sandbox.id, id_, 9)
    else:
        async with sandbox.connection() as link:
            (await link.processes.open_input(ProcessId(id_))).close_stdin()

    await settled(writing.done)
    with pytest.raises(ConflictError):
        await writing


async def test_write_waits_for_a_process_that_does_not_read_and_can_be_cancelled(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 4331; wc -c"), stdin=True, timeout_s=None))).process
    writing = asyncio.create_task(at.service.internals.stdin.write(sandbox, id_, pieces(b"x" * 1_000_000)))
    await asyncio.sleep(0.3)
    assert not writing.done()
    assert (await at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("true",)))).outcome.exit_code == 0, "nobody else waits"
    writing.cancel()
    await asyncio.wait({writing})
    come = (await at.node.processes.get(OPERATOR, sandbox.id, id_)).stdin_bytes
    assert 0 < come < 1_000_000
    await at.node.processes.signal(OPERATOR, sandbox.id, id_, 9)


@pytest.mark.real_guest
async def test_write_to_an_ended_process_is_refused(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("head -c 3"), stdin=True, timeout_s=None))).process
    with pytest.raises(ConflictError):
        await at.service.internals.stdin.write(sandbox, id_, pieces(b"x" * 1_000_000))
    with pytest.raises(NotFoundError):
        await at.service.internals.stdin.write(sandbox, "0" * 32, pieces(b"x"))


async def test_write_refused_as_busy_has_written_nothing(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    id_ = await cat(node.services, sandbox)
    node.guest(sandbox).fail_next("process.input", "busy")
    with pytest.raises(UnavailableError):
        await node.internals.stdin.write(sandbox, id_, pieces(b"a"))
    assert await node.internals.stdin.write(sandbox, id_, pieces(b"a")) == 1


async def test_cancelled_write_makes_room_for_the_next(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    id_ = (await node.services.processes.launch(OPERATOR, sandbox.id, ProcessSpec(shell_argv("sleep 60; wc -c"), stdin=True, timeout_s=None))).process
    guest = node.guest(sandbox)
    first = asyncio.create_task(node.internals.stdin.write(sandbox, id_, pieces(b"x" * 1_000_000)))
    await settled(lambda: received(guest, id_) == WINDOW_BYTES)
    second = asyncio.create_task(node.internals.stdin.write(sandbox, id_, pieces(b"y")))
    first.cancel()
    await asyncio.wait({first})

    await settled(second.done)

    assert second.result() == WINDOW_BYTES + 1, "what was not sent is dropped"


async def test_input_of_a_cancelled_task_leaves_the_budget(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    async with sandbox.connection() as link:
        call = await link.processes.start(ProcessSpec(("cat",), stdin=True, timeout_s=None))
    sandbox.buffers.take(5)

    feeding = node.internals.stdin.feed(sandbox, call, b"hello")
    feeding.cancel()
    await asyncio.wait({feeding})

    await settled(lambda: sandbox.buffers.taken_bytes == 0)
    await call.aclose()


async def test_unconfirmed_write_ends_with_its_sandbox(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    id_ = await cat(node.services, sandbox)
    guest = node.guest(sandbox)
    guest.drop_next("process.input")
    writing = asyncio.create_task(node.internals.stdin.write(sandbox, id_, pieces(b"b")))
    await settled(lambda: bool(guest.requests("process.input")))

    await node.sandboxes.kill(OPERATOR, sandbox.id)

    await settled(writing.done)
    with pytest.raises(SandboxEndedError):
        await writing


def requests(guest: MemoryGuest) -> int:
    """Number of all calls that the guest has received."""
    return sum(len(guest.requests(name)) for name in schema.CALLS)


def received(guest: MemoryGuest, id_: str) -> int:
    """Number of input bytes that the guest has for a process."""
    stdin = guest.processes.by_id[id_].stdin
    return stdin.accepted if stdin is not None else 0


async def cat(node: Node, sandbox: Sandbox) -> ProcessId:
    return (await node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(("cat",), stdin=True, timeout_s=None))).process


async def ending(node: Node, sandbox: Sandbox, id_: str) -> bytes:
    """Close its input; all that it wrote."""
    await node.processes.close_stdin(OPERATOR, sandbox.id, id_)
    run = await node.processes.follow_in(sandbox, id_, stdout_from=0, stderr_from=0)
    try:
        return b"".join([event.data async for event in run if isinstance(event, Output) and event.channel == STDOUT])
    finally:
        await run.detach()
