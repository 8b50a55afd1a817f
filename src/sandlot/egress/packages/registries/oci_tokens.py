"""Authentication at registries of images: ``Basic``, and ``Bearer`` with a token that another server issues (distribution specification).

Invariants:
- A credential of this machine is sent only to its registry and to the token server that its registry names, to the latter only over TLS or if the
  token server is the registry itself.
- A token is sent only to the registry and the repository for which it was issued.
- The token server has a public address, an address in the networks that the operator allows, or it is the registry itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode, urlsplit

from sandlot.egress.packages.config.values import Access, netloc_of, redacted
from sandlot.egress.packages.upstream import Upstream, UpstreamError

MAX_TOKENS: Final = 256
"""Maximum number of tokens that are kept."""
TOKEN_S: Final = 60.0
"""Seconds for which a token is valid if the token server does not say (distribution specification)."""
REQUEST_S: Final = 30.0
"""Seconds that the token server may take."""
_MARGIN_S: Final = 10.0
_MAX_BYTES: Final = 64 * 1024
_MAX_CHARS: Final = 16 * 1024
_REPOSITORY = re.compile(r"/v2/(.+)/(?:manifests|blobs)/[^/]+")
_PARAMETER = re.compile(r'([a-zA-Z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')
_OK = 200
_log = logging.getLogger(__name__)


class RegistryTokens:
    """Implements :class:`~sandlot.egress.packages.upstream.Authenticator` for registries.

    Args:
        access: Credentials for the registries.
        anonymous: Client for requests to token servers. It has no credentials and checks the addresses of hosts.
    """

    def __init__(self, access: Access, anonymous: Upstream) -> None:
        self._access = access
        self._anonymous = anonymous
        self._headers: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        """(Origin, repository) -> ``Authorization`` header and the moment at which it expires."""

    async def authorization(self, url: str) -> str | None:
        """Return the header that the registry has asked for before, if it is still valid."""
        header, until_s = self._headers.get(_scope_of(url), ("", 0.0))
        return header if time.monotonic() < until_s else None

    async def answer(self, url: str, challenges: Sequence[str]) -> bool:
        """Choose the header that the registry asks for. Return False if this machine has no credential that the registry could accept."""
        credential = self._access.authorization(url)
        for challenge in challenges:
            scheme, _, rest = challenge.strip()[:_MAX_CHARS].partition(" ")
            if scheme.lower() == "bearer":
                header, valid_s = await self._bearer(url, dict(_parameters(rest)), credential)
            elif scheme.lower() == "basic" and credential is not None:
                header, valid_s = credential, float("inf")
            else:
                continue
            if not header or header == await self.authorization(url):
                continue
            key = _scope_of(url)
            self._headers[key] = header, time.monotonic() + valid_s
            self._headers.move_to_end(key)
            if len(self._headers) > MAX_TOKENS:
                self._headers.popitem(last=False)
            return True
        return False

    async def _bearer(self, url: str, parameters: dict[str, str], credential: str | None) -> tuple[str, float]:
        if credential is not None and credential.startswith("Bearer "):
            return credential, float("inf")
        realm, repository = parameters.get("realm", ""), _scope_of(url)[1]
        parts, is_registry = urlsplit(realm), netloc_of(realm) == netloc_of(url)
        if parts.scheme not in {"http", "https"} or (parts.scheme == "http" and url.startswith("https:")):
            raise UpstreamError(f"{redacted(url)}: the token server {redacted(realm)} is not valid", "it names no valid token server")
        scope = parameters.get("scope") or f"repository:{repository}:pull"
        query = urlencode([*([("service", parameters["service"])] if parameters.get("service") else []), ("scope", scope)])
        may_know = credential is not None and (is_registry or parts.scheme == "https")
        target = f"{realm}{'&' if parts.query else '?'}{query}"
        try:
            async with asyncio.timeout(REQUEST_S):
                return await self._fetch(target, credential if may_know else None, trusted=netloc_of(url))
        except TimeoutError:
            raise UpstreamError(f"{redacted(realm)}: no token within {REQUEST_S:g} s", "its token server does not respond") from None

    async def _fetch(self, url: str, credential: str | None, trusted: str) -> tuple[str, float]:
        async with self._anonymous.get(url, {}, login=credential, trusted=trusted) as response:
            if response.status != _OK:
                _log.warning("the token server %s refused a token: status %d", redacted(url), response.status)
                return "", 0.0
            body = b""
            async for piece in response.pieces(decoded=True):
                body += piece
                if len(body) > _MAX_BYTES:
                    raise UpstreamError(f"{redacted(url)}: the token is too long", "its token server sent no valid token")
        try:
            document = json.loads(body)
            token, valid_s = document.get("token") or document.get("access_token"), document.get("expires_in")
        except (ValueError, AttributeError, RecursionError):
            token, valid_s = None, None
        if not (isinstance(token, str) and token.isascii() and token.isprintable() and len(token) <= _MAX_CHARS):
            raise UpstreamError(f"{redacted(url)}: the response has no token", "its token server sent no valid token")
        valid_s = float(valid_s) if isinstance(valid_s, int | float) and 0 < valid_s < 10 * 24 * 3600 else TOKEN_S
        return f"Bearer {token}", max(valid_s - _MARGIN_S, valid_s / 2)


def _scope_of(url: str) -> tuple[str, str]:
    """Return the origin and the repository of a URL."""
    parts = urlsplit(url)
    found = _REPOSITORY.fullmatch(parts.path)
    return f"{parts.scheme}://{netloc_of(url)}", found[1] if found else ""


def _parameters(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain) for name, quoted, plain in _PARAMETER.findall(text)]
