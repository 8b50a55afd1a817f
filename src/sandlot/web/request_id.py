"""Request ids: they connect a response with the log lines of its request."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from starlette.types import Scope

_VALID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's ``X-Request-Id`` if it is safe to log, otherwise a new random id.

    Args:
        headers: Lower-case names and values, as in an ASGI scope.
    """
    sent = next((value for name, value in headers if name == b"x-request-id"), b"")
    return sent.decode() if _VALID.fullmatch(sent) else new_request_id()


def new_request_id() -> str:
    """Return a random request id."""
    return secrets.token_hex(8)


def get_request_id(scope: Scope) -> str:
    """Return the id of a request, or an empty string if the middleware has not set one."""
    return str(scope.get("state", {}).get("request_id", ""))
