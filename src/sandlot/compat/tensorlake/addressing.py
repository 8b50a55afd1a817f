"""Where Tensorlake's client asks: the same calls at two places each, and which sandbox they are about.

Its client asks for sandboxes, snapshots and pools below ``/v1/namespaces/NAME`` where the service's host is ``localhost`` or ``127.0.0.1``, and
without that for every other one. It asks the inside of a sandbox at the ``sandbox_url`` that it was told; of hosts that are not this machine it
keeps no path of that, and names the sandbox in a header. Its tunnels keep no path of any host, and where that is this machine their ``Host`` names
the sandbox.

Laws:
- A sandbox is named by its id, or by its name where it is one's own and lives.
- There is one namespace: a key's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.requests import HTTPConnection

from sandlot.model.errors import ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.sandboxes import SandboxInfo
from sandlot.web.dependencies import get_node, get_principal

PREFIX = "/tensorlake"
NAMESPACE = "default"
SANDBOX_HEADER = "X-Tensorlake-Sandbox-Id"
BELOW = "/sbx"
"""Where the inside of sandboxes is."""
INNER = "/api/v1"
HOST_SUFFIX = ".local"
"""What its client puts behind a sandbox's id or name, as the ``Host`` of this machine."""

_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Any]])

router = APIRouter()
root_router = APIRouter()


async def one_namespace(request: Request) -> None:
    """Refuse any namespace but the one that there is.

    Raises:
        InvalidRequestError: It is another one.
    """
    named = request.path_params.get("namespace", NAMESPACE)
    if named != NAMESPACE:
        raise InvalidRequestError(
            f"There is no namespace {named[:64]!r}.",
            hint=f"Use {NAMESPACE!r}, which is what the client takes by itself: every key of Sandlot's has its own sandboxes.",
            fields={"field": "namespace"},
        )


class RouteAliases:
    """A set of calls that is there at several places.

    Args:
        places: Each a router, and what is in front of a call's path there.
    """

    def __init__(self, *places: tuple[APIRouter, str]) -> None:
        self._places = places

    def route(self, method: str, path: str) -> Callable[[_Handler], _Handler]:
        """What answers one call: a decorator."""

        def add(handler: _Handler) -> _Handler:
            for place, before in self._places:
                needs = [Depends(one_namespace)] if "{namespace}" in before else []
                place.add_api_route(before + path, handler, methods=[method], dependencies=needs)
            return handler

        return add

    def socket(self, path: str) -> Callable[[_Handler], _Handler]:
        """What answers one WebSocket: a decorator."""

        def add(handler: _Handler) -> _Handler:
            for place, before in self._places:
                place.add_api_websocket_route(before + path, handler)
            return handler

        return add


CONTROL = RouteAliases((router, "/v1/namespaces/{namespace}"), (router, ""))
INSIDE = RouteAliases((router, f"{BELOW}/{{sandbox}}{INNER}"), (root_router, INNER))


async def any_sandbox(request: HTTPConnection, id_or_name: str) -> SandboxInfo:
    """A sandbox by its id, also one that has ended, for as long as its record is kept; or a live one by its name.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    return await get_node(request).sandboxes.get(get_principal(request), id_or_name)


async def id_of(request: HTTPConnection, id_or_name: str) -> str:
    """The id of the sandbox that a word of a path names. Whether there is one of an id is said by what is asked of it.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    return id_or_name if SANDBOX_ID.fullmatch(id_or_name) else (await any_sandbox(request, id_or_name)).id


async def inside(connection: HTTPConnection) -> str:
    """The id of the sandbox whose inside a request is about.

    Raises:
        NotFoundError: ``sandbox_not_found``.
        InvalidRequestError: It does not say which.
    """
    named = connection.path_params.get("sandbox") or connection.headers.get(SANDBOX_HEADER) or _of_host(connection.headers.get("host", ""))
    if not named:
        raise InvalidRequestError("The request does not say which sandbox it is about.", hint=f"Send its id in the header {SANDBOX_HEADER}.")
    return await id_of(connection, named)


def _of_host(host: str) -> str:
    """The sandbox that a ``Host`` names, or nothing. Pure."""
    name = host.partition(":")[0]
    return name.removesuffix(HOST_SUFFIX) if name.endswith(HOST_SUFFIX) else ""


def url_of(request: Request, sandbox: str) -> str:
    """Where the client reaches the inside of a sandbox, as it has reached this service."""
    return f"{request.url.scheme}://{request.headers.get('host') or 'localhost'}{PREFIX}{BELOW}/{sandbox}"


def refused(what: str, why: str) -> UnsupportedError:
    """What is answered where Tensorlake has something that Sandlot has not.

    Args:
        what: A sentence that says what.
        why: What to use in its place.
    """
    return UnsupportedError(what, code=ErrorCode.UNSUPPORTED, hint=why)
