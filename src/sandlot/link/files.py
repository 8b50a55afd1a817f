"""Files in a sandbox, streamed: neither end ever holds more than a window of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import Call, Streamed
from sandlot.link.pump import Pump
from sandlot.link.types import Entry
from sandlot.model.errors import SandlotError
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError


class FileReader(Streamed[int, bytes]):
    """A file's bytes as they arrive: iterate, and close it where not all of it was wanted.

    Args:
        pump: The link.
        args: Of ``file.read``.
        call_id: The call's id.
    """

    def __init__(self, pump: Pump, args: dict[str, Any], *, call_id: bytes) -> None:
        self._entry: Entry | None = None
        self._opened = asyncio.Event()
        self._bytes = 0
        self._limit = schema.LIMITS["count"] if args["length"] is None else args["length"]
        super().__init__(pump, "file.read", args, self._parse_result, call_id=call_id)

    @property
    def entry(self) -> Entry:
        """What the file was when it was opened; it may have changed since."""
        if self._entry is None:
            raise RuntimeError("not opened yet")
        return self._entry

    async def opened(self) -> Self:
        """Wait until the guest has opened it.

        Raises:
            SandlotError: It could not.
        """
        await self._ready(self._opened)
        if self._entry is None:
            self.outcome.result()
        return self

    def _on_told(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if self._entry is not None:
            raise ProtocolError(f"file.read told {name} twice")
        self._entry = parse.entry(fields)
        self._pump.connection.consumed(self._stream, credit)
        self._opened.set()

    def _on_bytes(self, event: events.Bytes) -> None:
        self._bytes += len(event.data)
        if event.channel != schema.BODY or self._entry is None or self._bytes > self._limit:
            raise ProtocolError("file.read sent bytes that were not asked for")
        self._put(event.data, event.credit)

    def _parse_result(self, given: object) -> int:
        size = parse.fit("file.read", schema.CALLS["file.read"]["result"], given)["bytes"]
        if size != self._bytes or self._entry is None:
            raise ProtocolError(f"file.read says {size} bytes and sent {self._bytes}")
        return int(size)

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._opened.set()


class Upload(Call[Entry]):
    """A file's body on its way into the sandbox.

    Args:
        pump: The link.
        args: Of ``file.write``.
        call_id: The call's id.
    """

    def __init__(self, pump: Pump, args: dict[str, Any], *, call_id: bytes) -> None:
        self._is_sent = False
        super().__init__(pump, "file.write", args, self._parse_result, call_id=call_id, keeps_sending=True)

    async def run(self, chunks: AsyncIterable[bytes] | bytes) -> Entry:
        """Send the body and wait for the answer; an error of the guest ends the sending, wherever it is.

        Args:
            chunks: The body. An iterable is read as fast as the guest takes it.

        Raises:
            SandlotError: The guest's error, or the link's end.
            Exception: What ``chunks`` raises; the guest then drops what it has.
        """
        feeding = asyncio.ensure_future(self._feed(chunks))
        try:
            await asyncio.wait((feeding, self.outcome), return_when=asyncio.FIRST_COMPLETED)
            if not self.outcome.done():
                feeding.result()
            return await self.wait()
        finally:
            self.abandon()
            feeding.cancel()
            await asyncio.wait((feeding,))

    async def _feed(self, chunks: AsyncIterable[bytes] | bytes) -> None:
        if isinstance(chunks, bytes | bytearray | memoryview):
            await self.send(chunks)
        else:
            async for chunk in chunks:
                await self.send(chunk)
        self._is_sent = True
        self.end()

    def _parse_result(self, given: object) -> Entry:
        if not self._is_sent:
            raise ProtocolError("file.write has a result before its body")
        return parse.entry(given)
