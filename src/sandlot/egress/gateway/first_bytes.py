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

_REQUEST_START: Final = re.compile(rb"[\r\n\t ]*[!#$%&'*+.^_`|~0-9A-Za-z-]*(?:[\t ][^\n]*)?")
"""A method, which is any token (RFC 9110, 5.6.2), and what may follow it."""
_REQUEST: Final = re.compile(rb"HTTP/\d|\A\S+[\t ]+(?:/|\*|https?:)", re.IGNORECASE)
"""Part of a request line: a version, or a target. Some servers accept versions that do not exist, or none."""
HTTP_2: Final = b"PRI * HTTP/2"
"""Beginning of a connection of HTTP/2 without TLS (RFC 9113, 3.4)."""

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
    if b"\0" in line or line.startswith(HTTP_2):
        return "other"
    if newline:
        return "http" if _REQUEST_START.fullmatch(line) and _REQUEST.search(line) else "other"
    if not _REQUEST_START.fullmatch(line):
        return "other"
    return "incomplete" if len(data) < MAX_LINE_BYTES else "http"
