"""Access to ports of sandboxes from browsers, which send no API key.

Invariants:
- A port opens to a preview token for this port, to the token of the sandbox, or, if the ports of the sandbox are public, to everybody.
- Ports are public while the sandbox has ``public_ports`` and the quota of its owner allows public ports.
- A token that expires, and the deletion of the API key that signed it, end the access.
- A request that gives no access learns nothing: an unknown sandbox, a private one and a wrong token get the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from sandlot.core.files.signed_urls import TokenService
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import MAX_PREVIEW_LIFETIME_S, PreviewAccess, PreviewToken, check_port
from sandlot.model.states import State

_OPEN = frozenset({State.RUNNING, State.SNAPSHOTTING})


class PreviewService:
    """Access to ports of sandboxes: decisions about requests, and preview tokens.

    Args:
        principal_of: Function that takes the id of an API key and returns the principal of the key, or None if the key has expired or was
            revoked.
    """

    def __init__(self, registry: SandboxRegistry, tokens: TokenService, principal_of: Callable[[OwnerId], Principal | None]) -> None:
        self._registry = registry
        self._tokens = tokens
        self._principal_of = principal_of

    def sign(self, principal: Principal, sandbox: str, port: int, lifetime_s: float) -> PreviewToken:
        """Sign a token that opens one port of a sandbox.

        Args:
            principal: Principal whose rights the token has.
            sandbox: Id of the sandbox.
            port: Port inside the sandbox.
            lifetime_s: Seconds until the token expires, 1 to 604,800.

        Raises:
            InvalidRequestError: The port or the lifetime is out of range.
            NotFoundError: The principal can see no such sandbox.
        """
        live = self._registry.find(sandbox, principal)
        check_port(port)
        if not 1 <= lifetime_s <= MAX_PREVIEW_LIFETIME_S:
            message = f"`expires_in` is {lifetime_s:g}; it must be from 1 to {MAX_PREVIEW_LIFETIME_S:g} seconds."
            raise InvalidRequestError(message, fields={"field": "expires_in"})
        value, expires_at = self._tokens.preview_token(principal, live.id, port, lifetime_s)
        return PreviewToken(value, expires_at, self._public_principal(live) is not None)

    def authorize(self, sandbox: str, port: int, tokens: Iterable[str], header_tokens: Iterable[str] = ()) -> PreviewAccess:
        """Return the permission for a request to a port of a sandbox.

        Args:
            sandbox: Id of the sandbox, as received.
            port: Port inside the sandbox.
            tokens: Tokens of the URL and of cookies, which open the port if they are preview tokens.
            header_tokens: Tokens of headers: preview tokens, or tokens of the sandbox. A token of a sandbox opens more than a port and does not
                expire, so it must not stand in URLs.

        Raises:
            AuthenticationError: No token opens the port, and the port is not public (``unauthenticated``).
        """
        for token, is_header in (*((each, True) for each in header_tokens), *((each, False) for each in tokens)):
            opened = self._tokens.principal_of_preview(token, sandbox, port)
            principal, lifetime_s = (None, None) if opened is None else opened
            if principal is None and is_header:
                principal = self._tokens.principal_of_token(token, sandbox)
            if principal is None:
                continue
            with suppress(NotFoundError):
                access = _access(self._registry.find(sandbox, principal), principal, port)
                return replace(access, token=token, lifetime_s=lifetime_s)
        live = self._registry.known.get(SandboxId(sandbox))
        principal = None if live is None else self._public_principal(live)
        if live is None or principal is None:
            raise preview_denied()
        return _access(live, principal, port)

    def _public_principal(self, live: Sandbox) -> Principal | None:
        if not live.spec.public_ports:
            return None
        principal = self._principal_of(live.owner)
        return principal if principal is not None and principal.may_have_public_ports else None


def preview_denied() -> AuthenticationError:
    """Return the error for a request without access. It is the same for private ports, wrong tokens and sandboxes that do not exist."""
    return AuthenticationError(
        "This preview needs a token, or there is no such sandbox.",
        code=ErrorCode.UNAUTHENTICATED,
        hint="Open the whole URL that `get_url` or `sandlot url` returned, or send its token in the header X-Sandlot-Preview-Token. "
        "A sandbox with public ports (`public_ports`, which the quota of its API key must allow) needs no token.",
    )


def _access(live: Sandbox, principal: Principal, port: int) -> PreviewAccess:
    return PreviewAccess(principal, live.id, port, live.spec.request_host(port), live.state in _OPEN)
