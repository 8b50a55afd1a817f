"""URLs that open one file to whoever has them, as E2B's clients make them by themselves: signed with their sandbox's token.

``v1_`` and, in base64 without padding, SHA-256 of ``path:operation:user:token`` and, where it holds for a while only, ``:`` and when it ends
(e2b, ``sandbox/signature.py``). Such a URL names no sandbox, so it is found by trying the tokens of those that live.

Laws:
- A signature is good for one path, user and operation, and for ``/files`` alone.
- Every comparison takes the same time, and all that live are compared, whichever it is.
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
_VERSION = "v1_"


def signature(path: str, operation: str, user: str, token: str, expires: str = "") -> str:
    """What a client signs with. Pure.

    Args:
        path: As the query has it.
        operation: ``read`` or ``write``.
        user: As the query has it; empty where it names none.
        token: The sandbox's.
        expires: As the query has it: whole seconds since 1970; empty is never.
    """
    raw = ":".join((path, operation, user, token, *((expires,) if expires else ())))
    return _VERSION + base64.b64encode(hashlib.sha256(raw.encode("utf-8", "replace")).digest()).rstrip(b"=").decode()


def is_signed(scope: Mapping[str, Any]) -> bool:
    """Whether a request (ASGI's scope) comes by a signed URL. Pure."""
    return b"signature=" in scope["query_string"]


async def sandbox_for(scope: Mapping[str, Any], node: Node, among: str = "") -> SandboxId:
    """The id of the sandbox whose file a signed URL opens.

    Args:
        scope: The request's, as ASGI has it.
        node: Who knows the sandboxes, and their tokens.
        among: The id of the only one that it may be; empty is any that lives.

    Raises:
        AuthenticationError: It was signed with the token of none, was changed, or holds no more.
    """
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    given, until = query.get("signature", ""), query.get("signature_expiration", "")
    operation = OPERATIONS.get(scope["method"], "")
    words = (query.get("path", ""), operation, query.get("username", ""))
    signer: SandboxInfo | None = None
    for sandbox in await find_live_sandboxes(node, OPERATOR, {}):
        if among in {"", sandbox.id}:
            expected = signature(*words, node.tokens.sandbox_token(OPERATOR, sandbox.id), until)
            if hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace")):
                signer = sandbox
    if signer is None or not operation:
        raise _refused("This URL was not signed with the token of a sandbox that lives, or it was changed.")
    if until and not (until.isascii() and until.isdecimal() and signer.as_of.timestamp() < int(until)):
        raise _refused("This URL holds no more.")
    return signer.id


def _refused(why: str) -> AuthenticationError:
    return AuthenticationError(why, code=ErrorCode.UNAUTHENTICATED, hint="Make another one by download_url() or upload_url().")
