"""The link is opened anew on a live sandbox, whatever the host before was doing when it went.

Without a service: driver and link directly. A host that died is one whose pipes were closed in the middle of everything, or, in
the last tests, a process of its own that was killed by SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.link.client import Link
from sandlot.link.kernels import CellCall
from sandlot.link.processes import ProcessCall
from sandlot.link.types import CellResult
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, Output, OutputGap
from sandlot.model.ids import NodeId, ProcessId, new_node_id, new_process_id
from sandlot.model.ports import Instance
from sandlot.model.specs import CellSpec, ProcessSpec, shell_argv
from sandlot.protocol import frames, schema, values
from tests.support.doomed import COUNTER, boot
from tests.support.traces import NOTHING, settle, traces

ROOT = Path(__file__).resolve().parents[3]
LINE_BYTES = 10
ROUNDS = 3
KILL = int(signal.SIGKILL)


@dataclass(slots=True)
class Place:
    """A live sandbox, and whoever holds its link."""

    data_dir: Path
    instance: Instance
    link: Link

    async def die(self) -> None:
        """Let go of the pipes as the kernel does for a process that is killed: no last word, what was queued is gone."""
        await self.link.aclose()

    async def reopen(self) -> Link:
        """Be the next host."""
        self.link = await Link.open(await self.instance.connect())
        assert not self.link.asleep
        return self.link

    def write_raw(self, data: bytes) -> None:
        """Put bytes into the pipe to the guest, as a host that died in the middle of them would have."""
        end = os.open(self.data_dir / "sandboxes" / self.instance.ref / "in", os.O_WRONLY | os.O_NONBLOCK)
        try:
            assert os.write(end, data) == len(data)
        finally:
            os.close(end)


@pytest.fixture(scope="module")
async def shared(isolation: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Place]:
    data_dir = tmp_path_factory.mktemp("data")
    instance, link = await boot(data_dir, new_node_id(), isolation)
    place = Place(data_dir, instance, link)
    yield place
    await place.link.aclose()
    await instance.destroy()


@pytest.fixture
async def place(shared: Place) -> AsyncGenerator[Place]:
    """The sandbox, with a variable that must survive whatever the test does."""
    _, result = await _cell(await shared.link.kernels.execute(CellSpec("kept = 42")))
    assert result.status == "ok"
    yield shared
    shown, _ = await _cell(await shared.link.kernels.execute(CellSpec("kept")))
    assert [item.data["text/plain"] for item in shown if isinstance(item, Display)] == ["42"]


START = values.encode(
    {
        "call": "process.start",
        "id": bytes(16),
        "args": {"argv": ["touch", "/tmp/half"], "env": {}, "cwd": None, "user": "user", "stdin": False, "timeout_s": None, "attach": True},
    }
)
WHOLE = frames.encode(frames.OPEN, 1, START)
LARGEST = frames.encode(frames.DATA, 1, bytes(frames.HOST_FRAME_MAX - frames.HEADER_BYTES))


PARTS = {
    "1 byte": WHOLE[:1],
    "most of a header": WHOLE[: frames.HEADER_BYTES - 1],
    "a header": WHOLE[: frames.HEADER_BYTES],
    "all but a byte": WHOLE[:-1],
    "the beginning of the largest": LARGEST[: frames.HEADER_BYTES + 1],
    "all but a byte of the largest": LARGEST[:-1],
    "a header of the largest": frames.HEADER.pack(frames.SYNC, frames.MESSAGE, 0, 0, 7, 4084),
    "noise": random.Random(7).randbytes(3000),
    "many and a part": LARGEST * 50 + LARGEST[:100],
}
"""Bytes that a host wrote before it died."""


async def test_partial_frame_of_a_killed_service_is_skipped(place: Place) -> None:
    for name, part in PARTS.items():
        await place.die()
        place.write_raw(part)
        link = await place.reopen()
        assert (await link.info()).processes > 0, name
        assert await _output(link, "echo hello; ls /tmp/half 2>/dev/null || echo not done") == b"hello\nnot done\n", name


async def test_endless_output_continues_at_the_last_offset(place: Place) -> None:
    call = await place.link.processes.start(ProcessSpec(("python3", "-c", COUNTER), timeout_s=None))
    seen = await _follow(call, 300_000)
    for _ in range(3):
        await place.die()
        link = await place.reopen()
        assert [info.running for info in await link.processes.list() if info.process == call.id] == [True]
        # Let go of each reader: the output waits for the slowest that is there.
        async with await link.processes.attach(call.id, stdout_from=seen) as again:
            seen = await _follow(again, seen + 300_000, seen)
    assert await place.link.processes.signal(call.id, KILL)
    ended = await place.link.processes.attach(call.id, stdout_from=seen)
    seen = await _follow(ended, None, seen)
    assert (await ended.result()).signal == KILL
    assert [info.stdout_bytes for info in await place.link.processes.list() if info.process == call.id] == [seen]


async def test_unread_output_neither_blocks_the_guest_nor_is_lost_uncounted(place: Place) -> None:
    call = await place.link.processes.start(ProcessSpec(("python3", "-c", COUNTER), timeout_s=None))
    await place.die()
    await asyncio.sleep(0.5)  # the output runs into its bound
    link = await place.reopen()
    assert await _output(link, "echo hello") == b"hello\n"
    async with await link.processes.attach(call.id, stdout_from=0) as attached:
        assert await _follow(attached, 3_000_000) >= 3_000_000
    await link.processes.signal(call.id, KILL)


async def test_running_cell_is_executed_once_and_followed_by_the_next_host(place: Place) -> None:
    await _cell(await place.link.kernels.execute(CellSpec("runs = 0")))
    code = "import time\nruns += 1\nprint('begun', flush=True)\ntime.sleep(0.7)\nprint('done')\nruns"
    call = await place.link.kernels.execute(CellSpec(code))
    assert isinstance(await anext(call), CellStarted)
    assert isinstance(first := await anext(call), Output)
    assert first.data.startswith(b"begun")
    await place.die()
    link = await place.reopen()
    for again in (
        await link.kernels.attach(call.id),  # whoever knows that it was begun
        await link.kernels.execute(CellSpec(code), id=call.id),  # whoever does not, and says it again
        await link.kernels.execute(CellSpec(code), id=call.id),
    ):
        told, result = await _cell(again)
        assert b"".join(item.data for item in told if isinstance(item, Output)) == b"begun\ndone\n"
        assert [item.data["text/plain"] for item in told if isinstance(item, Display)] == ["1"]
        assert result.status == "ok"
    shown, _ = await _cell(await link.kernels.execute(CellSpec("runs")))
    assert [item.data["text/plain"] for item in shown if isinstance(item, Display)] == ["1"]


async def test_repeated_start_of_a_process_id_attaches_to_the_process(place: Place) -> None:
    id_ = new_process_id()
    spec = ProcessSpec(shell_argv("echo once >>/workspace/started; echo begun; sleep 0.5; echo $$"))
    first = await place.link.processes.start(spec, id=id_)
    await place.die()
    link = await place.reopen()
    second = await link.processes.start(spec, id=id_)
    assert (second.id, second.pid) == (first.id, first.pid)
    output = b"".join([item.data async for item in second if isinstance(item, Output)])
    assert output.decode().split() == ["begun", str(first.pid)]
    assert (await second.result()).exit_code == 0
    # Also when it has ended, and over a third link.
    await place.die()
    third = await (await place.reopen()).processes.start(spec, id=id_)
    assert b"".join([item.data async for item in third if isinstance(item, Output)]) == output
    assert await _output(place.link, "cat /workspace/started; rm /workspace/started") == b"once\n"


async def test_input_that_was_given_before_is_not_asked_for_again(place: Place) -> None:
    call = await place.link.processes.start(ProcessSpec(("cat",), stdin=True, timeout_s=None))
    await call.write(b"first ")
    assert (await anext(call)).offset == 0
    await place.die()
    link = await place.reopen()
    taken = [info.stdin_bytes for info in await link.processes.list() if info.process == call.id]
    assert taken == [len(b"first ")]
    again = await link.processes.attach(call.id, stdout_from=6)
    await again.write(b"second")
    again.close_stdin()
    assert [item.data async for item in again if isinstance(item, Output)] == [b"second"]
    assert (await again.result()).exit_code == 0


async def test_next_service_continues_after_each_killed_service(tmp_path: Path, isolation: str) -> None:
    """One sandbox, a row of hosts: each dies by SIGKILL at some moment of its work, and the next one takes over."""
    node, chance = new_node_id(), random.Random(os.urandom(8))
    ref: str | None = None
    instances: list[Instance] = []
    for number in range(1, ROUNDS + 1):
        said = await _host_that_is_killed(tmp_path, node, isolation, ref, after_lines=chance.randrange(1, 12), after_s=chance.random() * 0.2)
        ref = str(said["ref"])
        assert [path.name for path in (tmp_path / "sandboxes").iterdir()] == [ref]
        instances.append(await open_driver(isolation, DriverSettings(node=node, data_dir=tmp_path)).adopt(ref))
        link = await Link.open(await instances[-1].connect())
        assert not link.asleep
        # The cell that was in flight: done once, all of its output there.
        told, result = await _cell(await link.kernels.attach(ProcessId(str(said["cell"]))))
        assert b"".join(item.data for item in told if isinstance(item, Output)) == b"begun\ndone\n"
        assert result.status == "ok"
        shown, _ = await _cell(await link.kernels.execute(CellSpec("(kept, runs)")))
        assert [item.data["text/plain"] for item in shown if isinstance(item, Display)] == [f"('since the first host', {number})"]
        # The flood: goes on from the last byte that the dead host is known to have read.
        known = int(str(said.get("stdout", 0)))
        async with await link.processes.attach(ProcessId(str(said["flood"])), stdout_from=known) as flood:
            await _follow(flood, known + 200_000, known)
        await link.processes.signal(flood.id, KILL)
        # The upload: as if it had never been begun.
        with pytest.raises(NotFoundError) as refused:
            await link.files.stat("/workspace/half")
        assert refused.value.code is ErrorCode.PATH_NOT_FOUND
        assert await _output(link, "ls -A /workspace | wc -l") == b"0\n"
        await link.aclose()
    await instances[-1].destroy()
    for instance in instances:
        await instance.wait()
    settle(lambda: traces(tmp_path), NOTHING)


async def _host_that_is_killed(
    data_dir: Path, node: NodeId, isolation: str, ref: str | None, *, after_lines: int, after_s: float
) -> dict[str, object]:
    """Run a host until it has said some lines, kill it a moment later, and give what it said last of each thing."""
    argv = [sys.executable, "-P", str(ROOT / "tests/support/doomed.py"), str(data_dir), node, isolation, *([ref] if ref else [])]
    host = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert host.stdout is not None
    said: dict[str, object] = {}
    for _ in range(after_lines):
        line = await host.stdout.readline()
        assert line, "the host ended by itself"
        said.update(json.loads(line))
    await asyncio.sleep(after_s)
    host.kill()
    for line in (await host.stdout.read()).splitlines():
        said.update(json.loads(line))
    assert await host.wait() == -KILL
    return said


async def _follow(call: ProcessCall, until: int | None, seen: int = 0) -> int:
    """Read a counter's output from an offset up to another, or to its end; every byte must be the one that belongs where it is."""
    async for item in call:
        assert item.offset == seen, "a gap that was not told, or a byte twice"
        seen = item.offset + (item.bytes if isinstance(item, OutputGap) else len(item.data))
        if isinstance(item, Output):
            assert item.data == _expected(item.offset, len(item.data))
        if until is not None and seen >= until:
            return seen
    assert until is None, "the flood ended"
    return seen


def _expected(offset: int, size: int) -> bytes:
    first = offset // LINE_BYTES
    lines = "".join(f"{number:09d}\n" for number in range(first, (offset + size) // LINE_BYTES + 1)).encode()
    return lines[offset - first * LINE_BYTES :][:size]


async def _cell(call: CellCall) -> tuple[list[Output | OutputGap | CellStarted | Display | Cleared | CellError], CellResult]:
    told = [item async for item in call]
    return told, await call.result()


async def _output(link: Link, command: str) -> bytes:
    call = await link.processes.start(ProcessSpec(shell_argv(command)))
    return b"".join([item.data async for item in call if isinstance(item, Output) and item.channel == schema.STDOUT])
