"""Connections to ports inside a sandbox: bytes both ways, each half ended by itself."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import Streamed
from sandlot.link.pump import Pump
from sandlot.model.errors import SandlotError
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError


class Tunnel(Streamed[None, bytes]):
    """One connection. Iterate for what the program sends until it ends its half; :meth:`send` and :meth:`end` are the other.

    Args:
        pump: The link.
        port: Where, on the sandbox's own loopback.
        call_id: The call's id.
    """

    def __init__(self, pump: Pump, port: int, *, call_id: bytes) -> None:
        self.address = ""
        """Which of the loopback's addresses something listens on; empty before :meth:`opened`."""
        self._connected = asyncio.Event()
        self.program_ended = False
        """Whether it sends no more."""
        self._is_read = False
        super().__init__(pump, "port.connect", {"port": port}, parse.nothing, call_id=call_id, keeps_sending=True)

    async def opened(self) -> Self:
        """Wait until it is connected.

        Raises:
            SandlotError: It cannot be.
        """
        await self._ready(self._connected)
        if not self.address:
            self.abandon()
            self.outcome.result()
        return self

    async def __anext__(self) -> bytes:
        if self._is_read:
            raise StopAsyncIteration
        piece = await super().__anext__()
        if not piece:
            self._is_read = True
            raise StopAsyncIteration
        return piece

    def _on_told(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if (name == "connected") == bool(self.address) or self.program_ended:
            raise ProtocolError(f"port.connect told {name}, which cannot come now")
        if name == "end":
            self.program_ended = True
            self._put(b"", credit)
            return
        if fields["address"] not in schema.LOOPBACK:
            raise ProtocolError("port.connect is connected to what is no loopback")
        self.address = fields["address"]
        self._pump.connection.consumed(self._stream, credit)
        self._connected.set()

    def _on_bytes(self, event: events.Bytes) -> None:
        if event.channel != schema.BODY or not self.address or self.program_ended:
            raise ProtocolError("port.connect sent bytes that cannot come now")
        self._put(event.data, event.credit)

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._connected.set()
