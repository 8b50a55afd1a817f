"""TLS of a client connection, without I/O.

The event loop can serve TLS itself, but reports a connection only after its handshake. Connections that never complete a handshake would then count
towards no limit.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

RECORD_MAX_BYTES: Final = 16 * 1024
"""Largest number of bytes in a record of TLS, and so of a read (RFC 8446, 5.1)."""
OVERHEAD_MAX_BYTES: Final = 64 * 1024
"""Largest number of bytes of handshakes and key updates that are sent over a connection. A client could request key updates without end."""


class TlsConnection:
    """Server side of TLS for one connection: decrypts what the client sends, and encrypts what is sent to it.

    Args:
        context: Certificate and settings.
    """

    __slots__ = ("_incoming", "_outgoing", "_overhead_bytes", "_tls", "is_ended")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._overhead_bytes = 0
        self.is_ended = False
        """True once the client has ended its direction of the connection."""

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes from the network. :meth:`take_output` then returns the bytes that the handshake has to send.

        Returns:
            The bytes of the client; empty during the handshake.

        Raises:
            ssl.SSLError: The bytes are not TLS, or the two sides have no version or cipher in common.
        """
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._tls.read(RECORD_MAX_BYTES):
                pieces.append(piece)
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # instead of no bytes, once both sides have ended
            self.is_ended = True
        self._overhead_bytes += self._outgoing.pending
        if self._overhead_bytes > OVERHEAD_MAX_BYTES:
            raise ssl.SSLError(f"more than {OVERHEAD_MAX_BYTES} bytes of handshakes and key updates")
        return b"".join(pieces)

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt bytes for the client.

        Raises:
            ConnectionResetError: The handshake is not complete, or has failed.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            raise ConnectionResetError from None
        return self.take_output()

    def end(self) -> bytes:
        """Return the message that tells the client that everything was sent; empty before the end of the handshake."""
        with suppress(ssl.SSLError):  # the client has not sent its own
            self._tls.unwrap()
        return self.take_output()

    def take_output(self) -> bytes:
        """Return the bytes for the network that no call has returned."""
        return self._outgoing.read()
