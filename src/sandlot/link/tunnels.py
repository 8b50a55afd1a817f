"""Connections to ports inside a sandbox. The two directions of a connection end independently of each other."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import StreamedCall
from sandlot.link.transport import FrameTransport
from sandlot.model.errors import SandlotError
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError


class Tunnel(StreamedCall[None, bytes]):
    """One connection from the host to a program that listens on a port of a sandbox.

    Iterate over the tunnel to receive the bytes that the program sends. Send bytes to the program with :meth:`send`, then call :meth:`end`.

    Args:
        transport: Sends and receives the frames.
        port: TCP port on the sandbox's own loopback interface.
        call_id: Id of the call, 16 bytes.
    """

    def __init__(self, transport: FrameTransport, port: int, *, call_id: bytes) -> None:
        self.address = ""
        """The loopback address on which the program listens; empty before :meth:`opened`."""
        self._connected = asyncio.Event()
        self.program_ended = False
        """True if the program has ended its direction of the connection and sends no more bytes."""
        self._is_read = False
        super().__init__(transport, "port.connect", {"port": port}, parse.nothing, call_id=call_id, keeps_sending=True)

    async def opened(self) -> Self:
        """Wait until the connection is established.

        Raises:
            SandlotError: The connection cannot be established.
        """
        await self._wait_first_message(self._connected)
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

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the program. Wait while the program does not read.

        Raises:
            SandlotError: The connection or the link has ended, or :meth:`end` was called.
        """
        await self._stream.send(data)

    def end(self) -> None:
        """End the direction to the program. The program then reads the bytes that were sent, followed by the end of file."""
        self._stream.end_sending()

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if (name == "connected") == bool(self.address) or self.program_ended:
            raise ProtocolError(f"port.connect sent the event {name!r} at the wrong time; it must send 'connected' once, then 'end' at most once")
        if name == "end":
            self.program_ended = True
            self._stream.put(b"", credit)
            return
        if fields["address"] not in schema.LOOPBACK:
            raise ProtocolError(f"port.connect reports the address {fields['address'][:50]!r}, which is not a loopback address")
        self.address = fields["address"]
        self._transport.connection.consumed(self._stream.id, credit)
        self._connected.set()

    def _on_bytes(self, event: events.Bytes) -> None:
        if event.channel != schema.BODY or not self.address or self.program_ended:
            raise ProtocolError(
                f"port.connect sent bytes on channel {event.channel}; only bytes on channel {schema.BODY}, between 'connected' and 'end', are allowed"
            )
        self._stream.put(event.data, event.credit)

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._connected.set()
