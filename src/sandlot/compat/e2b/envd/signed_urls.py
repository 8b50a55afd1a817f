"""Signed URLs of files, which E2B's clients build themselves with the token of their sandbox.

A signature is ``v1_`` and the SHA-256 of ``path:operation:user:token``, with ``:expiration`` if it expires, in base64 without padding (e2b,
``sandbox/signature.py``). The URL names no sandbox, so the tokens of all live sandboxes are tried.

Invariants:
- A signature is valid for one path, user and operation of ``/files`` only.
- Comparisons take constant time, and all live sandboxes are compared.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from sandlot.compat.common import find_live_sandboxes
from sandlot.core.node import Node
from sandlot.model.access import OPERATOR
from sandlot.model.errors import AuthenticationError, ErrorCode
from sandlot.model.ids import SandboxId
from sandlot.model.sandboxes import SandboxInfo

OPERATIONS: Mapping[str, str] = {"GET": "read", "HEAD": "read", "POST": "write"}
EXPIRED = "signature is already expired"
"""Message of E2B, which clients compare."""
_VERSION = "v1_"


def signature(path: str, operation: str, user: str, token: str, expires: str = "") -> str:
    """Return the signature of a URL. Pure.

    Args:
        path: Path in the query.
        operation: ``read`` or ``write``.
        user: User in the query. Empty: the query names no user.
        token: Token of the sandbox.
        expires: Expiration in the query, in whole seconds since 1970. Empty: no expiration.
    """
    raw = ":".join((path, operation, user, token, *((expires,) if expires else ())))
    return _VERSION + base64.b64encode(hashlib.sha256(raw.encode("utf-8", "replace")).digest()).rstrip(b"=").decode()


def is_signed(scope: Mapping[str, Any]) -> bool:
    """Return whether a request has a signed URL. Pure."""
    return b"signature=" in scope["query_string"]


async def find_signer(scope: Mapping[str, Any], node: Node, only: str = "") -> SandboxId:
    """Return the id of the sandbox whose token signed a URL.

    Args:
        scope: ASGI scope of the request.
        node: Node that has the sandboxes.
        only: Id of the only acceptable sandbox. Empty: any live sandbox.

    Raises:
        AuthenticationError: No live sandbox has signed the URL, or the signature has expired.
    """
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    given, until = query.get("signature", ""), query.get("signature_expiration", "")
    operation = OPERATIONS.get(scope["method"], "")
    signed = (query.get("path", ""), operation, query.get("username", ""))
    signer: SandboxInfo | None = None
    for sandbox in await find_live_sandboxes(node, OPERATOR, {}):
        if only in {"", sandbox.id}:
            expected = signature(*signed, node.tokens.sandbox_token(OPERATOR, sandbox.id), until)
            if hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
                signer = sandbox
    if signer is None or not operation:
        raise AuthenticationError(
            "The URL is not signed with the token of a live sandbox, or was changed.",
            code=ErrorCode.UNAUTHENTICATED,
            hint="Create a new URL with download_url() or upload_url().",
        )
    if until and not (until.isascii() and until.isdecimal() and signer.as_of.timestamp() < int(until)):
        raise AuthenticationError(EXPIRED, code=ErrorCode.UNAUTHENTICATED)
    return signer.id
