"""The two pipes of a link, on real pipes with a far end of our own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlot.host.fifos import PIPE_BUF, PipeStream, make_pipes
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


@pytest.fixture
def dying(tmp_path: Path) -> Callable[[], None]:
    return FarEnd(tmp_path).close


async def test_bytes_go_both_ways(far: FarEnd, tmp_path: Path) -> None:
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("in", "out")} == {0o600}
    stream = PipeStream.open(tmp_path)
    assert stream.try_send(FRAME)
    assert os.read(far.input, 10_000) == FRAME
    os.write(far.output, b"early")
    assert await stream.receive(3) == b"ear"
    assert await stream.receive(3) == b"ly"
    receiving = asyncio.create_task(stream.receive(100))
    await asyncio.sleep(0.01)
    assert not receiving.done()
    os.write(far.output, b"late")
    assert await receiving == b"late"
    await stream.aclose()


async def test_a_frame_is_whole_or_refused(far: FarEnd, tmp_path: Path) -> None:
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


async def test_the_death_of_the_far_end_is_told(dying: Callable[[], None], tmp_path: Path) -> None:
    stream = PipeStream.open(tmp_path)
    receiving = asyncio.create_task(stream.receive(100))
    await asyncio.sleep(0.01)
    dying()
    assert await receiving == b""
    assert await stream.receive(100) == b""
    await stream.wait_writable()
    with pytest.raises(BrokenPipeError):
        stream.try_send(b"x")
    await stream.aclose()
    with pytest.raises(SandboxEndedError):
        PipeStream.open(tmp_path)
    with pytest.raises(SandboxEndedError):
        PipeStream.open(tmp_path / "gone")


async def test_what_was_said_before_death_is_still_read(tmp_path: Path) -> None:
    far = FarEnd(tmp_path)
    stream = PipeStream.open(tmp_path)
    os.write(far.output, b"last words")
    far.close()
    assert await stream.receive(100) == b"last words"
    assert await stream.receive(100) == b""
    await stream.aclose()


async def test_closing_wakes_whoever_waits(far: FarEnd, tmp_path: Path) -> None:
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


async def test_a_cancelled_wait_leaves_the_stream_usable(far: FarEnd, tmp_path: Path) -> None:
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


async def test_a_new_stream_goes_on_where_the_dead_one_stopped(far: FarEnd, tmp_path: Path) -> None:
    before = PipeStream.open(tmp_path)
    os.write(far.output, b"0123456789")
    assert await before.receive(4) == b"0123"
    await before.aclose()
    after = PipeStream.open(tmp_path)
    assert await after.receive(100) == b"456789"
    await after.aclose()
