"""httpx's errors, translated once: nothing above this knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, UnavailableError
from sandlot.sdk.config import Target


class NotSentError(UnavailableError):
    """No connection came about, so nothing was sent and the request may be made again."""


class CutError(UnavailableError):
    """The connection broke while the request was sent or answered: it may have been carried out, or not."""


@contextmanager
def sendable() -> Iterator[None]:
    """Turn what the making of a request in the body raises into an error of the one tree.

    Raises:
        InvalidRequestError: A path or a parameter is none that a URL can hold.
    """
    try:
        yield
    except (httpx.InvalidURL, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidRequestError(f"The request cannot be sent: {error}.", hint="Paths and names are short text that UTF-8 can express.") from error


@contextmanager
def translated(target: Target) -> Iterator[None]:
    """Turn what httpx raises in the body into errors of the one tree.

    Raises:
        NotSentError: There was no connection.
        CutError: The connection broke.
        UnavailableError: Nothing came for too long.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise not_there(target, str(error)) from error
    except httpx.TimeoutException as error:
        raise UnavailableError(
            f"No answer came in time from {target}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Whether the request was carried out is not known.",
        ) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise CutError(
            f"The connection to {target} broke: {str(error) or type(error).__name__}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Whether the request was carried out is not known.",
        ) from error


def not_there(target: Target, why: str = "") -> NotSentError:
    """The error for a service that cannot be reached."""
    return NotSentError(
        f"Nobody answers: {target} cannot be reached{f' ({why})' if why else ''}.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Start it (`sandlot serve`), or correct SANDLOT_URL."
        if target.local is None
        else "The first `sandlot run` or `sandlot create` starts it.",
    )
