"""Recognition of the protocol of a connection by the first bytes of the client. Pure.

Invariants:
- Bytes that a server could read as HTTP/1 are recognised as HTTP/1, even if they are malformed: the strict parser refuses them afterwards.
- The result does not depend on how the bytes are split.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from sandlot.egress.gateway.client_hello import ClientHello, parse_client_hello

MAX_LINE_BYTES: Final = 16 * 1024
"""Size from which a line that begins like a request of HTTP is taken for one although its end has not arrived."""

_REQUEST_START: Final = re.compile(rb"[\r\n\t ]*[A-Za-z_-]*(?:[\t ][^\n]*)?")
_VERSION: Final = re.compile(rb"HTTP/1", re.IGNORECASE)

Protocol = ClientHello | Literal["incomplete", "malformed_tls", "http", "other"]
"""Protocol of a connection. ``other``: neither TLS nor HTTP/1."""


def recognise(data: bytes | bytearray) -> Protocol:
    """Return the protocol of a connection.

    Args:
        data: All bytes from the beginning of the connection on.
    """
    hello = parse_client_hello(data)
    if hello == "malformed":
        return "malformed_tls"
    if hello != "not_tls":
        return hello
    text = bytes(data[:MAX_LINE_BYTES]).lstrip(b"\r\n\t ")
    line, newline, _ = text.partition(b"\n")
    if newline:
        return "http" if _REQUEST_START.fullmatch(line) and _VERSION.search(line) else "other"
    if not _REQUEST_START.fullmatch(line):
        return "other"
    return "incomplete" if len(data) < MAX_LINE_BYTES else "http"
