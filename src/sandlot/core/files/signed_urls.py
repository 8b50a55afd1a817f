"""Signed URLs, preview tokens and sandbox tokens.

A signed URL gives access to one file of one sandbox for a limited time, without an API key. A preview token does the same for one port. The query of
an upload does the same for one archive of a build. A sandbox token replaces the API key in requests about one sandbox.

Invariants:
- A signature is HMAC-SHA-256 (RFC 2104) with a secret of the service. The signature covers the method, the sandbox, the path, the user, the id
  of the API key that signed the URL, and the expiry. If any of these values is changed, the URL is refused.
- The signature is compared in constant time, before any other part of the URL is used.
- A URL gives no more access than the API key that signed it: the key's quota applies, and revoking the key invalidates the URL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode

from sandlot.core.registry import SandboxRegistry
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ForbiddenError, InvalidRequestError, NotFoundError
from sandlot.model.ids import SANDBOX_ID, SandboxId
from sandlot.model.previews import preview_label
from sandlot.model.signed_urls import MAX_URL_LIFETIME_S, URL_METHODS, Grant, SignedUrl, TokenScope
from sandlot.model.specs import User

_FIELDS = ("sandbox", "path", "user", "key", "expires", "signature")
_DOMAIN = "sandlot signed file 1"
_TOKEN_DOMAIN = "sandlot sandbox token 1"  # noqa: S105 - not a secret
"""First value of the signed text of a token. The signed text of a URL begins with ``_DOMAIN`` instead. URLs and tokens are signed with the same
secret, and the signature of a URL must never be valid as a token."""
_PREVIEW_DOMAIN = "sandlot preview token 1"
_UPLOAD_DOMAIN = "sandlot upload 1"
_UPLOAD_FIELDS = ("upload", "key", "expires", "signature")
_EXPIRES_DIGITS = 15
"""Digits of a time of expiry that are read. No token expires that late."""


@dataclass(frozen=True, slots=True)
class _SignedValues:
    """Values that the signature of a URL covers.

    Args:
        method: ``GET`` to read the file, ``PUT`` to write it.
        sandbox: Id of the sandbox.
        path: Absolute path inside the sandbox.
        user: User that reads or writes the file.
        owner: Id of the API key that signed the URL.
        expires_s: Time of expiry, in whole seconds since 1970, UTC.
    """

    method: str
    sandbox: str
    path: str
    user: User
    owner: OwnerId
    expires_s: int


class TokenService:
    """Makes and checks signed URLs, preview tokens and sandbox tokens.

    Args:
        secret: 32 random bytes that only the service knows.
        now: Function that returns the current time, UTC.
        principal_of: Function that takes the id of an API key and returns the principal of the key, or None if the key has expired or was
            revoked.
    """

    def __init__(
        self, secret: bytes, registry: SandboxRegistry, now: Callable[[], datetime], principal_of: Callable[[OwnerId], Principal | None]
    ) -> None:
        self._secret = secret
        self._registry = registry
        self._now = now
        self._principal_of = principal_of

    def sign_url(self, principal: Principal, grant: Grant) -> SignedUrl:
        """Sign a URL that gives access to one file. The URL has the rights and the quota of the principal.

        Raises:
            InvalidRequestError: The method, path or lifetime is invalid.
        """
        sandbox = self._registry.find(grant.sandbox, principal)
        path = sandbox.absolute_path(grant.path)
        if grant.method not in URL_METHODS:
            raise InvalidRequestError(f"A URL cannot be signed for method {grant.method[:20]!r}.", hint="Use GET or PUT.", fields={"field": "method"})
        if not 1 <= grant.lifetime_s <= MAX_URL_LIFETIME_S:
            message = f"`expires_in` is {grant.lifetime_s:g}; it must be from 1 to {MAX_URL_LIFETIME_S:g} seconds."
            raise InvalidRequestError(message, fields={"field": "expires_in"})
        expires_at = (self._now() + timedelta(seconds=grant.lifetime_s)).replace(microsecond=0)
        signed = _SignedValues(grant.method, sandbox.id, path, grant.user or sandbox.spec.user, principal.owner, int(expires_at.timestamp()))
        values = (signed.sandbox, signed.path, signed.user.value, signed.owner, str(signed.expires_s), self._signature(signed))
        return SignedUrl(urlencode(dict(zip(_FIELDS, values, strict=True))), expires_at)

    def principal_of_url(self, method: str, query: bytes) -> Principal:
        """Check the signed URL of a request, and return the principal of the API key that signed the URL.

        Args:
            method: HTTP method of the request.
            query: Query of the URL, as received.

        Raises:
            ForbiddenError: The URL was not signed for this method, was changed or has expired, or its API key has expired or was revoked.
        """
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        values = dict(pairs)
        if len(pairs) != len(_FIELDS) or values.keys() != set(_FIELDS):
            raise _refused("The URL is not a signed URL. A signed URL has six query parameters and no others.")
        try:
            signed = _SignedValues(method, values["sandbox"], values["path"], User(values["user"]), OwnerId(values["key"]), int(values["expires"]))
            expected = self._signature(signed)
        except (ValueError, InvalidRequestError):  # no URL with such values was signed
            raise _refused("The URL was not signed by this service, or was changed.") from None
        if str(signed.expires_s) != values["expires"] or not hmac.compare_digest(expected.encode(), values["signature"].encode("utf-8", "replace")):
            raise _refused("The URL was not signed by this service, or was changed.")
        if self._now().timestamp() >= signed.expires_s:
            raise _refused(f"The URL expired at {datetime.fromtimestamp(signed.expires_s, UTC).isoformat()}.")
        principal = self._principal_of(signed.owner)
        if principal is None:
            raise _refused("The API key that signed this URL has expired or was revoked.")
        return principal

    def sign_upload(self, principal: Principal, upload: str, lifetime_s: float) -> str:
        """Return the query of a URL to which one archive of a build can be uploaded with the rights and the quota of the principal.

        Args:
            principal: Owner of the upload.
            upload: Name of the upload.
            lifetime_s: Seconds until the URL expires.
        """
        expires = str(int((self._now() + timedelta(seconds=lifetime_s)).timestamp()))
        values = (upload, principal.owner, expires, self._upload_signature(upload, principal.owner, expires))
        return urlencode(dict(zip(_UPLOAD_FIELDS, values, strict=True)))

    def principal_of_upload(self, query: bytes) -> tuple[Principal, str]:
        """Check the query of an upload. Return the principal of the API key that signed the query, and the name of the upload.

        Args:
            query: Query of the URL, as received.

        Raises:
            ForbiddenError: The query was not signed, was changed or has expired, or its API key has expired or was revoked.
        """
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        values = dict(pairs)
        if len(pairs) != len(_UPLOAD_FIELDS) or values.keys() != set(_UPLOAD_FIELDS):
            raise _refused_upload("The URL is not an upload URL.")
        upload, owner, expires, signature = (values[name] for name in _UPLOAD_FIELDS)
        if not hmac.compare_digest(self._upload_signature(upload, owner, expires).encode(), signature.encode("utf-8", "replace")):
            raise _refused_upload("The URL was not signed by this service, or was changed.")
        if self._now().timestamp() >= int(expires):
            raise _refused_upload(f"The URL expired at {datetime.fromtimestamp(int(expires), UTC).isoformat()}.")
        principal = self._principal_of(OwnerId(owner))
        if principal is None:
            raise _refused_upload("The API key that signed this URL has expired or was revoked.")
        return principal, upload

    def _upload_signature(self, upload: str, owner: str, expires: str) -> str:
        digest = hmac.digest(self._secret, json.dumps([_UPLOAD_DOMAIN, upload, owner, expires]).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def preview_token(self, principal: Principal, sandbox: SandboxId, port: int, lifetime_s: float) -> tuple[str, datetime]:
        """Return a token that opens one port of a sandbox with the rights of the principal, and the time of its expiry."""
        expires_at = (self._now() + timedelta(seconds=lifetime_s)).replace(microsecond=0)
        expires_s = int(expires_at.timestamp())
        signature = self._preview_signature(principal.owner, expires_s, sandbox, port)
        return f"{preview_label(sandbox, port)}.{principal.owner}.{expires_s}.{signature}", expires_at

    def principal_of_preview(self, token: str, sandbox: str, port: int) -> tuple[Principal, float] | None:
        """Return the principal of a preview token, and the seconds until the token expires.

        None: the token was not signed for this port of this sandbox or has expired, or its API key has expired or was revoked.
        """
        label, owner, digits = (*token.split(".", 3), "", "", "")[:3]
        if label != preview_label(SandboxId(sandbox), port) or not (digits.isascii() and digits.isdigit() and len(digits) <= _EXPIRES_DIGITS):
            return None
        signed = self._preview_signature(OwnerId(owner), int(digits), SandboxId(sandbox), port)
        expected = f"{preview_label(SandboxId(sandbox), port)}.{owner}.{int(digits)}.{signed}"
        lifetime_s = int(digits) - self._now().timestamp()
        if not hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")) or lifetime_s <= 0:
            return None
        principal = self._principal_of(OwnerId(owner))
        return None if principal is None else (principal, lifetime_s)

    def _preview_signature(self, owner: OwnerId, expires_s: int, sandbox: SandboxId, port: int) -> str:
        digest = hmac.digest(self._secret, json.dumps([_PREVIEW_DOMAIN, owner, expires_s, sandbox, port]).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def sandbox_token(self, principal: Principal, sandbox: str, scope: TokenScope = TokenScope.SANDBOX) -> str:
        """Return a token that requests about one sandbox can send instead of the API key of its owner. A sandbox has one token for each scope."""
        live = self._registry.find(sandbox, principal)
        return self._token(scope, live.owner, live.id)

    def principal_of_token(self, token: str, id_or_name: str, scope: TokenScope = TokenScope.SANDBOX) -> Principal | None:
        """Return the principal of a sandbox token.

        The calling code must use the principal only for requests about this sandbox that are in the scope. None: the token is not valid for this
        sandbox and scope, or its API key has expired or was revoked.

        Args:
            token: The token, as received.
            id_or_name: Id of the sandbox, or its name: the token must be that of the live sandbox of its owner with this name.
            scope: Scope that the token must have.
        """
        owner = OwnerId(token.partition(".")[0])
        principal = self._principal_of(owner)
        if principal is None:
            return None
        id_ = SandboxId(id_or_name)
        if SANDBOX_ID.fullmatch(id_or_name) is None:
            with suppress(NotFoundError):  # the caller reports that there is no such sandbox
                id_ = self._registry.find_by_name(id_or_name, principal).id
        return principal if hmac.compare_digest(self._token(scope, owner, id_).encode(), token.encode("utf-8", "replace")) else None

    @staticmethod
    def sandbox_of_token(token: str) -> str:
        """Return the id of the sandbox that a token names, or an empty text. Nothing is checked. Pure."""
        return token.rpartition(".")[0].partition(".")[2]

    def _token(self, scope: TokenScope, owner: OwnerId, sandbox: SandboxId) -> str:
        digest = hmac.digest(self._secret, json.dumps([_TOKEN_DOMAIN, scope, owner, sandbox]).encode(), hashlib.sha256)
        return f"{owner}.{sandbox}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    def _signature(self, signed: _SignedValues) -> str:
        values = [_DOMAIN, signed.method, signed.sandbox, signed.path, signed.user.value, signed.owner, signed.expires_s]
        digest = hmac.digest(self._secret, json.dumps(values, ensure_ascii=False).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _refused_upload(message: str) -> ForbiddenError:
    return ForbiddenError(message, hint="Request a new URL for the upload.")


def _refused(message: str) -> ForbiddenError:
    return ForbiddenError(message, hint="Get a new URL with POST /v1/sandboxes/ID/files/signed-urls.")
