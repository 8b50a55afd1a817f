"""URLs that open one file of one sandbox for a while, to whoever has them: signed, so that nobody can make or change one.

Laws:
- A signature is HMAC-SHA-256 (RFC 2104) by a secret of the service over everything that the URL allows: the method, the sandbox, the path,
  the user, whose key it was made by, and until when. A URL is good for exactly that, and changed in any character for nothing.
- It is compared in constant time, before anything else of the URL is looked at.
- It is worth no more than the key that it was made by: one that was revoked takes its URLs along, and its quota bounds them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode

from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError
from sandlot.model.specs import User, check_path

METHODS = ("GET", "PUT")
DEFAULT_S = 3600.0
MOST_S = 7 * 24 * 3600.0
"""The longest that a URL may hold, as it is with S3's."""
_FIELDS = ("sandbox", "path", "user", "key", "expires", "signature")
_DOMAIN = "sandlot signed file 1"
_SANDBOX_DOMAIN = "sandlot sandbox token 1"
"""What else is ever signed by the same secret begins otherwise."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a URL allows.

    Args:
        method: GET reads, PUT writes.
        sandbox: The sandbox's id.
        path: Absolute, inside it.
        user: Who it is done as.
        owner: Whose key made it.
        expires_s: Until when; whole seconds since 1970, UTC.
    """

    method: str
    sandbox: str
    path: str
    user: User
    owner: OwnerId
    expires_s: int


class UrlSigner:
    """Makes and checks signatures.

    Args:
        secret: 32 random bytes that nobody else knows.
        now: The time, UTC.
        owners: Who has a key of that id; None where it is gone.
    """

    def __init__(self, secret: bytes, now: Callable[[], datetime], owners: Callable[[OwnerId], Principal | None]) -> None:
        self._secret = secret
        self._now = now
        self._owners = owners

    def sign(self, principal: Principal, *, sandbox: str, method: str, path: str, user: User, expires_in_s: float) -> tuple[str, datetime]:
        """A URL's query, and until when it holds.

        Args:
            principal: Who asks; the caller has seen to it that the sandbox is theirs.
            sandbox: Its id.
            method: One of ``METHODS``.
            path: Absolute.
            user: Who it is done as.
            expires_in_s: Seconds, 1 to 604,800.

        Raises:
            InvalidRequestError: No such method, path or time.
        """
        check_path(path)
        if method not in METHODS:
            raise InvalidRequestError(f"A URL cannot be signed for {method[:20]!r}.", hint="Use GET or PUT.", fields={"field": "method"})
        if not 1 <= expires_in_s <= MOST_S:
            raise InvalidRequestError(f"expires_in is {expires_in_s:g}; it must be from 1 to {MOST_S:g}.", fields={"field": "expires_in"})
        until = (self._now() + timedelta(seconds=expires_in_s)).replace(microsecond=0)
        grant = Grant(method, sandbox, path, user, principal.owner, int(until.timestamp()))
        words = (grant.sandbox, grant.path, grant.user.value, grant.owner, str(grant.expires_s), self._signature(grant))
        return urlencode(dict(zip(_FIELDS, words, strict=True))), until

    def principal(self, method: str, query: bytes) -> Principal:
        """Who a request by a signed URL is made for.

        Args:
            method: The request's.
            query: The URL's, as it came.

        Raises:
            ForbiddenError: It was not signed like this, holds no more, or its key was revoked.
        """
        words = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = dict(words)
        if len(words) != len(_FIELDS) or given.keys() != set(_FIELDS):
            raise _refused("This is no signed URL: something of it is missing, or there is more than was signed.")
        try:
            grant = Grant(method, given["sandbox"], given["path"], User(given["user"]), OwnerId(given["key"]), int(given["expires"]))
            expected = self._signature(grant)
        except ValueError:  # no such user, no number, or text that nobody could have signed
            raise _refused("This URL was not signed by this service, or it was changed.") from None
        if str(grant.expires_s) != given["expires"] or not hmac.compare_digest(expected.encode(), given["signature"].encode("utf-8", "replace")):
            raise _refused("This URL was not signed by this service, or it was changed.")
        if self._now().timestamp() >= grant.expires_s:
            raise _refused(f"This URL held until {datetime.fromtimestamp(grant.expires_s, UTC).isoformat()}.")
        principal = self._owners(grant.owner)
        if principal is None:
            raise _refused("The API key that this URL was made by was revoked.")
        return principal

    def token(self, owner: OwnerId, sandbox: str) -> str:
        """What stands for a key in requests about one sandbox, for clients that are given one: always the same for the same two.

        Args:
            owner: Whose key it stands for.
            sandbox: The sandbox's id.
        """
        digest = hmac.digest(self._secret, json.dumps([_SANDBOX_DOMAIN, owner, sandbox]).encode(), hashlib.sha256)
        return f"{owner}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    def bearer(self, token: str, sandbox: str) -> Principal | None:
        """Whose token for that sandbox it is; None where it is nobody's, or its key was revoked.

        The caller does with it what is about that sandbox, and nothing else.
        """
        owner = OwnerId(token.partition(".")[0])
        if not hmac.compare_digest(self.token(owner, sandbox).encode("utf-8", "replace"), token.encode("utf-8", "replace")):
            return None
        return self._owners(owner)

    def _signature(self, grant: Grant) -> str:
        words = [_DOMAIN, grant.method, grant.sandbox, grant.path, grant.user.value, grant.owner, grant.expires_s]
        digest = hmac.digest(self._secret, json.dumps(words, ensure_ascii=False).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _refused(why: str) -> ForbiddenError:
    return ForbiddenError(why, code=ErrorCode.FORBIDDEN, hint="Ask whoever gave it for another one (POST /v1/sandboxes/ID/files/sign).")
