"""Connect's protocol with JSON: envelopes, ends of streams, timeouts. Pure; bytes in, messages out (connectrpc.com/docs/protocol).

An envelope is one byte of flags, four of length (big-endian), and a message. The last one of an answer has the flag :data:`END` and tells how
the stream ended: ``{}`` or ``{"error": {"code", "message"}}``. The status of a stream's answer is always 200.

Laws:
- What is no envelope is refused with a reason, however it is cut; no more of it is kept than one message may have.
- Nothing is compressed here, either way: a client that says nothing of compression does not expect it.
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
"""Of one message; the same as of any other body that is parsed."""
_TIMEOUT_DIGITS = 10


class ConnectRpcDecoder:
    """A request's body, taken apart as it comes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held_bytes(self) -> int:
        """How much of a message waits for what follows."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole with the next piece.

        Raises:
            InvalidRequestError: It has flags that a request has not.
            UnsupportedError: It is compressed.
            LimitError: ``too_large``.
        """
        self._rest += data
        whole: list[bytes] = []
        at = 0
        while len(self._rest) - at >= HEAD_BYTES:
            flags, size = self._rest[at], int.from_bytes(self._rest[at + 1 : at + HEAD_BYTES], "big")
            _check(flags, size)
            if len(self._rest) - at < HEAD_BYTES + size:
                break
            whole.append(bytes(self._rest[at + HEAD_BYTES : at + HEAD_BYTES + size]))
            at += HEAD_BYTES + size
        del self._rest[:at]
        return whole

    def finish(self) -> None:
        """There is no more.

        Raises:
            InvalidRequestError: The last message was cut.
        """
        if self._rest:
            raise InvalidRequestError("The request breaks off inside of a message.", hint="Send it again.")


def envelope(message: Mapping[str, Any], flags: int = 0) -> bytes:
    """One message as it is sent."""
    raw = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return bytes((flags,)) + len(raw).to_bytes(4, "big") + raw


def end(error: Mapping[str, Any] | None = None) -> bytes:
    """How a stream ended, which is the last that is sent."""
    return envelope({} if error is None else {"error": error}, END)


def timeout_s(given: str | None) -> float | None:
    """The value of ``Connect-Timeout-Ms``; None where there is none.

    Raises:
        InvalidRequestError: It is no number of milliseconds of at most ten digits.
    """
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= _TIMEOUT_DIGITS):
        raise InvalidRequestError(
            f"Connect-Timeout-Ms is {given[:20]!r}.", hint="It is a number of milliseconds.", fields={"field": "Connect-Timeout-Ms"}
        )
    return int(given) / 1000


def check_type(given: str, wanted: str) -> None:
    """Whether a request is what its method takes.

    Args:
        given: Its ``Content-Type``.
        wanted: :data:`UNARY` or :data:`STREAM`.

    Raises:
        UnsupportedError: It is in another codec, or of the other kind of method.
    """
    if given.partition(";")[0].strip().lower() != wanted:
        raise UnsupportedError(
            f"This method takes {wanted}, not {given[:60]!r}.", code=ErrorCode.UNSUPPORTED, hint="Use Connect's JSON codec, as E2B's clients do."
        )


def _check(flags: int, size: int) -> None:
    """Whether an envelope may begin like that."""
    if flags == COMPRESSED:
        raise UnsupportedError("The message is compressed.", code=ErrorCode.UNSUPPORTED, hint="Send it as it is; no compression is spoken here.")
    if flags:
        raise InvalidRequestError(f"An envelope of a request has no flags {flags}.", hint="Send Connect's envelopes, their flags 0.")
    if size > MESSAGE_BYTES:
        raise LimitError(
            f"The message has {size} bytes; at most {MESSAGE_BYTES} are allowed.",
            code=ErrorCode.TOO_LARGE,
            hint="Send it in several messages, or as a file.",
            fields={"max_bytes": MESSAGE_BYTES},
        )
