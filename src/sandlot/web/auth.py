"""Authentication of requests.

- The unix socket needs no key: it has the mode 0600 in a directory with the mode 0700, and the kernel reports the user of its peer (SO_PEERCRED,
  unix(7)). Root and this service's own user are the operator.
- Over TCP, a request has a key in ``Authorization: Bearer KEY``, ``X-API-Key: KEY`` or another header of ``KEY_HEADERS``, or a credential that a
  compatibility API issued.
- One path takes neither, but a URL that this service signed (``core/files/signed_urls.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import AuthenticationError, ErrorCode, UnavailableError
from sandlot.web.connections import CONNECTION, RETRY_AFTER_S, Connection

OPEN_PATHS = frozenset(
    {"/", "/healthz", "/openapi.json", "/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"}
)
"""Paths that need no key: the health check, the API's description and the page at ``/``, which contain no user's data."""

KEY_HEADERS = frozenset({b"x-api-key", b"x-rapidapi-key", b"x-rapidapi-proxy-secret"})
"""Headers whose whole value is a key. Clients of a vendor that sells through RapidAPI send the last two."""

SIGNED_PATH = "/v1/signed/files/content"
"""Path of signed URLs."""

OWNER = "owner"
"""Value of ``peer`` in the state of a request whose peer the kernel reported to be root or this service's user."""

VendorAuthenticator = Callable[[Mapping[str, Any]], Awaitable[Principal | None]]
"""Returns the principal of a request, given its ASGI scope, if it has a credential that a compatibility API issued; otherwise None."""


class KeyVerifier(Protocol):
    """Finds the principal of an API key."""

    def verify(self, secret: str) -> Principal | None:
        """Return the principal of a key, or None if the key is unknown. Takes the same time for every key, and reads no database."""
        ...


class Keyring(KeyVerifier, Protocol):
    """Finds the principal of an API key, and cancels the open requests of a key that is revoked."""

    def working_for(self, owner: OwnerId) -> AbstractContextManager[None]:
        """Return a context for work on behalf of an owner. It raises AuthenticationError in the current task when the owner's key is revoked."""
        ...


class Signatures(Protocol):
    """Checks signed URLs."""

    def principal_of_url(self, method: str, query: bytes) -> Principal:
        """Return the principal of a signed URL.

        Raises:
            ForbiddenError: The signature does not match, or the URL has expired.
        """
        ...


def request_api_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the API key of a request, or None. A header of ``KEY_HEADERS`` has priority over ``Authorization``; empty values are ignored. Pure.

    Args:
        headers: Lower-case names and values, as in an ASGI scope.
    """
    bearer: str | None = None
    for name, value in headers:
        if name in KEY_HEADERS and (key := value.decode("latin-1").strip()):
            return key
        if name == b"authorization" and bearer is None:
            scheme, _, rest = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                bearer = rest.strip() or None
    return bearer


def is_local_owner(scope: Mapping[str, Any]) -> bool:
    """Return True if the request came over the unix socket from root or this service's user."""
    return bool(scope.get("state", {}).get("peer") == OWNER)


async def admit(
    scope: Mapping[str, Any], keys: KeyVerifier, signatures: Signatures | None = None, vendor: VendorAuthenticator | None = None
) -> Principal | None:
    """Authenticate a request, and count its connection towards the share of its address and then of its key. See :func:`authenticate`.

    Raises:
        UnavailableError: The share is used up (``busy``).
    """
    connection: Connection | None = scope["state"].get(CONNECTION)
    if connection is not None:
        connection.count_for_address(scope["headers"])
    principal = await authenticate(scope, keys, signatures, vendor)
    if connection is not None and principal is not None:
        try:
            connection.count_for_key(principal.owner)
        except UnavailableError:
            await asyncio.sleep(RETRY_AFTER_S)  # clients that try again at once would keep the service busy
            raise
    return principal


async def authenticate(
    scope: Mapping[str, Any], keys: KeyVerifier, signatures: Signatures | None = None, vendor: VendorAuthenticator | None = None
) -> Principal | None:
    """Return the principal of a request, or None for a path of ``OPEN_PATHS``.

    Args:
        scope: ASGI scope of the request.
        keys: Known API keys.
        signatures: Checks signed URLs; None if there are none.
        vendor: Checks credentials of the compatibility API that the path belongs to; None if it has none.

    Raises:
        ForbiddenError: The signature of a signed URL is not valid for this request.
        AuthenticationError: The request has no key, or an unknown one.
    """
    if scope["path"] == SIGNED_PATH and signatures is not None:
        return signatures.principal_of_url(scope["method"], scope["query_string"])
    if is_local_owner(scope):
        return OPERATOR
    if scope["path"] in OPEN_PATHS:
        return None
    principal = None if vendor is None else await vendor(scope)
    if principal is not None:
        return principal
    secret = request_api_key(scope["headers"])
    if not secret:
        raise AuthenticationError(
            "The request has no API key.",
            code=ErrorCode.UNAUTHENTICATED,
            hint="Send 'Authorization: Bearer KEY'. Create a key on the server with 'sandlot key create NAME'.",
        )
    principal = keys.verify(secret)
    if principal is None:
        raise AuthenticationError(
            "The API key is unknown.", code=ErrorCode.UNAUTHENTICATED, hint="Check that the key belongs to this server and has not been deleted."
        )
    return principal
