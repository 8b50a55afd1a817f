"""The host's side of the link, the connection to a guest: two named pipes.

Invariants:
- A process of the sandbox keeps each pipe open while no service runs, so the guest does not notice that a service died. The service opens only one
  end of each pipe, so it receives EOF and EPIPE when the sandbox has ended (fifo(7)).
- A frame has at most PIPE_BUF (4,096) bytes. A write of at most this size to a non-blocking pipe succeeds or fails as a whole (pipe(7)), so no frame
  is split.
- No function blocks the event loop. The event loop reports when a pipe can be read or written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Self

from sandlot.model.errors import SandboxEndedError

PIPE_BUF = 4096
"""Largest frame in bytes."""
PIPE_BYTES = 1024 * 1024
"""Buffer size of each pipe in bytes. Equal to the kernel's default of ``/proc/sys/fs/pipe-max-size``."""


def make_pipes(folder: Path) -> None:
    """Create the named pipes ``in`` (to the guest) and ``out`` (from the guest) in a folder. Only root can open the pipes."""
    os.mkfifo(folder / "in", 0o600)
    os.mkfifo(folder / "out", 0o600)


class PipeStream:
    """A :class:`~sandlot.model.ports.ByteStream` over the two pipes of a folder, created by :meth:`open`."""

    __slots__ = ("_closed", "_read", "_reader", "_write", "_writers")

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the pipes that :func:`make_pipes` created in a folder: ``out`` for reading and ``in`` for writing.

        Raises:
            SandboxEndedError: The pipes do not exist, or no process of the sandbox has ``in`` open.
        """
        read = -1
        try:
            read = os.open(folder / "out", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            write = os.open(folder / "in", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if read >= 0:
                os.close(read)
            if error.errno in {errno.ENXIO, errno.ENOENT}:  # ENXIO: no process reads the pipe. ENOENT: the pipe does not exist
                raise SandboxEndedError("The sandbox has ended.") from None
            raise
        return cls(read, write)

    @property
    def closed(self) -> bool:
        """True if :meth:`aclose` was called."""
        return self._closed

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes from the guest, or ``b""`` if the guest has closed its pipe or this stream is closed."""
        while not self._closed:
            try:
                return os.read(self._read, max_bytes)
            except BlockingIOError:
                await self._readable()
        return b""

    def try_send(self, frame: bytes) -> bool:
        """Write one whole frame to the guest and return True. Write nothing and return False if the pipe is too full for the frame.

        Raises:
            BrokenPipeError: The guest has closed its pipe, or this stream is closed.
            ValueError: The frame is longer than :data:`PIPE_BUF` bytes, so the kernel might split it.
        """
        if len(frame) > PIPE_BUF:
            raise ValueError(f"a frame of {len(frame)} bytes could be split; at most {PIPE_BUF} bytes are allowed")
        if self._closed:
            raise BrokenPipeError(errno.EPIPE, "the stream is closed")
        try:
            os.write(self._write, frame)
        except BlockingIOError:
            return False
        return True

    async def wait_writable(self) -> None:
        """Wait until :meth:`try_send` may succeed, the guest has closed its pipe, or this stream is closed."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._writers.append(waiter)
        if len(self._writers) == 1:
            loop.add_writer(self._write, _wake, self._writers)
        try:
            await waiter
        finally:
            if waiter in self._writers:
                self._writers.remove(waiter)
            if not self._writers and not self._closed:
                loop.remove_writer(self._write)

    async def aclose(self) -> None:
        """Close the host's ends of the pipes. The guest keeps running. Calls that wait on this stream return. Idempotent."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._read)
        loop.remove_writer(self._write)
        os.close(self._read)
        os.close(self._write)
        _wake(self._writers)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _readable(self) -> None:
        if self._reader is not None:
            raise RuntimeError("another task already receives from this stream")
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        loop.add_reader(self._read, _wake, [self._reader])
        try:
            await self._reader
        finally:
            self._reader = None
            if not self._closed:
                loop.remove_reader(self._read)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        with contextlib.suppress(asyncio.InvalidStateError):
            waiter.set_result(None)
