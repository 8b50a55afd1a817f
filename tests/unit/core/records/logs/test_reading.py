"""What runs wrote: read back in order, also while they go on, and followed to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandlot.core.node.budget import Budget
from sandlot.core.records.executions import Journal
from sandlot.core.records.logs import reading, tails
from sandlot.core.records.logs.reading import Entry, Missed, Over, Wrote
from sandlot.core.runs import processes
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import Lost, Output
from sandlot.model.access import OPERATOR, OwnerId
from sandlot.model.errors import UnavailableError
from sandlot.model.ids import NodeId, new_process_id, new_sandbox_id
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import MIB, ProcessSpec, SandboxSpec, shell_argv
from tests.support.clock import ManualClock
from tests.support.service import Bench
from tests.support.until import until

BOTH = reading.CHANNELS["both"]


@pytest.fixture
def journal(at: Bench) -> Journal:
    return at.service.core.executions


@pytest.fixture
async def still(clock: ManualClock) -> Sandbox:
    """A sandbox of which only its id and its state matter."""
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template="base")
    return Sandbox(spec, owner=OwnerId("0123456789ab"), name=None, created_at=clock.now(), budget=Budget(MIB), clock=clock)


async def run(box: Sandbox, command: str, clock: ManualClock) -> None:
    await processes.run(box, ProcessSpec(argv=shell_argv(command), timeout_s=20))
    clock.advance(0.001)


class Followed:
    """What one who follows has been told."""

    def __init__(self, told: AsyncIterator[Entry | Wrote | Missed | Over]) -> None:
        self.items: list[Entry | Wrote | Missed | Over] = []
        self.task = asyncio.create_task(self._take(told))

    async def _take(self, told: AsyncIterator[Entry | Wrote | Missed | Over]) -> None:
        async for item in told:
            self.items.append(item)

    def text(self, channel: int = 1) -> str:
        return "".join(item.text for item in self.items if isinstance(item, Entry | Wrote) and item.channel == channel)


async def test_what_is_told_at_once_is_bounded(box: Sandbox, journal: Journal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await run(box, f"echo {number}", clock)
    monkeypatch.setattr(reading, "PAGE", 2)
    assert [entry.text for entry in (await reading.read(journal, box, OPERATOR, BOTH))[0]] == [f"{number}\n" for number in range(5)]
    monkeypatch.setattr(reading, "MOST_CHARS", 5)
    entries, more = await reading.read(journal, box, OPERATOR, BOTH)
    assert ([entry.text for entry in entries], more) == (["3\n", "4\n"], True)
    monkeypatch.setattr(reading, "MOST_CHARS", 1000)
    monkeypatch.setattr(reading, "MOST_RUNS", 3)
    entries, more = await reading.read(journal, box, OPERATOR, BOTH)
    assert (len(entries), more) == (4, True)


async def test_who_follows_is_told_each_byte_once(box: Sandbox, journal: Journal, clock: ManualClock) -> None:
    await run(box, "echo before", clock)
    process = await processes.start(box, ProcessSpec(argv=("/bin/cat",), stdin=True))
    pieces = aiter(process)
    await process.type(b"half a ")
    await anext(pieces)
    followed = Followed(reading.follow(journal, box, OPERATOR, BOTH))
    await until(lambda: followed.text() == "before\nhalf a ")
    await process.type(b"line \xc3")
    await anext(pieces)
    await process.type(b"\xa4\n")
    await anext(pieces)
    await until(lambda: followed.text() == "before\nhalf a line ä\n")
    process.end_input()
    async for _ in pieces:
        pass
    await process.outcome()
    await process.close()
    await run(box, "echo after; echo bad >&2", clock)
    await until(lambda: followed.text() == "before\nhalf a line ä\nafter\n")
    await until(lambda: followed.text(2) == "bad\n")
    await until(lambda: sum(isinstance(item, Over) for item in followed.items) == 2)
    box.end(Exit(ExitReason.KILLED, "a test"))
    await followed.task
    assert not journal.tails.followed


@pytest.mark.real_guest
async def test_a_process_in_the_background_is_told_once_it_has_ended(box: Sandbox, journal: Journal) -> None:
    followed = Followed(reading.follow(journal, box, OPERATOR, BOTH))
    process = await processes.start(box, ProcessSpec(argv=shell_argv("echo seen; read line; echo $line"), stdin=True))
    await anext(aiter(process))
    await until(lambda: followed.text() == "seen\n")
    await process.type(b"unseen\n")
    await process.detach()  # its output is read again, from the beginning
    await until(lambda: followed.text() == "seen\nunseen\n")
    followed.task.cancel()


async def test_who_is_too_slow_is_told_how_much_was_lost(box: Sandbox, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MOST_BYTES", 10)
    told = reading.follow(journal, box, OPERATOR, BOTH)
    follower = asyncio.ensure_future(anext(told))
    await until(lambda: journal.tails.followed)
    line = journal.command(box, new_process_id(), ["x"])
    for offset in range(0, 30, 5):
        line.add(Output(1, offset, b"12345"))
    line.add(Lost(1, 7, 30))
    line.end("exited", exit_code=0)
    assert isinstance(first := await follower, Wrote)
    rest = [await anext(told) for _ in range(2)]
    assert isinstance(gap := rest[0], Missed)
    assert (len(first.text) + gap.bytes, rest[1]) == (37, Over(line.id))
    await told.aclose()  # type: ignore[attr-defined]


async def test_what_waits_for_one_who_follows_is_counted(still: Sandbox, journal: Journal) -> None:
    tail = journal.tails.follow(still.id, still.budget)
    line = journal.command(still, new_process_id(), ["x"])
    line.add(Output(1, 0, bytes(1000)))
    held = still.budget.taken_bytes
    assert held >= 1000
    line.add(Output(1, 1000, bytes(MIB)))  # more than there is for one
    assert still.budget.taken_bytes < held + 1000
    assert [type(piece.event) for piece in tail.take()] == [Output, Lost]
    assert still.budget.taken_bytes == 0
    line.add(Output(1, 1000 + MIB, b"x"))
    tail.close()
    tail.close()
    line.add(Output(1, 1001 + MIB, b"x"))
    assert still.budget.taken_bytes == 0


async def test_a_service_that_leaves_says_so(still: Sandbox, journal: Journal) -> None:
    followed = Followed(reading.follow(journal, still, OPERATOR, BOTH))
    await until(lambda: journal.tails.followed)
    still.leaving.set()
    with pytest.raises(UnavailableError):
        await followed.task
