"""Connections to programs: how many of a sandbox are open, and the requests that wait for one."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast

import h11
import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import NotFoundError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import PreviewAccess
from sandlot.model.tunnels import Tunnel
from sandlot.server.preview import program_connection
from sandlot.server.preview.program_connection import ProgramConnection, ProgramConnections
from tests.unit.server.preview.world import OTHER, PORT, SANDBOX

OPEN = 2


class FakeTunnel:
    """A tunnel to a program that responds to each request."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_closed = False
        self._received: asyncio.Queue[bytes] = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._received.get()

    async def send(self, data: bytes) -> None:
        self._received.put_nowait(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" if data else b"")

    async def aclose(self) -> None:
        self.is_closed = True


class Requests:
    """Requests over connections to programs."""

    def __init__(self) -> None:
        self.tunnels: list[FakeTunnel] = []
        self.problem: Exception | None = None
        self.programs = ProgramConnections(self._connect, lambda: 0.0)

    async def _connect(self, access: PreviewAccess) -> Tunnel:
        if self.problem is not None:
            raise self.problem
        self.tunnels.append(FakeTunnel(access.port))
        return cast("Tunnel", self.tunnels[-1])

    async def begin(self, sandbox: SandboxId = SANDBOX, port: int = PORT, gone: asyncio.Future[None] | None = None) -> Request:
        """Begin a request: take a connection."""
        access = PreviewAccess(OPERATOR, sandbox, port, f"localhost:{port}", is_running=True, token=None, lifetime_s=None)
        gone = gone or asyncio.get_running_loop().create_future()
        return Request(self.programs, access, await self.programs.take(access, gone, is_repeatable=True))

    async def waiting(self, **where: Any) -> asyncio.Task[Request]:  # noqa: ANN401 - arguments of `begin`
        """Begin a request that has to wait."""
        task = asyncio.create_task(self.begin(**where))
        await turns()
        assert not task.done()
        return task


class Request:
    """A request that has a connection."""

    def __init__(self, programs: ProgramConnections, access: PreviewAccess, connection: ProgramConnection) -> None:
        self._programs, self._access, self.connection = programs, access, connection

    async def end(self) -> None:
        """Complete the request, after which the connection can be used again."""
        await self.connection.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
        await self.connection.send(h11.EndOfMessage())
        while not isinstance(await self.connection.events.next(), h11.EndOfMessage):
            pass
        self._programs.give_back(self._access, self.connection)

    def cut(self) -> None:
        """End the request and its connection."""
        self._programs.close(self._access.sandbox, self.connection)


async def turns() -> None:
    """Let other tasks run."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(program_connection, "MAX_OPEN", OPEN)
    return Requests()


async def test_requests_beyond_the_limit_get_the_connections_of_others_in_their_order(requests: Requests) -> None:
    first, second = [await requests.begin() for _ in range(OPEN)]
    waiting = [await requests.waiting() for _ in range(3)]
    await first.end()
    assert (await waiting[0]).connection is first.connection
    second.cut()
    await (await waiting[1]).end()
    await (await waiting[2]).end()
    assert len(requests.tunnels) == 3
    await requests.programs.aclose()


async def test_other_sandboxes_do_not_wait(requests: Requests) -> None:
    for _ in range(OPEN):
        await requests.begin()
    await requests.begin(OTHER)
    await requests.programs.aclose()


async def test_idle_connections_to_other_ports_are_closed_for_requests_that_wait(requests: Requests) -> None:
    for request in [await requests.begin() for _ in range(OPEN)]:
        await request.end()
    assert requests.programs.idle == OPEN
    await asyncio.gather(*(requests.begin(port=PORT + 1) for _ in range(OPEN)))
    assert [tunnel.is_closed for tunnel in requests.tunnels] == [True] * OPEN + [False] * OPEN
    await requests.programs.aclose()


async def test_a_connection_to_another_port_makes_room_when_it_is_given_back(requests: Requests) -> None:
    first, _ = [await requests.begin() for _ in range(OPEN)]
    waiting = await requests.waiting(port=PORT + 1)
    await first.end()
    await waiting
    assert requests.tunnels[0].is_closed
    assert requests.programs.idle == 0
    await requests.programs.aclose()


@pytest.mark.parametrize("how", ["left", "cancelled"])
async def test_a_client_that_leaves_waits_no_more(requests: Requests, how: str) -> None:
    first, _ = [await requests.begin() for _ in range(OPEN)]
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leaving, waiting = await requests.waiting(gone=gone), await requests.waiting()
    if how == "left":
        gone.set_result(None)
    else:
        leaving.cancel()
    with pytest.raises(ConnectionResetError if how == "left" else asyncio.CancelledError):
        await leaving
    await first.end()
    assert (await waiting).connection is first.connection
    await requests.programs.aclose()


@pytest.mark.parametrize("is_reusable", [True, False])
async def test_a_client_that_leaves_as_its_turn_comes_passes_it_on(requests: Requests, *, is_reusable: bool) -> None:
    first, _ = [await requests.begin() for _ in range(OPEN)]
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leaving, waiting = await requests.waiting(gone=gone), await requests.waiting()
    gone.set_result(None)
    if is_reusable:
        await first.end()
    else:
        first.cut()
    with pytest.raises(ConnectionResetError):
        await leaving
    await waiting
    await requests.programs.aclose()


async def test_a_request_that_waits_for_too_long_or_behind_too_many_is_refused(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = [await requests.begin() for _ in range(OPEN)]
    monkeypatch.setattr(program_connection, "WAIT_S", 0.01)
    with pytest.raises(UnavailableError, match="2 preview requests"):
        await requests.begin()
    monkeypatch.setattr(program_connection, "WAIT_S", 60)
    monkeypatch.setattr(program_connection, "MAX_WAITING", 1)
    waiting = await requests.waiting()
    with pytest.raises(UnavailableError, match="others wait"):
        await requests.begin()
    await first.end()
    await waiting
    await requests.programs.aclose()


async def test_a_connection_that_cannot_be_opened_takes_no_place(requests: Requests) -> None:
    requests.problem = NotFoundError("Nothing listens.")
    for _ in range(OPEN):
        with pytest.raises(NotFoundError):
            await requests.begin()
    requests.problem = None
    for _ in range(OPEN):
        await requests.begin()
    await requests.programs.aclose()
