"""Access to the inside of a sandbox with its token, and the sandbox that a request is about. E2B's clients send both in headers.

A client gets one token under two names when it creates a sandbox: it sends ``envdAccessToken`` as ``X-Access-Token``, and ``trafficAccessToken`` as
``E2B-Traffic-Access-Token``, which is the only credential of calls about code contexts.

Invariants:
- A token opens the inside of its own sandbox, and no call of the control plane. It names the sandbox for clients before 2.31, which send no
  other name after ``Sandbox.connect``.
- A URL that is signed with a token opens the named file of the token's sandbox, whatever sandbox the header names.
- A sandbox that does not exist or has ended is reported as by E2B's proxy: 502, "was not found".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import HTTPConnection

from sandlot.compat.common import is_ending
from sandlot.compat.e2b.envd import signed_urls
from sandlot.compat.vendor import SandboxServers
from sandlot.core.node import Node
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.states import SUSPENDED
from sandlot.web.auth import request_api_key
from sandlot.web.dependencies import get_node, get_principal

PREFIX: Final = "/e2b"
FILES: Final = "/files"
"""Path of file contents, below the prefix and at the root of the port, where signed URLs lead."""

SANDBOX, PORT = "e2b-sandbox-id", "e2b-sandbox-port"
TOKENS: Final = ("x-access-token", "e2b-traffic-access-token")
UPLOADS: Final = "/builds/uploads"
"""Path of archives for builds, below the prefix. A request has a signed query in place of an API key."""

INSIDE: Final = ("health", "files", "execute", "contexts", "process.Process", "filesystem.Filesystem")
"""First path segments, below the prefix, of calls to the inside of a sandbox."""

ENVD_PORT, INTERPRETER_PORT = "49983", "49999"
"""Values of the header :data:`PORT`, which names a server of E2B in the sandbox. Here the path decides; other ports are refused."""

_INTERPRETER: Final = ("execute", "contexts")
_SIGNED: Final = frozenset({FILES, PREFIX + FILES})
_FOUND: Final = "e2b.sandbox"
"""Key in the state of a request: id of the sandbox whose token authenticated the request. It takes precedence over the header."""
_TOKENS = tuple(name.encode() for name in TOKENS)


def _server_headers(sandbox: str, port: int) -> list[tuple[bytes, bytes]]:
    return [(SANDBOX.encode(), sandbox.encode()), (PORT.encode(), str(port).encode())]


SERVERS: Final = SandboxServers(
    ports=frozenset({int(ENVD_PORT), int(INTERPRETER_PORT)}), owns=lambda path: is_inside(PREFIX + path), headers=_server_headers
)
"""Servers of E2B in a sandbox. Clients of the code interpreter before 2.9 always send requests to ``49999-SANDBOX.DOMAIN``."""


async def authenticate(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Return the principal of a request with a sandbox's token or a signed URL; None if it has neither.

    Raises:
        AuthenticationError: The signature of the URL is invalid or expired.
        ForbiddenError: The link of an upload is invalid or expired.
    """
    if scope["path"] == PREFIX + UPLOADS:
        return node.tokens.principal_of_upload(scope["query_string"])[0]
    if not is_inside(scope["path"]):
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    sandbox = headers.get(SANDBOX.encode(), b"").decode("latin-1")
    for name in _TOKENS:
        token = headers.get(name, b"").decode("latin-1")
        if not token:
            continue
        named = sandbox or node.tokens.sandbox_of_token(token)
        if (principal := node.tokens.principal_of_token(token, named)) is not None:
            scope["state"][_FOUND] = named  # if there are several headers, readers may choose different ones
            return principal
    if scope["path"] not in _SIGNED or not signed_urls.is_signed(scope) or request_api_key(scope["headers"]):
        return None
    signer = await signed_urls.find_signer(scope, node, sandbox)
    scope["state"][_FOUND] = signer
    return node.tokens.principal_of_token(node.tokens.sandbox_token(OPERATOR, signer), signer)


def is_inside(path: str) -> bool:
    """Return whether a path, prefix included, is about the inside of a sandbox. Pure."""
    return path == FILES or (path.startswith(PREFIX + "/") and _first_segment(path) in INSIDE)


def _first_segment(path: str) -> str:
    return path.removeprefix(PREFIX)[1:].partition("/")[0]


def check_port(path: str, port: str) -> None:
    """Refuse a request to a server in the sandbox that is not E2B's. Pure.

    Args:
        path: Path of the request, prefix included.
        port: Value of the header :data:`PORT`. Empty: the request has no such header.

    Raises:
        UnsupportedError: The port is not that of the E2B server with such paths.
    """
    known = INTERPRETER_PORT if _first_segment(path) in _INTERPRETER else ENVD_PORT
    if port not in {"", known}:
        raise UnsupportedError(
            f"Port {port[:20]!r} of a sandbox cannot be reached through the E2B API.",
            code=ErrorCode.UNSUPPORTED,
            hint=f"This path belongs to port {known}. Use a tunnel of Sandlot's own API for other ports.",
            fields={"field": "E2b-Sandbox-Port"},
        )


async def find_requested_sandbox(request: HTTPConnection) -> SandboxInfo:
    """Return the sandbox whose inside a request is about.

    Raises:
        InvalidRequestError: The request names no sandbox.
        UnsupportedError: The request names a port that is not E2B's.
        SandboxEndedError: The sandbox does not exist, has ended, or belongs to another owner.
        ConflictError: The sandbox is paused and is not resumed by requests (code ``sandbox_paused``).
    """
    check_port(request.scope["path"], request.headers.get(PORT, ""))
    sandbox = request.scope["state"].get(_FOUND) or request.headers.get(SANDBOX, "")
    if not sandbox:
        raise InvalidRequestError(
            "The request names no sandbox.",
            hint=f"Set E2B_SANDBOX_URL to the address of this service with {PREFIX}; the client then sends the header E2b-Sandbox-Id.",
            fields={"field": "E2b-Sandbox-Id"},
        )
    node, principal = get_node(request), get_principal(request)
    try:
        found = await node.sandboxes.get(principal, sandbox)
    except NotFoundError:
        raise not_running(sandbox) from None
    if found.id != sandbox or is_ending(found):
        raise not_running(sandbox)
    if found.state in SUSPENDED and not found.spec.auto_resume:
        return await node.sandboxes.ensure_running(principal, found.id)  # raises, unless the sandbox was resumed just now
    return found


def not_running(sandbox: str) -> SandboxEndedError:
    """Return the error for a sandbox that does not exist or run, with the phrase that E2B's clients look for."""
    return SandboxEndedError(f"The sandbox {sandbox[:64]} was not found.", code=ErrorCode.SANDBOX_ENDED, fields={"sandbox": sandbox[:64]})
