"""WebSockets to the service: address, options and errors. The package websockets is imported when the first one is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sandlot import __version__
from sandlot.model.errors import ErrorCode, InternalError, UnavailableError
from sandlot.sdk.config import Target
from sandlot.sdk.http import unreachable_error
from sandlot.sdk.responses import error_from_response

OPEN_TIMEOUT_S = 60.0
PING_S, PONG_S = 20.0, 120.0
"""A slow reader of a terminal answers pings late; a service that is gone does not answer."""
MESSAGE_MAX_BYTES = 4 * 1024 * 1024
TERMINAL_HINT = "The program keeps running: attach again with `pty.connect(id, offset)`."
TUNNEL_HINT = "The program's connection was reset; open another tunnel."


def address(target: Target, path: str) -> str:
    """Return the WebSocket URL of a path; a prefix in the service's address is kept."""
    parts = urlsplit(f"{target.base_url}{path}")
    return urlunsplit(parts._replace(scheme="wss" if parts.scheme == "https" else "ws"))


def options(target: Target) -> dict[str, Any]:
    """Return the arguments of ``websockets.connect``."""
    return {
        "additional_headers": {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"},
        "user_agent_header": f"sandlot-python/{__version__}",
        "compression": None,
        "open_timeout": OPEN_TIMEOUT_S,
        "ping_interval": PING_S,
        "ping_timeout": PONG_S,
        "max_size": MESSAGE_MAX_BYTES,
        "proxy": True if target.proxied else None,
    }


@contextmanager
def translated(target: Target, *, hint: str = TERMINAL_HINT) -> Iterator[None]:
    """Convert exceptions of websockets in the body of the ``with`` statement.

    Args:
        target: The service.
        hint: Hint of the error for a lost connection.

    Raises:
        SandlotError: The service refused the WebSocket.
        UnavailableError: The service does not accept connections, or the connection broke.
    """
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI  # noqa: PLC0415 - rarely used

    try:
        yield
    except InvalidStatus as error:
        response = error.response
        headers = response.headers
        raise error_from_response(
            response.status_code, headers.get("content-type", ""), bytes(response.body or b""), headers.get("x-request-id", "")
        ) from error
    except ConnectionClosed as error:
        raise UnavailableError(
            f"The connection to {target} was lost: {str(error)[:200]}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint=hint,
        ) from error
    except (InvalidHandshake, InvalidURI) as error:
        raise InternalError(
            f"Cannot open a WebSocket to {target}: {str(error)[:200]}.",
            hint="Check that SANDLOT_URL is the address of a Sandlot service, and that proxies before it allow WebSockets.",
        ) from error
    except (OSError, TimeoutError) as error:
        raise unreachable_error(target, error) from error


def ended_well(error: UnavailableError) -> bool:
    """Return True if an error of :func:`translated` is a normal closure by the service (1000, RFC 6455 7.4.1)."""
    from websockets.exceptions import ConnectionClosedOK  # noqa: PLC0415 - rarely used

    return isinstance(error.__cause__, ConnectionClosedOK)


def invalid_message_error(target: Target) -> InternalError:
    """Return the error for a text message that is not an event of the service."""
    return InternalError(
        f"The server at {target.base_url} sent an invalid WebSocket message.", hint="Check that SANDLOT_URL is the address of a Sandlot service."
    )
