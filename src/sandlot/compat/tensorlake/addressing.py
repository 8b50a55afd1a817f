"""Addresses of the Tensorlake API: each call has two paths, and a request names its sandbox in one of several ways.

For ``localhost`` and ``127.0.0.1``, the client requests sandboxes, snapshots and pools below ``/v1/namespaces/NAME``; for other hosts, without that
prefix. It requests the inside of a sandbox at the sandbox's ``sandbox_url``. For other hosts it drops the path of the URL and names the sandbox in a
header. Its tunnels drop the path for any host; on this machine, their ``Host`` names the sandbox.

Invariants:
- A sandbox is named by its id, or by its name if it is live and belongs to the caller.
- Each key has exactly one namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.requests import HTTPConnection

from sandlot.model.errors import InvalidRequestError
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.sandboxes import SandboxInfo
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute

PREFIX: Final = "/tensorlake"
NAMESPACE: Final = "default"
SANDBOX_HEADER: Final = "X-Tensorlake-Sandbox-Id"
SANDBOX_PATH: Final = "/sbx"
"""Path of the inside of sandboxes, below the prefix."""
RUNTIME_PATH: Final = "/api/v1"
"""Path of the inside of a sandbox, below the path of the sandbox or at the root of the port."""
HOST_SUFFIX: Final = ".local"
"""Text that the client appends to the id or name of a sandbox in the ``Host`` of this machine."""

_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Any]])

router = APIRouter(route_class=JsonRoute)
root_router = APIRouter(route_class=JsonRoute)


async def check_namespace(request: Request) -> None:
    """Refuse unknown namespaces.

    Raises:
        InvalidRequestError: The path names another namespace than ``default``.
    """
    namespace = request.path_params.get("namespace", NAMESPACE)
    if namespace != NAMESPACE:
        raise InvalidRequestError(
            f"There is no namespace {namespace[:64]!r}.",
            hint=f"Use {NAMESPACE!r}, the default of the client. Each API key has its own sandboxes.",
            fields={"field": "namespace"},
        )


class RouteAliases:
    """Calls that have the same path below several prefixes.

    Args:
        places: Routers, each with a prefix for the calls.
    """

    def __init__(self, *places: tuple[APIRouter, str]) -> None:
        self._places = places

    def route(self, method: str, path: str) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds a handler below all prefixes."""

        def add(handler: _Handler) -> _Handler:
            for place, prefix in self._places:
                dependencies = [Depends(check_namespace)] if "{namespace}" in prefix else []
                place.add_api_route(prefix + path, handler, methods=[method], dependencies=dependencies)
            return handler

        return add

    def socket(self, path: str) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds the handler of a WebSocket below all prefixes."""

        def add(handler: _Handler) -> _Handler:
            for place, prefix in self._places:
                place.add_api_websocket_route(prefix + path, handler)
            return handler

        return add


CONTROL = RouteAliases((router, "/v1/namespaces/{namespace}"), (router, ""))
RUNTIME = RouteAliases((router, f"{SANDBOX_PATH}/{{sandbox}}{RUNTIME_PATH}"), (root_router, RUNTIME_PATH))


async def resolve_sandbox(request: HTTPConnection, id_or_name: str) -> SandboxInfo:
    """Return a live or ended sandbox by its id, or a live sandbox by its name.

    Raises:
        NotFoundError: There is no such sandbox (code ``sandbox_not_found``).
    """
    return await get_node(request).sandboxes.get(get_principal(request), id_or_name)


async def resolve_id(request: HTTPConnection, id_or_name: str) -> str:
    """Return the id of a sandbox. An id is returned unchanged, because the operation reports an unknown id.

    Raises:
        NotFoundError: There is no sandbox of this name (code ``sandbox_not_found``).
    """
    return id_or_name if SANDBOX_ID.fullmatch(id_or_name) else (await resolve_sandbox(request, id_or_name)).id


async def requested_sandbox(connection: HTTPConnection) -> str:
    """Return the id of the sandbox whose inside a request is about.

    Raises:
        NotFoundError: There is no such sandbox (code ``sandbox_not_found``).
        InvalidRequestError: The request names no sandbox.
    """
    named = connection.path_params.get("sandbox") or connection.headers.get(SANDBOX_HEADER) or _sandbox_of_host(connection.headers.get("host", ""))
    if not named:
        raise InvalidRequestError("The request names no sandbox.", hint=f"Send the id of the sandbox in the header {SANDBOX_HEADER}.")
    return await resolve_id(connection, named)


def _sandbox_of_host(host: str) -> str:
    """Return the sandbox that a ``Host`` names, or an empty text. Pure."""
    name = host.partition(":")[0]
    return name.removesuffix(HOST_SUFFIX) if name.endswith(HOST_SUFFIX) else ""


def sandbox_url(request: Request, sandbox: str) -> str:
    """Return the URL of the inside of a sandbox, with the scheme and host by which the client reached this service."""
    return f"{request.url.scheme}://{request.headers.get('host') or 'localhost'}{PREFIX}{SANDBOX_PATH}/{sandbox}"
