"""Who may talk to the service.

- Whoever reaches the unix socket is its owner or root: the socket is 0600 in a folder of 0700, and the kernel vouches for the
  peer's user id (SO_PEERCRED, unix(7)). No key is needed there.
- Everybody else shows a key: ``Authorization: Bearer KEY``, ``X-API-Key: KEY`` or, as clients of a door do, by a header of ``KEY_HEADERS``.
- One route takes neither, but a URL that was signed by this service (``core/files/signed_urls.py``), whoever comes with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import AuthenticationError, ErrorCode

OPEN_PATHS = frozenset(
    {"/healthz", "/openapi.json", "/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"}
)
"""Answered without a key: whether it lives, and what the API is, which hold nobody's data."""

KEY_HEADERS = frozenset({b"x-api-key", b"x-rapidapi-key", b"x-rapidapi-proxy-secret"})
"""Whose value is a key and nothing else. The last two are what clients of a vendor that sells by RapidAPI send."""

SIGNED_PATH = "/v1/signed/files/content"
"""Answered to whoever has a URL that was signed for it."""

OWNER = "owner"
"""What the listener puts into a request's state as ``peer`` where the kernel has vouched for it."""

VendorAuthenticator = Callable[[Mapping[str, Any]], Awaitable[Principal | None]]
"""Who sends a request (ASGI's scope) that shows what a door gave its vendor's client in place of a key; None where it shows nothing of the kind."""


class KeyVerifier(Protocol):
    """Who knows the keys."""

    def verify(self, secret: str) -> Principal | None:
        """Whose key that is; None where it is nobody's. Takes the same time for every key, and asks no database."""
        ...


class Keyring(KeyVerifier, Protocol):
    """Who also knows when a key is taken away."""

    def working_for(self, owner: OwnerId) -> AbstractContextManager[None]:
        """Around what the current task does for an owner: raises AuthenticationError where the owner's key is taken away meanwhile."""
        ...


class Signatures(Protocol):
    """Who knows which URLs were signed."""

    def principal_of_url(self, method: str, query: bytes) -> Principal:
        """Who a request by a signed URL is made for.

        Raises:
            ForbiddenError: It was not signed like this, or holds no more.
        """
        ...


def request_api_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key that a request shows, or None; one of a header that holds nothing else comes first, whatever the order; an empty one is none. Pure.

    Args:
        headers: Lower-case names and values, as ASGI gives them.
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


async def authenticate(
    scope: Mapping[str, Any], keys: KeyVerifier, signatures: Signatures | None = None, admit: VendorAuthenticator | None = None
) -> Principal | None:
    """Who sends a request; None for open paths.

    Args:
        scope: The request's, as ASGI has it.
        keys: Who knows the keys.
        signatures: Who knows which URLs were signed; None where none were.
        admit: Who sends one that shows what a door gave its vendor's client in place of a key; None is nobody.

    Raises:
        ForbiddenError: It came by a signed URL that is not good for it.
        AuthenticationError: It needs a key and has none, or one that is not known.
    """
    if scope["path"] == SIGNED_PATH and signatures is not None:
        return signatures.principal_of_url(scope["method"], scope["query_string"])
    if scope.get("state", {}).get("peer") == OWNER:
        return OPERATOR
    if scope["path"] in OPEN_PATHS:
        return None
    admitted = None if admit is None else await admit(scope)
    if admitted is not None:
        return admitted
    secret = request_api_key(scope["headers"])
    if not secret:
        raise AuthenticationError(
            "This needs an API key.",
            code=ErrorCode.UNAUTHENTICATED,
            hint="Send 'Authorization: Bearer KEY'; 'sandlot keys create --name NAME' on the server makes one.",
        )
    principal = keys.verify(secret)
    if principal is None:
        raise AuthenticationError(
            "This API key is not known.", code=ErrorCode.UNAUTHENTICATED, hint="It may have been revoked, or belong to another server."
        )
    return principal
