"""Records of TLS between the first ClientHello and the response of the server (RFC 8446, 4.1.4). Pure.

A server may respond with a HelloRetryRequest. The client then sends a second ClientHello, which could name another server than the first one.

Invariants:
- Every input has a result; no input raises an exception. The work of both parsers is limited, however the input is split.
- No byte of a second ClientHello passes before the response of the server is known: only records that cannot contain one pass.
"""

from __future__ import annotations

from typing import Final, Literal

MAX_RESPONSE_BYTES: Final = 1024
"""Size from which the beginning of a response is taken for none of TLS. A ServerHello is recognised by its first 43 bytes; alerts may precede it."""
MAX_EARLY_RECORDS: Final = 256
"""Maximum number of records that a client may send before the response of the server. Servers accept 16 KiB of early data by default."""

_CHANGE_CIPHER_SPEC: Final = 20
_ALERT: Final = 21
_HANDSHAKE: Final = 22
_APPLICATION_DATA: Final = 23
_MAJOR: Final = 3
_RECORD_HEAD_BYTES: Final = 5
_HELLO_REQUEST: Final = bytes(4)
"""Message of TLS 1.2 that clients ignore during a handshake."""
_SERVER_HELLO: Final = 2
_RANDOM: Final = slice(6, 38)
"""Place of the random bytes in a ServerHello: after the type, the length and the version."""
_RETRY_RANDOM: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""Random bytes that make a ServerHello a HelloRetryRequest (RFC 8446, 4.1.3)."""

Response = Literal["incomplete", "retry", "other"]
"""Response to a ClientHello. ``retry``: a HelloRetryRequest. ``other``: no second ClientHello follows."""


def parse_response(data: bytes | bytearray) -> Response:
    """Parse the bytes that a server has sent so far.

    Args:
        data: All bytes from the beginning of the connection on.
    """
    is_long = len(data) > MAX_RESPONSE_BYTES
    data = bytes(data[:MAX_RESPONSE_BYTES])
    message = bytearray()
    at = 0
    while at < len(data):
        head = data[at : at + _RECORD_HEAD_BYTES]
        if head[0] not in {_ALERT, _HANDSHAKE} or head[1:2] not in {b"", bytes([_MAJOR])}:
            return "other"
        end = at + _RECORD_HEAD_BYTES + int.from_bytes(head[3:5], "big")
        if head[0] == _HANDSHAKE:
            message += data[at + _RECORD_HEAD_BYTES : end]
            while message.startswith(_HELLO_REQUEST):
                del message[: len(_HELLO_REQUEST)]
            if (kind := _kind(message)) != "incomplete":
                return kind
        at = end
    return "other" if is_long else "incomplete"


def _kind(message: bytearray) -> Response:
    """Return the kind of the first message of a server, as soon as its bytes show it."""
    random = message[_RANDOM]
    if not _HELLO_REQUEST.startswith(message) and (message[0] != _SERVER_HELLO or not _RETRY_RANDOM.startswith(random)):
        return "other"
    return "retry" if len(random) == len(_RETRY_RANDOM) else "incomplete"


class EarlyRecords:
    """Records that a client sends after its ClientHello, before it has read the response.

    Correct clients send no message of a handshake there, only records that clients of TLS 1.3 use for early data.
    """

    def __init__(self) -> None:
        self.held = bytearray()
        """Bytes that have not passed: from the first record on that could be a ClientHello, or the head of a record whose end is missing."""
        self._rest = 0
        """Number of bytes of the present record that have not arrived."""
        self._records = 0

    @property
    def is_blocked(self) -> bool:
        """True if nothing more passes before the response of the server is known."""
        return bool(self.held) and (self.held[0] not in {_CHANGE_CIPHER_SPEC, _ALERT, _APPLICATION_DATA} or self._records >= MAX_EARLY_RECORDS)

    def receive(self, data: bytes) -> bytes:
        """Add bytes of the client, and return those that pass."""
        self.held += data
        passed = bytearray()
        while self.held:
            if not self._rest:
                if self.is_blocked or len(self.held) < _RECORD_HEAD_BYTES:
                    break
                self._rest = _RECORD_HEAD_BYTES + int.from_bytes(self.held[3:5], "big")
                self._records += 1
            part = self.held[: self._rest]
            self._rest -= len(part)
            passed += part
            del self.held[: len(part)]
        return bytes(passed)
