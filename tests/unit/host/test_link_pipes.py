"""The two pipes of a link, on real pipes with a far end of our own."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.host.link_pipes import PIPE_BUF, PipeStream, make_pipes
from sandlot.model.errors import SandboxEndedError

FRAME = bytes(range(256)) * 16


class FarEnd:
    """A sandbox's end: both pipes open for reading and writing, as a runtime is given them."""

    def __init__(self, folder: Path) -> None:
        make_pipes(folder)
        self.input, self.output = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in ("in", "out"))

    def close(self) -> None:
        for end in (self.input, self.output):
            os.close(end)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarEnd]:
    end = FarEnd(tmp_path)
    yield end
    end.close()


async def test_frame_is_written_as_a_whole_or_not_at_all(far: FarEnd, tmp_path: Path) -> None:
    fcntl.fcntl(far.input, fcntl.F_SETPIPE_SZ, 16 * 4096)
    stream = PipeStream.open(tmp_path)
    frame = FRAME[: PIPE_BUF - 1]
    sent = 0
    while stream.try_send(frame):
        sent += 1
    assert not stream.try_send(frame)
    waiting = [asyncio.create_task(stream.wait_writable()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    got = 0
    while got < sent * len(frame):
        got += len(os.read(far.input, 65536))
    assert got == sent * len(frame)
    await asyncio.gather(*waiting)
    with pytest.raises(ValueError, match="4097"):
        stream.try_send(bytes(PIPE_BUF + 1))
    await stream.aclose()


def test_stream_to_a_sandbox_that_has_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxEndedError):
        PipeStream.open(tmp_path)  # the pipes are removed
    make_pipes(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(SandboxEndedError):
        PipeStream.open(tmp_path)  # no process reads from the pipe

    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_only_one_task_receives(far: FarEnd, tmp_path: Path) -> None:
    stream = PipeStream.open(tmp_path)
    first = asyncio.create_task(stream.receive(10))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already receives"):
        await stream.receive(10)
    os.write(far.output, b"bytes")
    assert await first == b"bytes"
    await stream.aclose()


async def test_close_ends_all_waits(far: FarEnd, tmp_path: Path) -> None:
    stream = PipeStream.open(tmp_path)
    while stream.try_send(FRAME):
        pass
    receiving, writing = asyncio.create_task(stream.receive(1)), asyncio.create_task(stream.wait_writable())
    await asyncio.sleep(0.01)
    await stream.aclose()
    await stream.aclose()
    assert await receiving == b""
    await writing
    await stream.wait_writable()
    with pytest.raises(BrokenPipeError):
        stream.try_send(b"x")
    assert os.read(far.input, 10) == FRAME[:10], "the far end and what is in the pipe stay"


async def test_cancelled_wait_leaves_the_stream_usable(far: FarEnd, tmp_path: Path) -> None:
    stream = PipeStream.open(tmp_path)
    for wait in (stream.receive(1), stream.wait_writable()):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    os.write(far.output, b"x")
    assert await stream.receive(1) == b"x"
    assert stream.try_send(b"y")
    await stream.aclose()
