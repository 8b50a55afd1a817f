"""The Connect protocol with JSON: envelopes, ends of streams, timeouts (connectrpc.com/docs/protocol). Pure.

An envelope is one byte of flags, four bytes of length (big-endian), and a message. The last envelope of a response has the flag :data:`END` and
states how the stream ended: ``{}`` or ``{"error": {"code", "message"}}``. The status of a stream is always 200.

Invariants:
- A malformed body is refused, however it is split. At most one message of it is buffered.
- Messages are not compressed, because clients without the header of compression do not expect it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, UnsupportedError
from sandlot.model.specs import MIB

UNARY, STREAM = "application/json", "application/connect+json"

COMPRESSED, END = 1, 2
"""Flags of an envelope."""
HEAD_BYTES = 5
MESSAGE_BYTES = 8 * MIB
"""Maximum size of a message; equals that of a JSON body."""
_TIMEOUT_DIGITS = 10


class ConnectRpcDecoder:
    """Decoder of a request's body that arrives in chunks."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with the next chunk.

        Raises:
            InvalidRequestError: An envelope has flags that requests do not have.
            UnsupportedError: A message is compressed.
            LimitError: A message is too large (code ``too_large``).
        """
        self._rest += data
        messages: list[bytes] = []
        at = 0
        while len(self._rest) - at >= HEAD_BYTES:
            flags, size = self._rest[at], int.from_bytes(self._rest[at + 1 : at + HEAD_BYTES], "big")
            _check(flags, size)
            if len(self._rest) - at < HEAD_BYTES + size:
                break
            messages.append(bytes(self._rest[at + HEAD_BYTES : at + HEAD_BYTES + size]))
            at += HEAD_BYTES + size
        del self._rest[:at]
        return messages

    def finish(self) -> None:
        """Check that the body is complete.

        Raises:
            InvalidRequestError: The last message is incomplete.
        """
        if self._rest:
            raise InvalidRequestError("The last message of the request is incomplete.", hint="Repeat the request.")


def envelope(message: Mapping[str, Any], flags: int = 0) -> bytes:
    """Return a message as an envelope."""
    raw = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return bytes((flags,)) + len(raw).to_bytes(4, "big") + raw


def end(error: Mapping[str, Any] | None = None) -> bytes:
    """Return the last envelope of a stream."""
    return envelope({} if error is None else {"error": error}, END)


def timeout_s(given: str | None) -> float | None:
    """Return the timeout of the header ``Connect-Timeout-Ms``; None if there is no header.

    Raises:
        InvalidRequestError: The value is not a number of at most ten digits.
    """
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= _TIMEOUT_DIGITS):
        raise InvalidRequestError(
            f"Connect-Timeout-Ms is {given[:20]!r}.", hint="Pass a number of milliseconds.", fields={"field": "Connect-Timeout-Ms"}
        )
    return int(given) / 1000


def check_type(given: str, wanted: str) -> None:
    """Check the content type of a request.

    Args:
        given: ``Content-Type`` of the request.
        wanted: :data:`UNARY` or :data:`STREAM`.

    Raises:
        UnsupportedError: The request has another codec, or is for the other kind of method.
    """
    if given.partition(";")[0].strip().lower() != wanted:
        raise UnsupportedError(
            f"This method takes {wanted}, not {given[:60]!r}.", code=ErrorCode.UNSUPPORTED, hint="Use the JSON codec of Connect, as E2B's clients do."
        )


def _check(flags: int, size: int) -> None:
    """Refuse flags and sizes that a request cannot have."""
    if flags == COMPRESSED:
        raise UnsupportedError("The message is compressed.", code=ErrorCode.UNSUPPORTED, hint="Send the message without compression.")
    if flags:
        raise InvalidRequestError(f"The envelope has the flags {flags}.", hint="Send envelopes with the flags 0.")
    if size > MESSAGE_BYTES:
        raise LimitError(
            f"The message has {size} bytes; at most {MESSAGE_BYTES} are allowed.",
            code=ErrorCode.TOO_LARGE,
            hint="Split the message, or upload the data as a file.",
            fields={"max_bytes": MESSAGE_BYTES},
        )
