"""Tunnels: connections from clients of the service to ports inside a sandbox.

The bytes of a tunnel go over the link to the guest, and the guest connects to the port on the loopback interface of the sandbox. A tunnel therefore
works for a sandbox without a network, and reaches only programs that listen inside the sandbox.

Invariants:
- Data in a tunnel counts as activity of the sandbox; an idle tunnel does not.
- Both directions have backpressure. The service buffers at most one stream window of the program's data and one message of the client. The message
  of the client counts in the buffer budget (``model/buffer_budget.py``).
- If one side shuts down its sending direction, the other side sees the end of the stream. If the client disconnects without this shutdown, the
  service stops, or the sandbox is suspended, the program sees a connection reset.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Self

import structlog

from sandlot.core.concurrency import StreamCloser
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.link.tunnels import Tunnel as TunnelCall
from sandlot.model.access import Principal
from sandlot.model.errors import SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.previews import check_port
from sandlot.model.tunnels import Tunnel

CLOSE_TIMEOUT_S = 10.0
"""Seconds that the program has to read the remaining data after both directions of the tunnel were closed."""

_log = structlog.get_logger("sandlot.core")


class TunnelService:
    """Connections to ports inside sandboxes."""

    def __init__(self, registry: SandboxRegistry) -> None:
        self._registry = registry

    async def connect(self, principal: Principal, sandbox: str, port: int) -> Tunnel:
        """Connect to a port inside a sandbox. A suspended sandbox is resumed first if its ``auto_resume`` is set.

        The guest connects to 127.0.0.1, or to ::1 if no program listens on 127.0.0.1. Closing a tunnel of which one direction is still open resets
        the connection of the program.

        Raises:
            InvalidRequestError: The port number is out of range.
            NotFoundError: No program listens on the port (``port_not_found``).
            LimitError: The sandbox has the maximum number of tunnels (``limit_exceeded``).
            TimeoutExceededError: The program on the port does not accept the connection.
        """
        live = self._registry.find(sandbox, principal)
        check_port(port)
        async with live.connection() as link:
            return PortTunnel(live, port, await link.connect_port(port))


class PortTunnel:
    """A connection to a port inside a sandbox. Iterate over the tunnel for the data that the listening program sends.

    Attributes:
        sent_bytes: Bytes sent to the program.
        received_bytes: Bytes received from the program.
    """

    __slots__ = ("_call", "_closed", "_closer", "_ended", "_sandbox", "_started_s", "port", "received_bytes", "sent_bytes")

    def __init__(self, sandbox: Sandbox, port: int, call: TunnelCall) -> None:
        self._sandbox = sandbox
        self._call = call
        self._closed = False
        self._closer = StreamCloser()
        self._ended = False
        self._started_s = time.monotonic()
        self.port = port
        self.sent_bytes = 0
        self.received_bytes = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next data of the program.

        Raises:
            ConflictError: The program reset the connection, or the sandbox was suspended.
        """
        try:
            piece = await self._closer.wait_next(self._call.__anext__)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None
        self.received_bytes += len(piece)
        self._sandbox.activity.touch()
        return piece

    async def send(self, data: bytes) -> None:
        """Send data to the program, and wait while the program does not read.

        Raises:
            ConflictError: The tunnel has ended.
            UnavailableError: The buffer budget has no memory for the data (``busy``).
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

    async def end(self) -> None:
        """Close the direction to the program: the program reads the remaining data and then sees the end of the stream. Idempotent."""
        self._ended = True
        self._call.end()

    async def wait_ended(self) -> None:
        """Wait until both directions are closed, or until the program has closed the connection."""
        try:
            await self._call.wait()
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def aclose(self) -> None:
        """Close the connection. If one direction of the connection is still open, the program sees a connection reset. Idempotent."""
        await self._closer.aclose()
        if self._ended and self._call.program_ended:
            with suppress(SandlotError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._call.wait()
        await self._call.aclose()
        if not self._closed:
            self._closed = True
            _log.info(
                "tunnel.closed",
                sandbox=self._sandbox.id,
                port=self.port,
                sent_bytes=self.sent_bytes,
                received_bytes=self.received_bytes,
                duration_s=round(time.monotonic() - self._started_s, 3),
            )
