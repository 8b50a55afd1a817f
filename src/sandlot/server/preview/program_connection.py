"""HTTP connections to programs inside sandboxes, over tunnels, and the pool of idle ones.

To open a tunnel takes 2 to 4 ms, several times as long as a request over an open one (measured), so connections are kept.

Invariants:
- A connection is kept only after a complete request and response, after which the program may send nothing. If it sends anything, or closes the
  connection, the connection is dropped.
- A kept connection serves only its own sandbox and port.
- At most ``MAX_IDLE`` connections of a port and ``MAX_IDLE_ALL`` of all ports are kept, for ``IDLE_S`` each.
- At most ``MAX_OPEN`` connections of a sandbox are open at once, idle ones included: the guest refuses more than 64 tunnels. Further requests wait,
  the first come first, and idle connections of the sandbox are closed for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import h11

from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import PreviewAccess
from sandlot.model.tunnels import Tunnel
from sandlot.server.preview.http_events import HttpEvents
from sandlot.server.preview.responses import stalled_request_error

IDLE_S: Final = 4.0
"""Seconds for which an idle connection is kept. Node.js closes its own after 5 seconds."""
FRESH_S: Final = 1.0
"""Seconds for which an idle connection is used for a request that must not be sent twice. Gunicorn closes its own after 2 seconds."""
STALL_TIMEOUT_S: Final = 600.0
"""Seconds for which a program may read nothing of what is sent to it. A program with one thread can be busy with another request until then."""
MAX_IDLE: Final = 16
MAX_IDLE_ALL: Final = 256
MAX_OPEN: Final = 48
MAX_WAITING: Final = 256
"""Number of requests of a sandbox that may wait for a connection."""
WAIT_S: Final = 60.0
"""Seconds for which a request waits for a connection."""
MAX_HEAD_BYTES: Final = 64 * 1024

Key = tuple[SandboxId, int]
Connect = Callable[[PreviewAccess], Coroutine[None, None, Tunnel]]


class ProgramConnection:
    """An HTTP connection to a program.

    Attributes:
        http: State of the connection.
        events: Events of the responses.
        has_received: True once the program has sent a byte of the current response.
        is_reused: True from the second request on.
    """

    __slots__ = ("_aborting", "_reading", "_tunnel", "events", "has_received", "http", "idle_since_s", "is_reused")

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._reading: asyncio.Future[bytes] | None = None
        self._aborting: asyncio.Future[None] | None = None
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.events = HttpEvents(self.http, self.read)
        self.has_received = False
        self.is_reused = False
        self.idle_since_s = 0.0

    @property
    def is_ended(self) -> bool:
        """True if the program has closed the idle connection, or has sent something."""
        return self._reading is not None and self._reading.done()

    async def send(self, event: h11.Event) -> None:
        """Send an event of the request, and wait while the program does not read.

        Raises:
            ProgramError: The program has read nothing for ``STALL_TIMEOUT_S`` seconds. The connection is closed.
            SandlotError: The connection or the sandbox has ended.
        """
        if data := self.http.send(event):
            await self.write(data)

    async def read(self) -> bytes:
        """Return the next bytes of the program; empty at the end.

        Raises:
            SandlotError: The connection or the sandbox has ended.
        """
        reading, self._reading = self._reading, None
        data = await (self._read_tunnel() if reading is None else reading)
        self.has_received = self.has_received or bool(data)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the program does not read.

        Raises:
            ProgramError: The program has read nothing for ``STALL_TIMEOUT_S`` seconds. The connection is closed.
            SandlotError: The connection or the sandbox has ended.
        """
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await self._tunnel.send(data)
        except TimeoutError:
            self.abort()
            raise stalled_request_error(STALL_TIMEOUT_S) from None

    def rest(self) -> bytes:
        """Return the bytes that arrived behind the response to an upgrade."""
        return bytes(self.http.trailing_data[0])

    def start_idling(self, ended: Callable[[], None]) -> bool:
        """Prepare for a further request, and watch the connection until then. Returns False if there can be no further request.

        Args:
            ended: Function that is called if the program closes the connection or sends something.
        """
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE or self.http.trailing_data[0]:
            return False
        self.http.start_next_cycle()
        self.has_received, self.is_reused = False, True
        self._reading = asyncio.ensure_future(self._read_tunnel())
        self._reading.add_done_callback(lambda _: ended())
        return True

    def abort(self) -> None:
        """Close the connection in the background. The program sees a reset, and :attr:`events` and :meth:`read` end."""
        if self._aborting is None:
            self._aborting = asyncio.ensure_future(self._tunnel.aclose())

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # retrieved
        if self._aborting is None:
            self._aborting = asyncio.ensure_future(self._tunnel.aclose())
        await self._aborting

    async def _read_tunnel(self) -> bytes:
        try:
            return await anext(self._tunnel)
        except StopAsyncIteration:
            return b""


class _Waiter:
    """A request that waits for a connection to a program.

    Attributes:
        key: Sandbox and port of the request; None if the request needs a new connection.
        given: A connection to the port, or None: a connection may be opened.
    """

    __slots__ = ("given", "key")

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.given: asyncio.Future[ProgramConnection | None] = asyncio.get_running_loop().create_future()


class ProgramConnections:
    """Connections to programs: opens them and keeps idle ones.

    Args:
        connect: Function that opens a tunnel.
        now_s: Monotonic clock.
    """

    def __init__(self, connect: Connect, now_s: Callable[[], float]) -> None:
        self._connect = connect
        self._now_s = now_s
        self._idle: OrderedDict[ProgramConnection, Key] = OrderedDict()
        self._of_key: dict[Key, list[ProgramConnection]] = {}
        self._open: Counter[SandboxId] = Counter()
        """Number of connections of each sandbox that are open, being opened or being closed."""
        self._waiting: dict[SandboxId, deque[_Waiter]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return len(self._idle)

    async def take(self, access: PreviewAccess, gone: asyncio.Future[None], *, is_repeatable: bool) -> ProgramConnection:
        """Return an idle connection to the port, or a new one. A new connection resumes a suspended sandbox.

        The caller must pass the connection to :meth:`give_back` or :meth:`close`.

        Args:
            access: Permission for the request.
            gone: Done when the client has left, and waits no more.
            is_repeatable: True if the request can be sent again after the program has closed an idle connection at the same moment.

        Raises:
            ConnectionResetError: The client has left.
            UnavailableError: Too many connections of the sandbox are open (``busy``).
            SandlotError: The connection cannot be opened.
        """
        key = (access.sandbox, access.port)
        kept = self._of_key.get(key, [])
        while kept:
            connection = kept[-1]
            self._forget(connection)
            if access.is_running and not connection.is_ended and (is_repeatable or self._now_s() - connection.idle_since_s < FRESH_S):
                return connection
            self.close(access.sandbox, connection)
        return await self.open(access, gone, may_reuse=True)

    async def open(self, access: PreviewAccess, gone: asyncio.Future[None], *, may_reuse: bool = False) -> ProgramConnection:
        """Return a new connection, or one that another request has just given back.

        Args:
            access: Permission for the request.
            gone: Done when the client has left, and waits no more.
            may_reuse: False for a new connection in all cases.

        Raises:
            ConnectionResetError: The client has left.
            UnavailableError: Too many connections of the sandbox are open (``busy``).
            SandlotError: The connection cannot be opened.
        """
        sandbox = access.sandbox
        if self._open[sandbox] < MAX_OPEN:
            self._open[sandbox] += 1
        elif (given := await self._wait(_Waiter((sandbox, access.port) if may_reuse else None), sandbox, gone)) is not None:
            return given
        try:
            return ProgramConnection(await self._connect(access))
        except BaseException:
            self._release(sandbox)
            raise

    def give_back(self, access: PreviewAccess, connection: ProgramConnection) -> None:
        """Keep a connection for a further request, or close it if there can be none."""
        key = (access.sandbox, access.port)
        waiter = self._next_waiter(access.sandbox)
        is_wanted = len(self._of_key.get(key, ())) < MAX_IDLE if waiter is None else waiter.key == key
        if not is_wanted or not connection.start_idling(lambda: self._drop(connection)):
            self.close(access.sandbox, connection)
        elif waiter is not None:
            self._waiting[access.sandbox].popleft()
            waiter.given.set_result(connection)
        else:
            connection.idle_since_s = self._now_s()
            self._idle[connection] = key
            self._of_key.setdefault(key, []).append(connection)
            if len(self._idle) > MAX_IDLE_ALL:
                self._drop(next(iter(self._idle)))
            self._set_timer()

    async def _wait(self, waiter: _Waiter, sandbox: SandboxId, gone: asyncio.Future[None]) -> ProgramConnection | None:
        """Wait for a connection that another request gives back, or, for which None stands, for the place of one that is closed."""
        waiting = self._waiting.setdefault(sandbox, deque())
        if len(waiting) >= MAX_WAITING:
            raise _busy()
        waiting.append(waiter)
        idle = next((each for each, (owner, _) in self._idle.items() if owner == sandbox), None)
        if idle is not None:  # of another port
            self._drop(idle)
        ends: set[asyncio.Future[Any]] = {waiter.given, gone}
        try:
            await asyncio.wait(ends, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(waiter, sandbox)
            raise
        if gone.done():
            self._leave(waiter, sandbox)
            raise ConnectionResetError
        if not waiter.given.done():
            self._leave(waiter, sandbox)
            raise _busy()
        return waiter.given.result()

    def _leave(self, waiter: _Waiter, sandbox: SandboxId) -> None:
        if not waiter.given.done():
            self._waiting[sandbox].remove(waiter)
            self._next_waiter(sandbox)
        elif (given := waiter.given.result()) is not None:
            self.close(sandbox, given)
        else:
            self._release(sandbox)

    def _next_waiter(self, sandbox: SandboxId) -> _Waiter | None:
        waiting = self._waiting.get(sandbox)
        if not waiting:
            self._waiting.pop(sandbox, None)
            return None
        return waiting[0]

    def _release(self, sandbox: SandboxId) -> None:
        """Give the place of a closed connection to the first request that waits."""
        if (waiter := self._next_waiter(sandbox)) is not None:
            self._waiting[sandbox].popleft()
            waiter.given.set_result(None)
            return
        self._open[sandbox] -= 1
        if not self._open[sandbox]:
            del self._open[sandbox]

    async def aclose(self) -> None:
        """Close all idle connections, and wait until all connections that are not in use are closed."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._idle):
            self._drop(connection)
        while self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, connection: ProgramConnection) -> None:
        if connection in self._idle:
            self.close(self._forget(connection), connection)

    def close(self, sandbox: SandboxId, connection: ProgramConnection) -> None:
        """Close a connection in the background, whatever happens to the task of its client."""

        async def close() -> None:
            try:
                with suppress(SandlotError):
                    await connection.aclose()
            finally:
                self._release(sandbox)

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget(self, connection: ProgramConnection) -> SandboxId:
        key = self._idle.pop(connection)
        kept = self._of_key[key]
        kept.remove(connection)
        if not kept:
            del self._of_key[key]
        return key[0]

    def _set_timer(self) -> None:
        if self._timer is None and self._idle:
            oldest = next(iter(self._idle))
            self._timer = asyncio.get_running_loop().call_later(max(0.0, oldest.idle_since_s + IDLE_S - self._now_s()), self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        for connection in list(self._idle):
            if self._now_s() - connection.idle_since_s < IDLE_S:
                break
            self._drop(connection)
        self._set_timer()


def _busy() -> UnavailableError:
    return UnavailableError(
        f"The sandbox has {MAX_OPEN} preview requests and WebSockets open, the maximum, and others wait.",
        code=ErrorCode.BUSY,
        hint="Retry later, or close pages and WebSockets that you do not need.",
        fields={"retry_after_s": 1},
    )
