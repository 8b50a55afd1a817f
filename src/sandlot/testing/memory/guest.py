"""Scripted guest in the memory of the test: the protocol is real, but processes, kernels and files are simulated and take no time.

The host uses its real ``Link`` over a :class:`~sandlot.model.ports.ByteStream`, and the guest uses the real ``protocol.Connection``. The guest
isolates nothing and runs only registered scripts. :mod:`sandlot.testing.memory.shell` and
:mod:`sandlot.testing.memory.kernels` contain the scripts that every guest has.

A test can simulate failures: :meth:`MemoryGuest.fail_next`, :meth:`~MemoryGuest.hold`, :meth:`~MemoryGuest.drop_next`, :attr:`~MemoryGuest.delay_s`
(slow guest), :meth:`~MemoryGuest.end` (crash), :attr:`~MemoryGuest.is_silent`, :meth:`~MemoryGuest.break_link`,
:meth:`~MemoryGuest.send_garbage` and ``files.capacity_bytes`` (full disk).
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandlot.protocol import events, schema
from sandlot.protocol.connection import GENERATION, GUEST, Connection
from sandlot.testing.memory.files import FileError, MemoryFiles
from sandlot.testing.memory.kernels import CellScript, Kernels
from sandlot.testing.memory.process import Processes, Program, find_home, find_uid
from sandlot.testing.memory.rpc import Call, RpcError, RpcServer
from sandlot.testing.memory.shell import programs
from sandlot.testing.memory.timers import GuestClock, LoopClock, Timer, Timers

PIPE_BYTES = 64 * 1024
"""Largest number of unread bytes in each direction, as in a pipe of Linux."""

PortHandler = Callable[["PortConnection"], Awaitable[None]]
"""Function that stands for a program which listens on a port. It is called once for each connection."""


@dataclass
class Scripts:
    """Scripts that a guest can run.

    Args:
        programs: Name or path of a program -> script; by default the commands of :mod:`sandlot.testing.memory.shell`.
        cells: Source code of a cell -> script that runs instead of the code.
        ports: TCP port -> script that is called for each connection to the port.
        has_python: True if the root file system has a Python interpreter.
    """

    programs: dict[str, Program] = field(default_factory=programs)
    cells: dict[str, CellScript] = field(default_factory=dict)
    ports: dict[int, PortHandler] = field(default_factory=dict)
    has_python: bool = True


class Hold:
    """Handle of a blocked call: the guest does not execute the call until the test calls :meth:`release`.

    Attributes:
        reached: Event that is set when the call has arrived.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._continue: Callable[[], None] | None = None
        self._is_released = False

    def arrive(self, carry_out: Callable[[], None]) -> None:
        """Block a call that has arrived until :meth:`release`. If :meth:`release` was called before, execute the call at once.

        Args:
            carry_out: Function that executes the call.
        """
        self.reached.set()
        if self._is_released:
            carry_out()
        else:
            self._continue = carry_out

    def release(self) -> None:
        """Execute the call if it has arrived; otherwise execute it as soon as it arrives. Idempotent."""
        self._is_released = True
        carry_out, self._continue = self._continue, None
        if carry_out is not None:
            carry_out()


class PortConnection:
    """The listening program's side of a connection that the host has opened to a port of the sandbox."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._pieces: list[tuple[bytes, int]] = []
        self._news = asyncio.Event()
        self._is_over = False
        call.on_bytes = self._take
        call.on_end = self._end
        call.on_gone = self._end

    async def read(self) -> bytes:
        """Wait for the next bytes from the host and return them; return ``b""`` when the host sends no more bytes."""
        while not self._pieces:
            if self._is_over:
                return b""
            self._news.clear()
            await self._news.wait()
        data, credit = self._pieces.pop(0)
        self._call.consumed(credit)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes to the host. Wait while the send queue of the connection is full."""
        while data:
            room = self._call.room()
            if room <= 0:
                writable = asyncio.Event()
                self._call.on_writable = writable.set
                await writable.wait()
                continue
            self._call.data(schema.BODY, data[:room])
            data = data[room:]

    def _take(self, _channel: int, data: bytes, credit: int) -> None:
        self._pieces.append((data, credit))
        self._news.set()

    def _end(self) -> None:
        self._is_over = True
        self._news.set()


class ServiceStream:
    """A stream that the guest has opened to a service of the host, for example to the service ``packages``."""

    def __init__(self, guest: MemoryGuest, stream: int) -> None:
        self._guest = guest
        self._stream = stream
        self._items: list[tuple[Any, int]] = []
        self._news = asyncio.Event()
        self.reset: dict[str, Any] | None = None
        self._is_over = False

    def handle(self, event: events.StreamEvent) -> None:
        """Keep the bytes or the message of an event for :meth:`read`, or note the end of the stream."""
        if isinstance(event, events.Bytes):
            self._items.append((event.data, event.credit))
        elif isinstance(event, events.Received):
            self._items.append((event.message, event.credit))
        elif isinstance(event, (events.Ended, events.WasReset)):
            self._is_over = True
            self.reset = event.reason if isinstance(event, events.WasReset) else None
        self._news.set()

    async def read(self) -> Any:  # noqa: ANN401 - bytes or a message
        """Wait for the next bytes or message from the service and return them; return None when nothing more arrives."""
        while not self._items:
            if self._is_over:
                return None
            self._news.clear()
            await self._news.wait()
        item, credit = self._items.pop(0)
        self._guest.connection.consumed(self._stream, credit)
        self._guest.flush()
        return item

    def write(self, data: bytes) -> None:
        """Send bytes to the service."""
        self._guest.connection.send_bytes(self._stream, schema.BODY, data)
        self._guest.flush()

    def end(self) -> None:
        """Send END on this stream. The guest sends nothing after END."""
        self._guest.connection.end(self._stream)
        self._guest.flush()


class MemoryGuest:
    """One scripted guest.

    Args:
        scripts: Scripts that the guest can run.
        clock: Clock of the timers; None: the clock of the event loop.

    Attributes:
        identity: Sandbox id from the last wake; empty before the first wake.
        hostname: Host name from the last wake.
        env: Environment from the last wake.
        delay_s: Delay of each call in seconds. The delay does not pass while the guest is paused.
        is_silent: If a test sets this to True, the guest ignores everything that it receives and sends nothing.
        ended: Future that gets the exit reason, ``exited`` or ``killed``, when the guest has ended.
    """

    def __init__(self, scripts: Scripts | None = None, clock: GuestClock | None = None) -> None:
        self.scripts = scripts or Scripts()
        self.timers = Timers(clock or LoopClock())
        self.files = MemoryFiles(time.time_ns)
        self.connection = Connection(GUEST)
        self.identity = self.hostname = ""
        self.env: dict[str, str] = {}
        self.workspace = "/"
        self.pids = 0
        self.memory_bytes: int | None = None
        self.processors: int | None = None
        self.local_domains: tuple[str, ...] = ()
        self.delay_s = 0.0
        self.is_silent = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.stream: MemoryStream | None = None
        self._requests: list[tuple[str, dict[str, Any]]] = []
        self._faults: dict[str, list[RpcError | Hold | None]] = {}
        self._services: dict[int, ServiceStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline: Timer | None = None
        self._began_s = self.timers.time_s()
        self._is_frozen = False
        self._waiting_input = bytearray()
        self._rpc: RpcServer
        self.processes = Processes(self.files, self.timers, self.scripts.programs, lambda: self.env, lambda: self.workspace, self._expire)
        self.kernels = Kernels(self.files, self.timers, self.processes, self.scripts.cells, lambda: self.env, lambda: self.workspace, self._expire)
        if not self.scripts.has_python:
            self.kernels.languages.discard("python")
        self._rpc = RpcServer(self.connection, self.flush, self._handlers(), self._intercept)

    # -- observed by tests --------------------------------------------------------------------------------------------

    @property
    def is_asleep(self) -> bool:
        """True if the guest sleeps, which means that it refuses all calls except ``guest.wake``."""
        return self.connection.asleep

    @property
    def is_frozen(self) -> bool:
        """True if the driver has paused the guest."""
        return self._is_frozen

    def requests(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of all calls with this name that the guest has received, the oldest call first.

        Args:
            name: Name of the calls, such as ``process.start``.
        """
        return [args for called, args in self._requests if called == name]

    # -- faults -------------------------------------------------------------------------------------------------------

    def fail_next(self, name: str, code: str = "internal", message: str = "The guest failed.") -> None:
        """Make the guest refuse the next call with this name.

        Args:
            name: Name of the call, such as ``process.start``.
            code: Code of the error, one of ``schema.RESET_CODES``.
            message: Message of the error.
        """
        self._faults.setdefault(name, []).append(RpcError(code, message))

    def hold(self, name: str) -> Hold:
        """Block the next call with this name until the test releases the returned hold."""
        hold = Hold()
        self._faults.setdefault(name, []).append(hold)
        return hold

    def drop_next(self, name: str) -> None:
        """Make the guest ignore the next call with this name. The host gets no response to the call."""
        self._faults.setdefault(name, []).append(None)

    def break_link(self) -> None:
        """Close the guest's side of the link. The guest keeps running."""
        if self.stream is not None:
            self.stream.is_broken = True
            self.stream.news.set()

    def send_garbage(self, data: bytes = b"\xff" * 4096) -> None:
        """Make the guest send bytes that are not a frame of the protocol."""
        if self.stream is not None:
            self.stream.put(data)

    def end(self, reason: str = "killed") -> None:
        """End the guest with an exit reason, ``exited`` or ``killed``. Idempotent."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        for process in self.processes.running:
            if process.task is not None:
                process.task.cancel()
        for context in self.kernels.contexts.values():
            context.stop("The sandbox has ended.", "died")  # not die(), which would start the next waiting cell
        for task in self._tasks:
            task.cancel()
        self.timers.close()
        if self.stream is not None:
            self.stream.news.set()
            self.stream.writable.set()

    def out_of_memory(self) -> None:
        """End all kernels and processes with the reason ``oom``, as Linux does when the sandbox exceeds its memory limit."""
        for process in self.processes.running:
            process.kill("oom")
        for context in self.kernels.contexts.values():
            context.die("oom")

    # -- the link -----------------------------------------------------------------------------------------------------

    def connect(self) -> MemoryStream:
        """Return the host's side of a new connection."""
        self.stream = MemoryStream(self)
        return self.stream

    def receive(self, data: bytes) -> bool:
        """Receive bytes from the host. Return False, and receive nothing, if the guest is paused and its pipe would exceed ``PIPE_BYTES``."""
        if self._is_frozen:
            if len(self._waiting_input) + len(data) > PIPE_BYTES:
                return False
            self._waiting_input += data
            return True
        if not self.is_silent:
            self._process(data)
        return True

    def flush(self) -> None:
        """Send queued frames to the host until the pipe is full."""
        stream = self.stream
        if stream is None or self._is_frozen or self.is_silent or self.ended.done():
            return
        while stream.buffered < PIPE_BYTES and (frame := self.connection.next_frame()) is not None:
            stream.put(frame)
        for event in self.connection.take_events():
            self._rpc.handle(event)

    def freeze(self) -> None:
        """Pause the guest: the guest reads nothing and writes nothing, and its timers stop. Idempotent."""
        self._is_frozen = True
        self.timers.hold()

    def thaw(self) -> None:
        """Let a paused guest continue. Idempotent."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        if not self.connection.armed and not self.connection.asleep:
            self.timers.release()
        data, self._waiting_input = bytes(self._waiting_input), bytearray()
        if data:
            self._process(data)
        if self.stream is not None:
            self.stream.writable.set()
        self.flush()

    def open_service(self, name: str, args: Mapping[str, Any] | None = None) -> ServiceStream:
        """Open a stream to a service of the host.

        Args:
            name: Name of the service, such as ``packages``.
            args: Arguments for the service; None: no arguments.
        """
        stream = self.connection.open({"service": name, "args": dict(args or {})})
        service = self._services[stream] = ServiceStream(self, stream)
        self.flush()
        return service

    def _expire(self, id_: str, name: str) -> None:
        self._rpc.expire(id_, name)

    def _process(self, data: bytes) -> None:
        for event in self.connection.receive(data):
            if isinstance(event, events.QuiesceRequested):
                if self.connection.quiesced():
                    self._rpc.drop_streams()
                    self._services.clear()
                    self.timers.hold()
            elif isinstance(event, events.StreamEvent) and (service := self._services.get(event.stream)) is not None:
                service.handle(event)
            else:
                if isinstance(event, (events.Greeted, events.Lost)):
                    self._services.clear()
                self._rpc.handle(event)
        self.flush()

    def _intercept(self, call: Call, carry_out: Callable[[], None]) -> None:
        self._requests.append((call.name, dict(call.args)))
        if faults := self._faults.get(call.name):
            fault = faults.pop(0)
            if isinstance(fault, RpcError):
                call.finish(fault)
            elif isinstance(fault, Hold):
                fault.arrive(carry_out)
        elif self.delay_s:
            self.timers.after(self.delay_s, carry_out)
        else:
            carry_out()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return a copy of the guest's state for a memory snapshot.

        Unlike in a real snapshot, running processes and cells do not continue: a restored guest starts them again from the beginning.
        """
        running = [(process.id, process.args) for process in self.processes.running]
        finished = [process for process in self.processes.by_id.values() if not process.running]
        return {
            "files": self.files.copy(),
            "asleep": self.connection.asleep or self.connection.armed,
            "identity": self.identity,
            "hostname": self.hostname,
            "env": dict(self.env),
            "workspace": self.workspace,
            "user": self.kernels.user,
            "remembered": dict(self._rpc.remembered),
            "running": running,
            "finished": finished,
            "kernels": self.kernels.copy_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a state that :meth:`save` returned. Call this method only on a new guest, before all other methods."""
        self.files = self.processes.files = self.kernels.files = state["files"].copy()
        self.connection.asleep = state["asleep"]
        self.identity, self.hostname, self.env, self.workspace = state["identity"], state["hostname"], dict(state["env"]), state["workspace"]
        self.kernels.user = state["user"]
        self._rpc.remembered.update(state["remembered"])
        for process in state["finished"]:
            self.processes.by_id[process.id] = process
        for id_, args in state["running"]:
            self.processes.spawn(id_, args)
        self.kernels.load_state(state["kernels"])
        if state["asleep"]:
            self.timers.hold()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, Callable[[Call], object]]:
        return {
            "guest.wake": self._wake,
            "guest.info": self._info,
            "guest.limit": self._limit,
            "guest.checkpoint": self._checkpoint,
            "guest.warm": self._warm,
            "guest.network": self._set_network,
            "guest.deadline": self._set_deadline,
            "guest.shutdown": self._shutdown,
            "file.read": self._read,
            "file.write": self._write,
            "file.stat": self._in_files(lambda args, uid: self.files.stat(args["path"], uid, follow=args["follow"], attributes=args["attributes"])),
            "file.resolve": self._in_files(lambda args, uid: self.files.resolve(args["path"], uid)),
            "file.home": lambda call: call.result(path=find_home(call.args["user"])),
            "file.list": self._list,
            "file.mkdir": self._in_files(self._mkdir),
            "file.move": self._in_files(self._move),
            "file.remove": self._in_files(lambda args, uid: {"removed": self.files.remove(args["path"], uid, recursive=args["recursive"])}),
            "port.connect": self._connect_port,
            **self.processes.handlers,
            **self.kernels.handlers,
        }

    def _wake(self, call: Call) -> None:
        if not self.connection.asleep:
            raise RpcError("conflict", "The guest is already awake; `guest.wake` is allowed only while the guest is asleep.")
        args = call.args
        before, self.identity = self.identity, args["identity"]
        self.timers.release()
        if before and before != self.identity:
            self._rpc.remembered.clear()
            self.processes.forget_finished()
            self.kernels.forget_past()
            self._began_s = self.timers.time_s()
        self.env, self.hostname, self.workspace = dict(args["env"]), args["hostname"], args["workspace"]
        self.kernels.user = user = args["user"]
        self.pids, self.memory_bytes, self.processors = args["pids"], args["memory_bytes"], args["processors"]
        self.local_domains = tuple(args["local_domains"] or ())
        self.files.write("/etc/hostname", self.hostname.encode(), 0)
        try:
            missing = self._missing(self.workspace)
            self.files.mkdir(self.workspace, 0)
            self._give(missing, user)
        except (FileError, RpcError):  # RpcError: the sandbox has no such user
            self.workspace = find_home("user")
        self._arm(args["deadline_s"])
        self.connection.asleep = self.connection.armed = False
        call.result(python="/usr/bin/python3" if self.scripts.has_python else None)

    def _info(self, call: Call) -> None:
        running = len(self.processes.running) + sum(context.pid is not None for context in self.kernels.contexts.values())
        call.result(
            generation=GENERATION,
            identity=self.identity,
            uptime_s=max(0.0, self.timers.time_s() - self._began_s),
            processes=running,
            tasks=running,
            cpu_s=0.0,
            streams=self.connection.streams,
        )

    def _limit(self, call: Call) -> None:
        running = len(self.processes.running)
        if call.args["pids"] < running:
            shown = f"The sandbox has {running} processes and threads, which is more than the new limit of {call.args['pids']}."
            raise RpcError("conflict", shown, "End some processes, then set the limit again.")
        self.pids = call.args["pids"]
        self.memory_bytes = call.args["memory_bytes"] or self.memory_bytes
        self.processors = call.args["processors"] or self.processors
        call.result()

    def _checkpoint(self, call: Call) -> None:
        self.connection.armed = call.args["armed"]
        if self.connection.armed:
            self.timers.hold()
        else:
            self.timers.release()
        call.result()

    def _warm(self, call: Call) -> None:
        call.result()

    def _set_network(self, call: Call) -> None:
        self.local_domains = tuple(call.args["local_domains"])
        call.result()

    def _set_deadline(self, call: Call) -> None:
        self._arm(call.args["deadline_s"])
        call.result()

    def _shutdown(self, call: Call) -> None:
        call.result()
        asyncio.get_running_loop().call_soon(self.end, "exited")

    def _arm(self, deadline_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if deadline_s is None else self.timers.after(deadline_s, lambda: self.end("exited"))

    # -- files --------------------------------------------------------------------------------------------------------

    def _in_files(self, work: Callable[[dict[str, Any], int], dict[str, Any]]) -> Callable[[Call], None]:
        def handler(call: Call) -> None:
            uid = _checked(call)
            try:
                result = work(call.args, uid)
            except FileError as error:
                raise RpcError(error.code, error.message) from None
            call.result(**result)

        return handler

    def _mkdir(self, args: dict[str, Any], uid: int) -> dict[str, Any]:
        missing = self._missing(args["path"])
        self.files.mkdir(args["path"], uid, parents=args["parents"], mode=args["mode"])
        self._give(missing, args["owner"])
        return self.files.stat(args["path"].rstrip("/") or "/", uid)

    def _missing(self, path: str) -> list[str]:
        """Return the folders above a path, and the path itself, that do not exist."""
        missing = []
        while path != "/" and not self.files.exists(path):
            missing.append(path)
            path = posixpath.dirname(path)
        return missing

    def _give(self, paths: Sequence[str], owner: str | None) -> None:
        if owner is not None:
            for path in paths:
                self.files.chown(path, find_uid(owner))

    def _move(self, args: dict[str, Any], uid: int) -> dict[str, Any]:
        if not args["to"].startswith("/"):
            raise FileError("path_invalid", f"The path {args['to'][:300]!r} is not absolute.")
        self.files.move(args["path"], args["to"], uid, overwrite=args["overwrite"])
        return self.files.stat(args["to"], uid, follow=False)

    def _list(self, call: Call) -> None:
        uid, offset = _checked(call), max(0, call.args["offset"] or 0)
        end = offset + min(max(1, call.args["limit"]), schema.LIMITS["entries"])
        try:
            entries = self.files.list(call.args["path"], uid, call.args["attributes"])
        except FileError as error:
            raise RpcError(error.code, error.message) from None
        call.result(entries=entries[offset:end], more=len(entries) > end)

    def _read(self, call: Call) -> None:
        uid, offset, length = _checked(call), call.args["offset"], call.args["length"]
        if offset < 0 or (length or 0) < 0:
            shown = f"`offset` is {offset} and `length` is {length}; neither may be negative."
            raise RpcError("invalid_request", shown, "Pass `offset` and `length` in bytes, each 0 or more.")
        try:
            data, stat = self.files.read(call.args["path"], uid), self.files.stat(call.args["path"], uid)
        except FileError as error:
            raise RpcError(error.code, error.message) from None
        body = data[offset:] if length is None else data[offset : offset + length]
        call.event("stat", **stat)
        sent = 0

        def pump() -> None:
            nonlocal sent
            while sent < len(body):
                room = call.room()
                if room <= 0:
                    return
                piece = body[sent : sent + min(room, 60000)]
                call.data(schema.BODY, piece)
                sent += len(piece)
            call.result(bytes=len(body))

        call.on_writable = pump
        pump()

    def _write(self, call: Call) -> None:
        uid, args, body = _checked(call), call.args, bytearray()
        missing = [args["path"], *self._missing(posixpath.dirname(args["path"]))]
        try:
            self.files.check_write(args["path"], uid, parents=args["parents"])
            in_place = args["in_place"] and self.files.exists(args["path"])
            if in_place:
                self.files.write(args["path"], b"", uid)
        except FileError as error:
            raise RpcError(error.code, error.message) from None

        def take(channel: int, data: bytes, credit: int) -> None:
            if channel == schema.BODY:
                try:
                    if in_place:
                        self.files.write(args["path"], data, uid, append=True)
                    else:
                        body.extend(data)
                        self.files.check_room(len(body))
                except FileError as error:
                    call.fail(error.code, error.message)
            call.consumed(credit)

        def finish() -> None:
            try:
                if not in_place:
                    self.files.write(args["path"], bytes(body), uid, mode=args["mode"], parents=args["parents"], append=args["append"])
                    self._give(missing, args["owner"])
                    self.files.set_attributes(args["path"], args["attributes"] or {})
                call.result(**self.files.stat(args["path"], uid))
            except FileError as error:
                call.fail(error.code, error.message)

        call.on_bytes, call.on_end, call.on_gone = take, finish, lambda: self._rpc.abandon(call)

    # -- ports --------------------------------------------------------------------------------------------------------

    def _connect_port(self, call: Call) -> None:
        port = call.args["port"]
        if not 0 < port <= schema.MOST_PORT:
            raise RpcError("invalid_request", f"{port} is not a valid port.", f"Use a port from 1 to {schema.MOST_PORT}.")
        handler = self.scripts.ports.get(port)
        if handler is None:
            raise RpcError("port_not_found", f"Nothing listens on port {port} of the sandbox.", "Start a program that listens on the port.")
        connection = PortConnection(call)
        call.event("connected", address=schema.LOOPBACK[0])
        task = asyncio.get_running_loop().create_task(self._serve_port(call, connection, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_port(self, call: Call, connection: PortConnection, handler: PortHandler) -> None:
        try:
            await handler(connection)
        except ConnectionResetError:
            call.fail("conflict", f"The program on port {call.args['port']} reset the connection.")
            return
        call.event("end")
        call.result()


def _checked(call: Call) -> int:
    """Check the user and the path of a file call, and return the user id.

    Raises:
        RpcError: The user is unknown, or the path is not absolute.
    """
    path, user = call.args["path"], call.args["user"]
    uid = find_uid(user)
    if not path.startswith("/") or "\0" in path:
        raise RpcError("path_invalid", f"The path {path[:300]!r} is not absolute.", "Begin the path with '/'.")
    return uid


class MemoryStream:
    """The host's side of a connection to a scripted guest; a :class:`~sandlot.model.ports.ByteStream`."""

    def __init__(self, guest: MemoryGuest) -> None:
        self._guest = guest
        self._pieces: list[bytes] = []
        self.buffered = 0
        self.news = asyncio.Event()
        self.writable = asyncio.Event()
        self.is_broken = False
        self.is_closed = False

    def put(self, data: bytes) -> None:
        """Queue bytes from the guest for :meth:`receive`."""
        self._pieces.append(data)
        self.buffered += len(data)
        self.news.set()

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for the next bytes from the guest, and return at most ``max_bytes`` bytes. Return ``b""`` after the stream has ended."""
        while not self._pieces:
            if self._is_over:
                return b""
            self.news.clear()
            await self.news.wait()
        taken, size = list[bytes](), 0
        while self._pieces and (not taken or size + len(self._pieces[0]) <= max_bytes):
            taken.append(self._pieces.pop(0))
            size += len(taken[-1])
        data = b"".join(taken)
        if len(data) > max_bytes:
            self._pieces.insert(0, data[max_bytes:])
            data = data[:max_bytes]
        self.buffered -= len(data)
        self._guest.flush()
        return data

    def try_send(self, frame: bytes) -> bool:
        """Send one frame as a whole. Return False, and send nothing, if the pipe to the guest is full.

        Raises:
            BrokenPipeError: The guest has ended, or the guest or the host has closed the stream.
        """
        if self._is_over:
            raise BrokenPipeError("the guest has ended, or the stream is closed")
        return self._guest.receive(frame)

    async def wait_writable(self) -> None:
        """Wait until the guest is not paused, so that :meth:`try_send` can succeed, or until the stream has ended."""
        while self._guest.is_frozen and not self._is_over:
            self.writable.clear()
            await self.writable.wait()

    async def aclose(self) -> None:
        """Close the host's side of the stream. Idempotent."""
        self.is_closed = True
        self.news.set()
        self.writable.set()
        if self._guest.stream is self:
            self._guest.stream = None

    @property
    def _is_over(self) -> bool:
        return self.is_closed or self.is_broken or self._guest.ended.done()
