"""Who may speak to a sandbox without a key, and which sandbox is meant: what E2B's clients say in headers, in place of a host name.

A client is given two tokens with its sandbox, which here are one: ``envdAccessToken`` comes back as ``X-Access-Token``, ``trafficAccessToken`` as
``E2B-Traffic-Access-Token``, which is all that calls about code contexts show.

Laws:
- A token is good for what is done inside of its own sandbox, and for nothing of the control plane.
- A URL that was signed with one is good for the file that it names, and for the sandbox whose token it was, whichever the header says.
- A sandbox that there is not (any more) is told as E2B's proxy tells it: 502, "was not found".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import HTTPConnection

from sandlot.compat.e2b.envd import signed_urls
from sandlot.core.node import Node
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.states import SUSPENDED, State
from sandlot.web.auth import request_api_key
from sandlot.web.dependencies import get_node, get_principal

PREFIX = "/e2b"
FILES = "/files"
"""PrefixRouter the prefix, and at the root of the port, where signed URLs lead."""

SANDBOX, PORT = "e2b-sandbox-id", "e2b-sandbox-port"
TOKENS = ("x-access-token", "e2b-traffic-access-token")

INSIDE = ("health", "files", "execute", "contexts", "process.Process", "filesystem.Filesystem")
"""How the paths begin, below the prefix, that are about one sandbox's inside."""

ENVD_PORT, INTERPRETER_PORT = "49983", "49999"
"""What clients say in :data:`PORT`: which of E2B's servers inside is meant. Paths tell them apart here; another's port is nobody's."""

_INTERPRETER = ("execute", "contexts")
_SIGNED = frozenset({FILES, PREFIX + FILES})
_FOUND = "e2b.sandbox"
"""In a request's state: the sandbox that was found to be meant by whoever shows no key; it counts, whatever the header says."""
_TOKENS = tuple(name.encode() for name in TOKENS)


async def admit(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Who sends a request that shows a sandbox's token, or comes by a URL that was signed with one; None where it does neither.

    Raises:
        AuthenticationError: It comes by a URL that was not signed like that, or holds no more.
    """
    if not is_inside(scope["path"]):
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    sandbox = headers.get(SANDBOX.encode(), b"").decode("latin-1")
    for name in _TOKENS:
        token = headers.get(name, b"").decode("latin-1")
        if token and (principal := node.tokens.principal_of_token(token, sandbox)) is not None:
            scope["state"][_FOUND] = sandbox  # which of several headers a reader takes is nothing to rely on
            return principal
    if scope["path"] not in _SIGNED or not signed_urls.is_signed(scope) or request_api_key(scope["headers"]):
        return None
    signer = await signed_urls.sandbox_for(scope, node, sandbox)
    scope["state"][_FOUND] = signer
    return node.tokens.principal_of_token(node.tokens.sandbox_token(OPERATOR, signer), signer)


def is_inside(path: str) -> bool:
    """Whether a path, prefix included, is about a sandbox's inside. Pure."""
    return path == FILES or (path.startswith(PREFIX + "/") and _first(path) in INSIDE)


def _first(path: str) -> str:
    return path.removeprefix(PREFIX)[1:].partition("/")[0]


def check_port(path: str, port: str) -> None:
    """Refuse what is for somebody's own server inside. Pure.

    Args:
        path: The request's, prefix included.
        port: What it says of the port; empty is nothing.

    Raises:
        UnsupportedError: Another port is meant than that of the server that has such paths.
    """
    known = INTERPRETER_PORT if _first(path) in _INTERPRETER else ENVD_PORT
    if port not in {"", known}:
        raise UnsupportedError(
            f"Port {port[:20]!r} of a sandbox is not reached by E2B's API here.",
            code=ErrorCode.UNSUPPORTED,
            hint=f"What is asked here is port {known}'s; Sandlot's own API has tunnels to the others.",
            fields={"field": "E2b-Sandbox-Port"},
        )


async def sandbox_of(request: HTTPConnection) -> SandboxInfo:
    """The sandbox whose inside a request is about.

    Raises:
        InvalidRequestError: It does not say which.
        UnsupportedError: It is for another port than E2B's own servers have.
        SandboxEndedError: There is none, or none any more, or it is somebody else's.
        ConflictError: ``sandbox_paused``: it rests, and is not to be resumed by this.
    """
    check_port(request.scope["path"], request.headers.get(PORT, ""))
    sandbox = request.scope["state"].get(_FOUND) or request.headers.get(SANDBOX, "")
    if not sandbox:
        raise InvalidRequestError(
            "The request does not say which sandbox it is for.",
            hint=f"Set E2B_SANDBOX_URL to this service's address with {PREFIX} at its end; the client then sends the header E2b-Sandbox-Id.",
            fields={"field": "E2b-Sandbox-Id"},
        )
    node, principal = get_node(request), get_principal(request)
    try:
        found = await node.sandboxes.get(principal, sandbox)
    except NotFoundError:
        raise gone(sandbox) from None
    if found.id != sandbox or found.is_over or found.state is State.STOPPING:
        raise gone(sandbox)
    if found.state in SUSPENDED and not found.spec.auto_resume:
        return await node.sandboxes.ensure_running(principal, found.id)  # raises, unless it was resumed just now
    return found


def gone(sandbox: str) -> SandboxEndedError:
    """What is told of a sandbox that there is not, in the words by which E2B's clients know it."""
    return SandboxEndedError(f"The sandbox {sandbox[:64]} was not found.", code=ErrorCode.SANDBOX_ENDED, fields={"sandbox": sandbox[:64]})
