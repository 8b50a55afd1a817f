"""WebSockets to the service: where they are, with what options, and their errors translated once. websockets is imported when one is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sandlot import __version__
from sandlot.model.errors import ErrorCode, InternalError, UnavailableError
from sandlot.sdk import responses
from sandlot.sdk.config import Target
from sandlot.sdk.http import unreachable_error

OPEN_TIMEOUT_S = 60.0
PING_S, PONG_S = 20.0, 120.0
"""A terminal whose reader takes its time answers pings late; a service that is gone answers none."""
MESSAGE_MAX_BYTES = 4 * 1024 * 1024
TERMINAL_HINT = "What was started goes on: go back to it with `pty.connect(id, offset)`."
TUNNEL_HINT = "The program sees its connection broken off; open another tunnel."


def address(target: Target, path: str) -> str:
    """Where a path's WebSocket is; a prefix of the service's address is kept. Pure."""
    parts = urlsplit(f"{target.base_url}{path}")
    return urlunsplit(parts._replace(scheme="wss" if parts.scheme == "https" else "ws"))


def options(target: Target) -> dict[str, Any]:
    """How one is opened."""
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
    """Turn what websockets raises in the body into errors of the one tree.

    Args:
        target: The service.
        hint: What to do where the connection broke.

    Raises:
        SandlotError: The service refused it, for its own reason.
        UnavailableError: Nobody answers, or the connection broke.
    """
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI  # noqa: PLC0415 - likewise rarely used

    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        headers = answer.headers
        raise responses.error_from_response(
            answer.status_code, headers.get("content-type", ""), bytes(answer.body or b""), headers.get("x-request-id", "")
        ) from error
    except ConnectionClosed as error:
        raise UnavailableError(
            f"The connection to {target} broke: {str(error)[:200]}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint=hint,
        ) from error
    except (InvalidHandshake, InvalidURI) as error:
        raise InternalError(
            f"{target} opened no WebSocket: {str(error)[:200]}.", hint="Check that SANDLOT_URL is the address of a Sandlot service, and its proxies."
        ) from error
    except (OSError, TimeoutError) as error:
        raise unreachable_error(target, str(error)) from error


def ended_well(error: UnavailableError) -> bool:
    """Whether an error of :func:`translated` is the service's goodbye (1000, RFC 6455 7.4.1)."""
    from websockets.exceptions import ConnectionClosedOK  # noqa: PLC0415 - likewise

    return isinstance(error.__cause__, ConnectionClosedOK)
