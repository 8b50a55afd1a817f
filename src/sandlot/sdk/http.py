"""TLS settings and errors of httpx. Nothing above this module knows httpx's exceptions."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, UnavailableError
from sandlot.sdk.config import Target

_ERRNO = re.compile(r"\[Errno -?\d+\] ")


class ConnectionFailedError(UnavailableError):
    """No connection was made, so nothing was sent and the request may be repeated."""


class ConnectionLostError(UnavailableError):
    """The connection broke during the request or its response; the request may have been carried out."""


def tls_context(target: Target) -> ssl.SSLContext:
    """Return the TLS settings of connections to a service.

    Reading the certificate authorities takes 20 ms, longer than claiming a warm sandbox. They are read once per process, and only for https.
    """
    if not target.base_url.startswith("https:"):
        return _no_authorities()
    return _authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _no_authorities() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _authorities(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    """Authorities that httpx trusts; it reads the two variables."""
    return httpx.create_ssl_context()


@contextmanager
def sendable() -> Iterator[None]:
    """Convert exceptions of building a request in the body of the ``with`` statement.

    Raises:
        InvalidRequestError: A path or parameter cannot be part of a URL.
    """
    try:
        yield
    except (httpx.InvalidURL, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidRequestError(f"The request cannot be sent: {error}.", hint="Use short paths and names that are valid Unicode text.") from error


@contextmanager
def translated(target: Target) -> Iterator[None]:
    """Convert exceptions of httpx in the body of the ``with`` statement.

    Raises:
        ConnectionFailedError: No connection was made.
        ConnectionLostError: The connection broke.
        UnavailableError: The service did not send anything in time.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise unreachable_error(target, error) from error
    except httpx.TimeoutException as error:
        raise UnavailableError(
            f"No response from {target} in time.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Check whether the request was carried out before you repeat it.",
        ) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise ConnectionLostError(
            f"The connection to {target} was lost: {_reason(error)}.",
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint="Check whether the request was carried out before you repeat it.",
        ) from error


def unreachable_error(target: Target, error: Exception | None = None) -> ConnectionFailedError:
    """Return the error for a service that does not accept connections."""
    return ConnectionFailedError(
        f"Cannot connect to {target}: {'no service listens' if error is None else _reason(error)}.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Start the service with `sandlot serve`, or correct SANDLOT_URL."
        if target.local is None
        else "Run `sandlot create`; it starts the local service.",
    )


def _reason(error: Exception) -> str:
    text = _ERRNO.sub("", str(error)).rstrip(".") or type(error).__name__
    return text[:1].lower() + text[1:]
