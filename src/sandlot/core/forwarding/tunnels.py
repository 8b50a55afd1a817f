"""Tunnels to ports inside a sandbox: connections to its own loopback, for clients outside.

They go through the link to the guest, which connects inside: no network of the sandbox is opened for them, one without any has them, and they reach
nothing but what listens in that sandbox.

Laws:
- What passes through one keeps its sandbox from being idle; one on which nothing passes does not.
- Neither side is sent more than it takes: at most a stream's window of what a program sends waits here, and of a client's one message, which is
  counted (``core/node/buffer_budget.py``).
- A half that ends is ended on the other side. A client that goes away without that, a service that stops, a sandbox that comes to rest: the program
  sees its connection reset.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol, Self

import structlog

from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Tunnel as Call
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.protocol.schema import MOST_PORT

LAST_S = 10.0
"""How long a program may take to read what came last, once both halves have ended and the client has left."""

_log = structlog.get_logger("sandlot.core")


class Peer(Protocol):
    """The client's end of a tunnel."""

    gone: asyncio.Event
    """Set once it has gone away."""

    async def receive(self) -> bytes | None:
        """What the client sends next: b"" where it ends its half, None where it has gone away."""
        ...

    async def send(self, data: bytes) -> None:
        """Send the client something; waits while it takes nothing."""
        ...

    async def ended(self) -> None:
        """The program has ended its half."""
        ...


class Tunnel:
    """One connection to a port. Iterate it for what the program sends until it ends its half.

    Args:
        sandbox: Where.
        port: Which.
        call: The link's end of it.
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
        """To the program."""
        self.received_bytes = 0
        """Of the program."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """What the program sends next.

        Raises:
            ConflictError: It broke the connection off, or the sandbox came to rest.
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
        """Send the program something; waits while it takes nothing.

        Raises:
            ConflictError: The tunnel is over.
            UnavailableError: ``busy``: there is no memory to keep it.
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
        """Send no more: the program reads to the end of what there is. Idempotent."""
        self._ended = True
        self._call.end()

    async def over(self) -> None:
        """Return once both have ended, or the program has and takes nothing any more.

        Raises:
            SandlotError: It was cut.
        """
        try:
            await self._call.wait()
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def aclose(self) -> None:
        """Let go of it: where a half has not ended, the program sees a reset. Idempotent."""
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
    """Connect to what listens on a port inside; a sandbox that rests is resumed for it.

    Args:
        sandbox: Where.
        port: On 127.0.0.1, or else on ::1.

    Raises:
        InvalidRequestError: There is no such port.
        NotFoundError: ``port_not_found``: nothing listens there.
        LimitError: ``limit_exceeded``: the sandbox has as many tunnels as it may.
        TimeoutExceededError: What listens there accepts nobody.
        SandlotError: The sandbox has ended, or rests and is not to be resumed.
    """
    if not 0 < port <= MOST_PORT:
        raise InvalidRequestError(f"There is no port {port}.", hint=f"Use 1 to {MOST_PORT}.", fields={"field": "port"})
    async with sandbox.connection() as link:
        return Tunnel(sandbox, port, await link.connect(port))


async def carry(tunnel: Tunnel, peer: Peer) -> bool:
    """Move bytes both ways until the tunnel is over, or its client has gone away.

    Args:
        tunnel: To a port.
        peer: The client.

    Returns:
        Whether it is over, and the client still there.

    Raises:
        SandlotError: It was cut.
    """
    taking, giving, leaving = tasks = [asyncio.create_task(work) for work in (_take(tunnel, peer), _give(tunnel, peer), _leave(peer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if peer.gone.is_set() or leaving.done():
            return False
        (giving if giving.done() else taking).result()
        return giving.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _leave(peer: Peer) -> None:
    """Return when the client has gone away, whatever is being sent."""
    await peer.gone.wait()


async def _take(tunnel: Tunnel, peer: Peer) -> None:
    """What the client sends, until it goes away."""
    while (piece := await peer.receive()) is not None:
        if not piece:
            tunnel.end()
            continue
        with suppress(ConflictError):  # it is over, or was cut, which is about to be told
            await tunnel.send(piece)


async def _give(tunnel: Tunnel, peer: Peer) -> None:
    """What the program sends, until the tunnel is over."""
    async for piece in tunnel:
        await peer.send(piece)
    await peer.ended()
    await tunnel.over()
