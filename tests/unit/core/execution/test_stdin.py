"""Standard input: by several clients, in pieces, each byte once, also after a restart of the service."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.sandbox import Sandbox
from sandlot.core.service import Core
from sandlot.link.processes import ProcessRequests
from sandlot.link.types import Output, ProcessInfo
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.ids import ProcessId
from sandlot.model.specs import ProcessSpec, shell_argv
from sandlot.protocol.schema import STDOUT
from tests.support.node import Node, settled
from tests.support.service import Bench, pieces


async def test_repeated_write_is_done_once(at: Bench, sandbox: Sandbox) -> None:
    id_ = await cat(at.core, sandbox)
    for _ in range(3):
        assert await at.core.stdin.write(sandbox, id_, pieces(b"on", b"ce"), offset=0) == 4
    assert await at.core.stdin.write(sandbox, id_, pieces(b"ce+mo", b"re"), offset=2) == 9, "what overlaps is left out"
    with pytest.raises(ConflictError) as missing:
        await at.core.stdin.write(sandbox, id_, pieces(b"late"), offset=100)
    assert missing.value.fields["stdin_bytes"] == 9
    assert await ending(at.core, sandbox, id_) == b"once+more"


async def test_input_can_be_written_after_a_restart_of_the_service(at: Bench, sandbox: Sandbox) -> None:
    id_ = await cat(at.core, sandbox)
    await at.core.stdin.write(sandbox, id_, pieces(b"before,"), offset=0)
    at.core.stdin.writers.of(sandbox).clear()  # a service that has just taken the sandbox over knows of no input
    assert await at.core.stdin.write(sandbox, id_, pieces(b"before,after"), offset=0) == 12
    assert await ending(at.core, sandbox, id_) == b"before,after"
    with pytest.raises(ConflictError):
        await at.core.stdin.write(sandbox, id_, pieces(b"late"))
    at.core.stdin.writers.of(sandbox).clear()
    with pytest.raises(ConflictError):
        await at.core.stdin.close(sandbox, id_)


async def test_write_waits_for_a_process_that_does_not_read_and_can_be_cancelled(at: Bench, sandbox: Sandbox) -> None:
    id_, _ = await at.core.processes.launch(sandbox, ProcessSpec(shell_argv("sleep 4331; wc -c"), stdin=True, timeout_s=None))
    writing = asyncio.create_task(at.core.stdin.write(sandbox, id_, pieces(b"x" * 1_000_000)))
    await asyncio.sleep(0.3)
    assert not writing.done()
    assert (await at.core.processes.run(sandbox, ProcessSpec(("true",)))).outcome.exit_code == 0, "nobody else waits"
    writing.cancel()
    await asyncio.wait({writing})
    come = (await at.core.processes.get(sandbox, id_)).stdin_bytes
    assert 0 < come < 1_000_000
    await at.core.processes.signal(sandbox, id_, 9)


@pytest.mark.real_guest
async def test_write_to_an_ended_process_is_refused(at: Bench, sandbox: Sandbox) -> None:
    id_, _ = await at.core.processes.launch(sandbox, ProcessSpec(shell_argv("head -c 3"), stdin=True, timeout_s=None))
    with pytest.raises(ConflictError):
        await at.core.stdin.write(sandbox, id_, pieces(b"x" * 1_000_000))
    with pytest.raises(NotFoundError):
        await at.core.stdin.write(sandbox, "0" * 32, pieces(b"x"))


async def test_write_is_confirmed_although_the_sandbox_is_busy(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = await cat(at.core, sandbox)
    await at.core.stdin.write(sandbox, id_, pieces(b"a"))
    get, calls = ProcessRequests.get, 0

    async def busy(processes: ProcessRequests, id: ProcessId) -> ProcessInfo:  # noqa: A002 - the word
        nonlocal calls
        calls += 1
        if calls < 3:
            raise UnavailableError("full", code=ErrorCode.BUSY)
        return await get(processes, id)

    monkeypatch.setattr(ProcessRequests, "get", busy)
    assert await at.core.stdin.write(sandbox, id_, pieces(b"b")) == 2
    assert calls >= 3


async def test_input_of_a_cancelled_task_leaves_the_budget(node: Node) -> None:
    sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
    async with sandbox.connection() as link:
        call = await link.processes.start(ProcessSpec(("cat",), stdin=True, timeout_s=None))
    sandbox.buffers.take(5)

    feeding = node.core.stdin.feed(sandbox, call, b"hello")
    feeding.cancel()
    await asyncio.wait({feeding})

    await settled(lambda: sandbox.buffers.taken_bytes == 0)
    await call.aclose()


async def test_unconfirmed_write_ends_with_its_sandbox(node: Node) -> None:
    sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
    id_ = await cat(node.core, sandbox)
    await node.core.stdin.write(sandbox, id_, pieces(b"a"))
    guest = node.guest(sandbox)
    confirmations = len(guest.requests("process.get"))
    guest.drop_next("process.get")
    writing = asyncio.create_task(node.core.stdin.write(sandbox, id_, pieces(b"b")))
    await settled(lambda: len(guest.requests("process.get")) > confirmations)

    await node.sandboxes.kill(sandbox.id, OPERATOR)

    await settled(writing.done)
    with pytest.raises(SandboxEndedError):
        await writing


async def cat(core: Core, sandbox: Sandbox) -> ProcessId:
    id_, _ = await core.processes.launch(sandbox, ProcessSpec(("cat",), stdin=True, timeout_s=None))
    return id_


async def ending(core: Core, sandbox: Sandbox, id_: str) -> bytes:
    """Close its input; all that it wrote."""
    await core.stdin.close(sandbox, id_)
    run = await core.processes.follow(sandbox, id_, stdout_from=0, stderr_from=0)
    try:
        return b"".join([event.data async for event in run if isinstance(event, Output) and event.channel == STDOUT])
    finally:
        await run.detach()
