"""Parser of the first message of a TLS client (RFC 8446, 4.1.2). Pure.

Invariants:
- Every input has a result; no input raises an exception.
- The input is limited to ``MAX_HELLO_BYTES``, and parsing takes time in proportion to it.
- A message with two server names, or with data where the format has none, is malformed: two parsers could read different names. The same holds for
  further bytes in the last record of the message, which must end with the record (RFC 8446, 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

MAX_HELLO_BYTES: Final = 16 * 1024
"""Largest size of the records of a ClientHello. Browsers with post-quantum key shares send 2 KiB."""
MAX_RECORDS: Final = 64
"""Largest number of records of a ClientHello. The parser begins again with each piece that arrives, so this limits its work."""

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD_BYTES: Final = 1 << 14
_RECORD_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_ENCRYPTED_CLIENT_HELLO: Final = frozenset({0xFE0D, 0xFFCE})
"""Extensions that hide the server name: Encrypted Client Hello (RFC 9849), and ESNI, which came before it."""
_ALERT: Final = 21
_MAJOR: Final = 3
_MAX_MAJOR: Final = 15
"""Major version of a record from which no server takes a connection for TLS."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The first message of a TLS client.

    Args:
        server_name: Name of the server that the client asks for (SNI), as it was sent. None: the client asks for no server.
        may_hide_name: True if the message has an encrypted part, which may ask for another server. Browsers always send such a part, mostly with
            random bytes.
        size: Number of bytes of the records of the message.
    """

    server_name: str | None
    may_hide_name: bool = False
    size: int = field(default=0, compare=False)


HelloResult = ClientHello | Literal["incomplete", "malformed", "not_tls"]
"""Result of the parser. ``incomplete``: more bytes are needed. ``malformed``: TLS, but the message violates the format or is too long."""


class _MalformedError(Exception):
    """The message violates the format."""


class _Reader:
    """Reads the fields of a message from left to right."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise _MalformedError
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_bytes: int) -> bytes:
        """Read a field that begins with its length."""
        return self.take(self.number(length_bytes))


def parse_client_hello(data: bytes | bytearray | memoryview) -> HelloResult:
    """Parse the bytes that a client has sent so far.

    Args:
        data: All bytes from the beginning of the connection on. Bytes after the message are ignored.
    """
    data = bytes(data[: MAX_HELLO_BYTES + 1])
    begin = _recognise(data)
    if begin is not None:
        return begin
    try:
        found = _first_message(data)
        if found is None:
            return "incomplete" if len(data) <= MAX_HELLO_BYTES else "malformed"
        message, size = found
        return replace(_parse_message(_Reader(message)), size=size)
    except _MalformedError:
        return "malformed"


def _recognise(data: bytes) -> Literal["incomplete", "malformed", "not_tls"] | None:
    """Return the result of a connection that does not begin with a record of a ClientHello; None: it does.

    Servers ignore the minor version of the first record (RFC 8446, 5.1). Some also accept other major versions, and an alert before the message.
    """
    if not data:
        return "incomplete"
    if data[0] not in {_ALERT, _HANDSHAKE} or (len(data) > 1 and data[1] > _MAX_MAJOR):
        return "not_tls"
    if data[0] == _HANDSHAKE and data[1:2] in {b"", bytes([_MAJOR])}:
        return None
    if len(data) <= _RECORD_HEAD_BYTES:
        return "incomplete"
    is_tls = data[_RECORD_HEAD_BYTES] == _CLIENT_HELLO if data[0] == _HANDSHAKE else data[3:5] == b"\0\2"
    return "malformed" if is_tls else "not_tls"


def _first_message(data: bytes) -> tuple[bytes, int] | None:
    """Return the body of the ClientHello, which may be split into several records, and the size of these records. None: it is incomplete."""
    message = bytearray()
    at = 0
    for _ in range(MAX_RECORDS):
        head = data[at : at + _RECORD_HEAD_BYTES]
        size = int.from_bytes(head[3:5], "big")
        # The first record may announce version 1.0 and the next ones another one.
        if (head and head[0] != _HANDSHAKE) or (head[1:2] not in {b"", b"\x03"}) or size > _MAX_RECORD_BYTES:
            raise _MalformedError
        if len(head) < _RECORD_HEAD_BYTES:
            return None
        if not size:
            raise _MalformedError
        part = data[at + _RECORD_HEAD_BYTES : at + _RECORD_HEAD_BYTES + size]
        message += part
        if message and message[0] != _CLIENT_HELLO:
            raise _MalformedError
        if len(message) >= _MESSAGE_HEAD_BYTES:
            length = int.from_bytes(message[1:_MESSAGE_HEAD_BYTES], "big")
            if length > MAX_HELLO_BYTES or len(message) - len(part) + size > _MESSAGE_HEAD_BYTES + length:
                raise _MalformedError
            if len(message) == _MESSAGE_HEAD_BYTES + length:
                return bytes(message[_MESSAGE_HEAD_BYTES:]), at + _RECORD_HEAD_BYTES + size
        at += _RECORD_HEAD_BYTES + size
        if at > len(data):
            return None
    raise _MalformedError


def _parse_message(hello: _Reader) -> ClientHello:
    hello.take(2 + 32)  # version and random bytes
    hello.vector(1)  # session id
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression methods
    if hello.is_empty():  # before TLS 1.2, extensions are optional
        return ClientHello(None)
    extensions = _Reader(hello.vector(2))
    if not hello.is_empty():
        raise _MalformedError
    found: dict[int, bytes] = {}
    while not extensions.is_empty():
        kind = extensions.number(2)
        if kind in found:
            raise _MalformedError
        found[kind] = extensions.vector(2)
    name = _parse_server_name(_Reader(found[_SERVER_NAME])) if _SERVER_NAME in found else None
    return ClientHello(name, may_hide_name=not _ENCRYPTED_CLIENT_HELLO.isdisjoint(found))


def _parse_server_name(extension: _Reader) -> str:
    """Return the server name of the extension, which may have exactly one (RFC 6066, 3)."""
    names = _Reader(extension.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or not names.is_empty() or not extension.is_empty() or not name.isascii() or not name:
        raise _MalformedError
    return name.decode("ascii")
