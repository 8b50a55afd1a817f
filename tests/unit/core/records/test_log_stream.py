"""Output of executions: read in order, also while they run, and followed to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from sandlot.core import history
from sandlot.core.node import Node
from sandlot.core.records import log_stream
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.log_stream import LogFollower
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, OwnerId
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import UnavailableError
from sandlot.model.executions import Output, OutputGap
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import NodeId, new_process_id, new_sandbox_id
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import MIB, ProcessSpec, SandboxSpec, TemplateRef, shell_argv
from tests.support.clock import ManualClock
from tests.support.service import Bench
from tests.support.until import until

BOTH = LOG_CHANNELS["both"]


@pytest.fixture
def execution_log(at: Bench) -> ExecutionLog:
    return at.service.internals.execution_log


@pytest.fixture
async def still(clock: ManualClock) -> Sandbox:
    """A sandbox of which only its id and its state matter."""
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template=TemplateRef(LOCAL, "base"))
    return Sandbox(spec, owner=OwnerId("0123456789ab"), name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)


async def run(node: Node, sandbox: Sandbox, command: str, clock: ManualClock) -> None:
    await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=shell_argv(command), timeout_s=20))
    clock.advance(0.001)


class Followed:
    """Items that a follower has received."""

    def __init__(self, told: AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]) -> None:
        self.items: list[LogEntry | LogOutput | LogGap | LogEnd] = []
        self.task = asyncio.create_task(self._take(told))

    async def _take(self, told: AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]) -> None:
        async for item in told:
            self.items.append(item)

    def text(self, channel: int = 1) -> str:
        return "".join(item.text for item in self.items if isinstance(item, LogEntry | LogOutput) and item.channel == channel)


async def test_one_read_is_limited(at: Bench, sandbox: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await run(at.node, sandbox, f"echo {number}", clock)
    monkeypatch.setattr(history, "EXECUTIONS_PAGE", 2)
    assert [entry.text for entry in (await at.node.history.logs(OPERATOR, sandbox.id, BOTH)).items] == [f"{number}\n" for number in range(5)]
    monkeypatch.setattr(history, "MAX_CHARS", 5)
    page = await at.node.history.logs(OPERATOR, sandbox.id, BOTH)
    assert ([entry.text for entry in page.items], page.more) == (["3\n", "4\n"], True)
    monkeypatch.setattr(history, "MAX_CHARS", 1000)
    monkeypatch.setattr(history, "MAX_LOG_EXECUTIONS", 3)
    page = await at.node.history.logs(OPERATOR, sandbox.id, BOTH)
    assert (len(page.items), page.more) == (4, True)


async def test_follower_gets_each_byte_once(at: Bench, sandbox: Sandbox, execution_log: ExecutionLog, clock: ManualClock) -> None:
    await run(at.node, sandbox, "echo before", clock)
    process = await at.node.processes.start(sandbox, ProcessSpec(argv=("/bin/cat",), stdin=True))
    pieces = aiter(process)
    await process.call.write(b"half a ")
    await anext(pieces)
    followed = Followed(await at.node.history.follow_logs(OPERATOR, sandbox.id, BOTH))
    await until(lambda: followed.text() == "before\nhalf a ")
    await process.call.write(b"line \xc3")
    await anext(pieces)
    await process.call.write(b"\xa4\n")
    await anext(pieces)
    await until(lambda: followed.text() == "before\nhalf a line ä\n")
    process.call.close_stdin()
    async for _ in pieces:
        pass
    await process.outcome()
    await process.close()
    await run(at.node, sandbox, "echo after; echo bad >&2", clock)
    await until(lambda: followed.text() == "before\nhalf a line ä\nafter\n")
    await until(lambda: followed.text(2) == "bad\n")
    await until(lambda: sum(isinstance(item, LogEnd) for item in followed.items) == 2)
    sandbox.request_end(Exit(ExitReason.KILLED, "a test"))
    await followed.task
    assert not execution_log.listeners


def has_end(followed: Followed) -> bool:
    return any(isinstance(item, LogEnd) for item in followed.items)


async def test_follower_that_arrives_inside_a_character_gets_it_whole(at: Bench, sandbox: Sandbox, execution_log: ExecutionLog) -> None:
    for first, rest in ((b"\xe2", b"\x98\x95"), (b"a\xf0\x9f\x98", b"\x80"), (b"a" * 100_000 + b"\xe2\x98", b"\x95")):
        entry = execution_log.begin(sandbox, new_process_id(), argv=["x"])
        entry.add(Output(1, 0, first))
        assert all("\ufffd" not in each.text for each in (await at.node.history.logs(OPERATOR, sandbox.id, BOTH)).items)
        followed = Followed(await at.node.history.follow_logs(OPERATOR, sandbox.id, BOTH))
        await until(lambda: bool(execution_log.listeners))
        await asyncio.sleep(0)
        entry.add(Output(1, len(first), rest))
        entry.end("exited", exit_code=0)
        await until(partial(has_end, followed))
        assert followed.text().endswith((first + rest)[-8:].decode().lstrip("a"))
        assert "\ufffd" not in followed.text()
        followed.task.cancel()
        await asyncio.wait([followed.task])


@pytest.mark.real_guest
async def test_output_of_a_background_process_appears_at_its_end(at: Bench, sandbox: Sandbox) -> None:
    followed = Followed(await at.node.history.follow_logs(OPERATOR, sandbox.id, BOTH))
    process = await at.node.processes.start(sandbox, ProcessSpec(argv=shell_argv("echo seen; read line; echo $line"), stdin=True))
    await anext(aiter(process))
    await until(lambda: followed.text() == "seen\n")
    await process.call.write(b"unseen\n")
    await process.detach()  # its output is read again, from the beginning
    await until(lambda: followed.text() == "seen\nunseen\n")
    followed.task.cancel()


async def test_slow_follower_gets_the_number_of_lost_bytes(
    at: Bench, sandbox: Sandbox, execution_log: ExecutionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "MAX_WAITING_BYTES", 10)
    told = await at.node.history.follow_logs(OPERATOR, sandbox.id, BOTH)
    follower = asyncio.ensure_future(anext(told))
    await until(lambda: bool(execution_log.listeners))
    entry = execution_log.begin(sandbox, new_process_id(), argv=["x"])
    for offset in range(0, 30, 5):
        entry.add(Output(1, offset, b"12345"))
    entry.add(OutputGap(1, 7, 30))
    entry.end("exited", exit_code=0)
    assert isinstance(first := await follower, LogOutput)
    rest = [await anext(told) for _ in range(2)]
    assert isinstance(gap := rest[0], LogGap)
    assert (len(first.text) + gap.bytes, rest[1]) == (37, LogEnd(entry.id))
    await told.aclose()


async def test_waiting_output_counts_against_the_buffer_budget(still: Sandbox, execution_log: ExecutionLog) -> None:
    follower = LogFollower(execution_log, still)
    entry = execution_log.begin(still, new_process_id(), argv=["x"])
    entry.add(Output(1, 0, bytes(1000)))
    held = still.buffers.taken_bytes
    assert held >= 1000
    entry.add(Output(1, 1000, bytes(MIB)))  # more than there is for one
    assert still.buffers.taken_bytes < held + 1000
    assert [type(piece.event) for piece in follower.take()] == [Output, OutputGap]
    assert still.buffers.taken_bytes == 0
    entry.add(Output(1, 1000 + MIB, b"x"))
    follower.close()
    follower.close()
    entry.add(Output(1, 1001 + MIB, b"x"))
    assert still.buffers.taken_bytes == 0


async def test_follower_gets_an_error_when_the_service_stops(
    at: Bench, still: Sandbox, execution_log: ExecutionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(*_: object) -> Sandbox:
        return still

    monkeypatch.setattr(at.service.internals.registry, "load", load)
    followed = Followed(await at.node.history.follow_logs(OPERATOR, still.id, BOTH))
    await until(lambda: bool(execution_log.listeners))
    still.detaching.set()
    with pytest.raises(UnavailableError):
        await followed.task
