"""Tunnels: connections between clients outside and ports inside a sandbox.

A tunnel goes through the link to the guest, which connects to the sandbox's own loopback. So no network of the sandbox is opened, sandboxes
without a network have tunnels too, and a tunnel reaches only programs that listen in that sandbox.

Invariants:
- Data that passes through a tunnel counts as activity of the sandbox; an idle tunnel does not.
- Neither side is sent more than it takes. At most one stream window of the program's data waits here, and one message of the client, which
  counts in the buffer budget (``core/node/buffer_budget.py``).
- A half that one side ends is ended on the other side. If the client disconnects without that, the service stops or the sandbox is suspended,
  the program sees a connection reset.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Protocol, Self

import structlog

from sandlot.core.sandbox import Sandbox
from sandlot.link.tunnels import Tunnel as Call
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.protocol.schema import MOST_PORT

LAST_S = 10.0
"""Seconds that a program has to read the last data after both halves have ended and the client has left."""

_log = structlog.get_logger("sandlot.core")


class Peer(Protocol):
    """The client's end of a tunnel."""

    gone: asyncio.Event
    """Set when the client has disconnected."""

    async def receive(self) -> bytes | None:
        """Return the next data of the client: b"" when the client ends its half, None when it has disconnected."""
        ...

    async def send(self, data: bytes) -> None:
        """Send data to the client. Waits while the client reads nothing."""
        ...

    async def ended(self) -> None:
        """Tell the client that the program has ended its half."""
        ...


class Tunnel:
    """A connection to a port. Iterate it for the program's data until the program ends its half.

    Args:
        sandbox: Sandbox that has the port.
        port: Port number.
        call: The link's stream of the connection.

    Attributes:
        sent_bytes: Bytes sent to the program.
        received_bytes: Bytes received from the program.
    """

    __slots__ = ("_began_s", "_call", "_closed", "_ended", "_sandbox", "port", "received_bytes", "sent_bytes")

    def __init__(self, sandbox: Sandbox, port: int, call: Call) -> None:
        self._sandbox = sandbox
        self._call = call
        self._closed = False
        self._ended = False
        self._began_s = time.monotonic()
        self.port = port
        self.sent_bytes = 0
        self.received_bytes = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the program's next data.

        Raises:
            ConflictError: The program reset the connection, or the sandbox was suspended.
            SandboxEndedError: The sandbox has ended.
        """
        try:
            piece = await anext(self._call)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None
        self.received_bytes += len(piece)
        self._sandbox.activity.touch()
        return piece

    async def send(self, data: bytes) -> None:
        """Send data to the program. Waits while the program reads nothing.

        Raises:
            ConflictError: The tunnel has ended.
            UnavailableError: ``busy``: the buffer budget has no memory for the data.
            SandboxEndedError: The sandbox has ended.
        """
        self._sandbox.buffers.take(len(data))
        try:
            await self._call.send(data)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None
        finally:
            self._sandbox.buffers.give(len(data))
        self.sent_bytes += len(data)
        self._sandbox.activity.touch()

    def end(self) -> None:
        """End the client's half: the program reads the rest and then the end of the stream. Idempotent."""
        self._ended = True
        self._call.end()

    async def wait_ended(self) -> None:
        """Wait until both halves have ended, or the program has ended its half and reads no more.

        Raises:
            SandlotError: The connection was interrupted.
        """
        try:
            await self._call.wait()
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def aclose(self) -> None:
        """Close the connection. If a half has not ended, the program sees a reset. Idempotent."""
        if self._ended and self._call.program_ended:
            with suppress(SandlotError, TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._call.wait()
        await self._call.aclose()
        if not self._closed:
            self._closed = True
            _log.info(
                "tunnel",
                sandbox=self._sandbox.id,
                port=self.port,
                sent=self.sent_bytes,
                received=self.received_bytes,
                s=round(time.monotonic() - self._began_s, 3),
            )


async def connect(sandbox: Sandbox, port: int) -> Tunnel:
    """Connect to a port inside a sandbox. A suspended sandbox is resumed if it may be.

    Args:
        sandbox: Sandbox that has the port.
        port: Port on 127.0.0.1; if no program listens there, on ::1.

    Raises:
        InvalidRequestError: The port number is out of range.
        NotFoundError: ``port_not_found``: no program listens on the port.
        LimitError: ``limit_exceeded``: the sandbox has the maximum number of tunnels.
        TimeoutExceededError: The program on the port does not accept the connection.
        SandlotError: The sandbox has ended, or is suspended and must not be resumed.
    """
    if not 0 < port <= MOST_PORT:
        raise InvalidRequestError(f"port is {port}; it must be from 1 to {MOST_PORT}.", fields={"field": "port"})
    async with sandbox.connection() as link:
        return Tunnel(sandbox, port, await link.connect_port(port))


async def carry(tunnel: Tunnel, peer: Peer) -> bool:
    """Move data both ways until the tunnel has ended or its client has disconnected.

    Args:
        tunnel: Connection to a port.
        peer: The client.

    Returns:
        True if the tunnel has ended and the client is still connected.

    Raises:
        SandlotError: The connection was interrupted.
    """
    sending, receiving = asyncio.create_task(_send(tunnel, peer)), asyncio.create_task(_receive(tunnel, peer))
    leaving = asyncio.create_task(peer.gone.wait())
    tasks: list[asyncio.Task[Any]] = [sending, receiving, leaving]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if peer.gone.is_set():
            return False
        (receiving if receiving.done() else sending).result()
        return receiving.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(tunnel: Tunnel, peer: Peer) -> None:
    """Send the client's data to the program until the client disconnects."""
    while (piece := await peer.receive()) is not None:
        if not piece:
            tunnel.end()
            continue
        with suppress(ConflictError):  # the tunnel has ended or was interrupted; the other direction reports it
            await tunnel.send(piece)


async def _receive(tunnel: Tunnel, peer: Peer) -> None:
    """Send the program's data to the client until the tunnel has ended."""
    async for piece in tunnel:
        await peer.send(piece)
    await peer.ended()
    await tunnel.wait_ended()
