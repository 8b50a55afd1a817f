"""httpx's errors, translated once: nothing above this knows them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, UnavailableError
from sandlot.sdk.config import Target


class ConnectionFailedError(UnavailableError):
    """No connection came about, so nothing was sent and the request may be made again."""


class ConnectionLostError(UnavailableError):
    """The connection broke while the request was sent or answered: it may have been carried out, or not."""


def tls_context(target: Target) -> ssl.SSLContext:
    """Whose certificates are believed on the way to a service.

    To read the authorities' takes 20 ms, which is more than a sandbox out of a pool takes: it is done once for all clients of a process, and
    not at all where nothing is encrypted, where nobody is believed.

    Args:
        target: The service.
    """
    if not target.base_url.startswith("https:"):
        return _no_authorities()
    return _authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _no_authorities() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _authorities(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """Those that httpx believes: of the two variables, where they are set."""
    return httpx.create_ssl_context()


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
        ConnectionFailedError: There was no connection.
        ConnectionLostError: The connection broke.
        UnavailableError: Nothing came for too long.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise unreachable_error(target, str(error)) from error
    except httpx.TimeoutException as error:
        raise UnavailableError(
            f"No answer came in time from {target}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Whether the request was carried out is not known.",
        ) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise ConnectionLostError(
            f"The connection to {target} broke: {str(error) or type(error).__name__}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Whether the request was carried out is not known.",
        ) from error


def unreachable_error(target: Target, why: str = "") -> ConnectionFailedError:
    """The error for a service that cannot be reached."""
    return ConnectionFailedError(
        f"Nobody answers: {target} cannot be reached{f' ({why})' if why else ''}.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Start it (`sandlot serve`), or correct SANDLOT_URL."
        if target.local is None
        else "The first `sandlot run` or `sandlot create` starts it.",
    )
