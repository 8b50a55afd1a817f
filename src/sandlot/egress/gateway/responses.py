"""Bytes that a program reads when its connection or request is refused. Pure."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from sandlot.egress.policy.refusals import Refusal

ACCESS_DENIED_ALERT: Final = bytes([21, 3, 3, 0, 2, 2, 49])
"""Fatal TLS alert ``access_denied`` (RFC 8446, 6.2), in a separate record. Clients report it by name."""


def http_response(refusal: Refusal, *, to_head: bool = False) -> bytes:
    """Return the HTTP/1.1 response to a refused request. The connection ends after it.

    Args:
        refusal: Refusal that the body describes in JSON.
        to_head: True if the response is to a HEAD request and so has no body.
    """
    body = json.dumps(refusal.body()).encode() + b"\n"
    lines = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")
    return head if to_head else head + body
