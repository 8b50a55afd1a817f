"""A scripted guest in the test process: the real protocol on the other end of two real pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.link.client import Link
from sandlot.link.services import GuestStream
from sandlot.protocol import events
from sandlot.protocol.connection import GUEST, Connection

ENTRY = {"name": "f", "path": "/f", "kind": "file", "size": 3, "mode": 0o644, "uid": 1000, "gid": 1000, "modified_ns": 1, "target": None}


ServeFunction = Callable[[GuestStream, Mapping[str, Any]], Awaitable[None]]


async def until(is_so: Callable[[], object]) -> None:
    """Run other tasks until a condition holds."""
    while not is_so():  # noqa: ASYNC110 - there is no event for what a test looks at
        await asyncio.sleep(0)


def descriptors() -> set[str]:
    """Return the open descriptors of this process."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


class Pipes:
    """A ByteStream over the ends of two pipes."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self.frames: list[int] = []
        self.reads = 0
        self.is_closed = False
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)

    async def receive(self, max_bytes: int) -> bytes:
        while True:
            try:
                data = os.read(self.read_fd, max_bytes)
            except BlockingIOError:
                await self._ready(self.read_fd, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)
            else:
                self.reads += 1
                return data

    def try_send(self, frame: bytes) -> bool:
        try:
            written = os.write(self.write_fd, frame)
        except BlockingIOError:
            return False
        assert written == len(frame), "a frame was split"
        self.frames.append(written)
        return True

    async def wait_writable(self) -> None:
        await self._ready(self.write_fd, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)

    async def aclose(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.read_fd)
            os.close(self.write_fd)

    async def _ready(self, fd: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        ready = asyncio.get_running_loop().create_future()
        add(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            remove(fd)


class PeerCall:
    """A call as the guest sees it."""

    def __init__(self, peer: Peer, stream: int, head: dict[str, Any]) -> None:
        self.peer = peer
        self.stream = stream
        self.name: str = head["call"]
        self.id: bytes = head["id"]
        self.args: dict[str, Any] = head["args"]
        self.input = bytearray()
        self.ended = asyncio.Event()
        self.reset_code = ""
        self.over = asyncio.Event()
        self.writable = asyncio.Event()
        self.consumes = True

    def event(self, name: str, /, **fields: Any) -> None:  # noqa: ANN401
        self.say({"event": name, **fields})

    def result(self, **fields: Any) -> None:  # noqa: ANN401
        self.say({"result": fields})
        self.end()

    def say(self, message: object) -> None:
        self.peer.connection.send(self.stream, message)
        self.peer.flush()

    def end(self) -> None:
        self.peer.connection.end(self.stream)
        self.peer.flush()

    def reset(self, code: str, message: str, **fields: Any) -> None:  # noqa: ANN401
        self.peer.connection.reset(self.stream, code, message, **fields)
        self.peer.flush()

    def put(self, channel: int, data: bytes) -> None:
        self.peer.connection.send_bytes(self.stream, channel, data)
        self.peer.flush()

    async def data(self, channel: int, data: bytes) -> None:
        """Send bytes as there is room for them."""
        while data:
            room = self.peer.connection.room(self.stream)
            if not room:
                if not self.peer.connection.is_open(self.stream):
                    return
                self.writable.clear()
                await self.writable.wait()
                continue
            self.put(channel, data[:room])
            data = data[room:]

    def started(self, pid: int = 7) -> None:
        self.event("started", pid=pid)

    def exited(self, exit_code: int = 0, pid: int = 7) -> None:
        process = self.args.get("process") or self.id.hex()
        self.result(process=process, pid=pid, reason="exited", exit_code=exit_code, signal=None, duration_s=0.5)


Handler = Callable[[PeerCall], Awaitable[None]]


class Peer:
    """The scripted guest.

    Args:
        handlers: Call name -> coroutine function that handles the call in a separate task.
    """

    def __init__(self, stream: Pipes, handlers: Mapping[str, Handler]) -> None:
        self.stream = stream
        self.connection = Connection(GUEST)
        self.handlers = dict(handlers)
        self.calls: list[PeerCall] = []
        self.services: dict[int, asyncio.Queue[events.StreamEvent]] = {}
        self.quiesces = True
        self.answers = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.unsent = b""
        self.errors: list[BaseException] = []
        """Exceptions of handlers, which are defects of the test."""
        self._by_stream: dict[int, PeerCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wants_write = asyncio.Event()
        self._spawn(self._read())
        self._spawn(self._write())

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stream.aclose()

    def flush(self) -> None:
        self._wants_write.set()

    def raw(self, data: bytes) -> None:
        """Write raw bytes after the queued frames."""
        self.unsent += self.connection.next_batch(1 << 30) + data
        self.flush()

    def close(self) -> None:
        """End the guest: close its pipes."""
        for task in self._tasks:
            task.cancel()
        self.stream.is_closed = True
        os.close(self.stream.read_fd)
        os.close(self.stream.write_fd)

    def open_service(self, head: object) -> int:
        stream = self.connection.open(head)
        self.services[stream] = asyncio.Queue()
        self.flush()
        return stream

    async def call(self, name: str) -> PeerCall:
        """Wait for a call, and return the latest one of this name."""
        await until(lambda: any(call.name == name for call in self.calls))
        return [call for call in self.calls if call.name == name][-1]

    def _spawn(self, work: Any) -> None:  # noqa: ANN401
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    async def _read(self) -> None:
        while True:
            await self.reads.wait()
            data = await self.stream.receive(65536)
            if not data:
                return
            for event in self.connection.receive(data):
                if isinstance(event, events.Greeted):
                    self.unsent = b""
                    self._by_stream.clear()
                self._on_event(event)
            self.flush()

    async def _write(self) -> None:
        while True:
            if not self.unsent and self.answers:
                self.unsent = self.connection.next_batch()
                for event in self.connection.take_events():
                    self._on_event(event)
            if not self.unsent:
                await self._wants_write.wait()
                self._wants_write.clear()
                continue
            try:
                self.unsent = self.unsent[os.write(self.stream.write_fd, self.unsent) :]
            except BlockingIOError:
                await self.stream.wait_writable()
            except BrokenPipeError:
                return

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Opened):
            self._on_opened(event)
        elif isinstance(event, events.QuiesceRequested):
            if self.quiesces:
                self.connection.quiesced()
        elif isinstance(event, events.StreamEvent):
            if event.stream in self.services:
                self.services[event.stream].put_nowait(event)
            elif event.stream in self._by_stream:
                self._on_stream(self._by_stream[event.stream], event)

    def _on_opened(self, event: events.Opened) -> None:
        call = PeerCall(self, event.stream, event.head)
        self.calls.append(call)
        self._by_stream[event.stream] = call
        if call.name in self.handlers:
            self._spawn(self.handlers[call.name](call))
        elif call.name == "guest.wake":
            self.connection.asleep = False
            call.result(python="/usr/bin/python3")

    def _on_stream(self, call: PeerCall, event: events.StreamEvent) -> None:
        if isinstance(event, events.Bytes):
            call.input += event.data
            if call.consumes:
                self.connection.consumed(event.stream, event.credit)
        elif isinstance(event, events.Ended):
            call.ended.set()
        elif isinstance(event, events.WasReset):
            call.reset_code = event.reason["code"]
            call.over.set()
        elif isinstance(event, events.Writable):
            call.writable.set()


async def ended(call: PeerCall) -> None:
    """A handler that responds with an empty result."""
    await call.over.wait()


async def stat(call: PeerCall) -> None:
    """A handler that describes a file."""
    call.result(**ENTRY)


def pipes() -> tuple[Pipes, Pipes]:
    """Yield the host's end and the guest's end of the pipes."""
    to_guest, to_host = os.pipe(), os.pipe()
    return Pipes(to_host[0], to_guest[1]), Pipes(to_guest[0], to_host[1])


@dataclass(frozen=True)
class _FunctionService:
    function: ServeFunction

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        await self.function(stream, args)


@contextlib.asynccontextmanager
async def linked(
    handlers: Mapping[str, Handler] | None = None,
    *,
    services: Mapping[str, ServeFunction] | None = None,
    asleep: bool = False,
    request_timeout_s: float = 60,
) -> AsyncIterator[tuple[Link, Peer]]:
    """Yield a link that is awake, and its peer. Afterwards, check that no task and no descriptor is left."""
    before = descriptors()
    tasks = asyncio.all_tasks()
    host_end, guest_end = pipes()
    peer = Peer(guest_end, handlers or {})
    peer.connection.asleep = asleep
    link = await Link.open(
        host_end, services={name: _FunctionService(serve) for name, serve in (services or {}).items()}, request_timeout_s=request_timeout_s
    )
    try:
        yield link, peer
    finally:
        await link.aclose()
        await peer.aclose()
        if peer.errors:
            raise peer.errors[0]
    assert descriptors() <= before
    assert asyncio.all_tasks() <= tasks
