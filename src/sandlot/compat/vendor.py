"""The description of a compatibility API: name, prefix, routes, and a table from every error code to the vendor's status and code.

Invariants:
- The table has every error code; a test checks the tables of all vendors.
- A message states what failed and, where something helps, one action.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import Match
from starlette.types import Scope

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, SandlotError, UnsupportedError
from sandlot.model.records import EventRecord
from sandlot.web.error_formats import RenderedError, retry_after_s


@dataclass(frozen=True, slots=True)
class ErrorTableEntry:
    """Status and code of a vendor for one error code.

    Args:
        status: HTTP status, by which the vendor's client chooses what to raise.
        code: Code of the vendor. Empty if its error bodies have none.
    """

    status: int
    code: str


_FAMILIES: Mapping[str, Collection[ErrorCode]] = MappingProxyType(
    {
        "invalid": (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.MODEL_NOT_CONFIGURED,
            ErrorCode.PATH_INVALID,
            ErrorCode.PATH_NOT_DIRECTORY,
            ErrorCode.PATH_IS_DIRECTORY,
            ErrorCode.PATH_NOT_REGULAR,
            ErrorCode.PATH_LINK_LOOP,
        ),
        "unauthenticated": (ErrorCode.UNAUTHENTICATED,),
        "forbidden": (ErrorCode.FORBIDDEN, ErrorCode.PERMISSION_DENIED),
        "not_found": (*(code for code in ErrorCode if code.value.endswith("not_found")), ErrorCode.SANDBOX_ENDED),
        "conflict": (ErrorCode.PATH_EXISTS, ErrorCode.PATH_NOT_EMPTY, ErrorCode.CONFLICT, ErrorCode.SANDBOX_PAUSED, ErrorCode.SNAPSHOT_UNUSABLE),
        "too_large": (ErrorCode.TOO_LARGE,),
        "limit": (ErrorCode.LIMIT_EXCEEDED, ErrorCode.QUOTA_EXCEEDED),
        "disk_full": (ErrorCode.DISK_FULL, ErrorCode.NODE_DISK_FULL),
        "timeout": (ErrorCode.TIMEOUT,),
        "unsupported": (ErrorCode.UNSUPPORTED,),
        "unavailable": (ErrorCode.HOST_NOT_READY, ErrorCode.BUSY, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_STOPPING),
        "internal": (ErrorCode.INTERNAL, ErrorCode.EXECUTION_FAILED),
    }
)
"""Families of error codes that most vendors do not distinguish."""


def error_table(  # noqa: PLR0913 - one row each, all by name
    *,
    invalid: ErrorTableEntry,
    unauthenticated: ErrorTableEntry,
    forbidden: ErrorTableEntry,
    not_found: ErrorTableEntry,
    conflict: ErrorTableEntry,
    too_large: ErrorTableEntry,
    limit: ErrorTableEntry,
    disk_full: ErrorTableEntry,
    timeout: ErrorTableEntry,
    unsupported: ErrorTableEntry,
    unavailable: ErrorTableEntry,
    internal: ErrorTableEntry,
    others: Mapping[ErrorCode, ErrorTableEntry],
) -> Mapping[ErrorCode, ErrorTableEntry]:
    """Return a table with every error code.

    Args:
        invalid: The request is malformed or its values are out of range.
        unauthenticated: No API key, or an unknown one.
        forbidden: The key or the sandbox's file system does not allow the operation.
        not_found: The object does not exist.
        conflict: The state of the object does not allow the operation.
        too_large: A body, file or message exceeds a fixed bound.
        limit: The quota of the key or a limit of the service is exceeded.
        disk_full: A disk is full.
        timeout: The operation exceeded its time.
        unsupported: Sandlot does not have the feature.
        unavailable: The service cannot execute the request now.
        internal: A defect of the service.
        others: Entries of codes that this vendor distinguishes from the rest of their family.
    """
    entries = {
        "invalid": invalid,
        "unauthenticated": unauthenticated,
        "forbidden": forbidden,
        "not_found": not_found,
        "conflict": conflict,
        "too_large": too_large,
        "limit": limit,
        "disk_full": disk_full,
        "timeout": timeout,
        "unsupported": unsupported,
        "unavailable": unavailable,
        "internal": internal,
    }
    return MappingProxyType({code: entries[family] for family, codes in _FAMILIES.items() for code in codes} | dict(others))


@dataclass(frozen=True, slots=True)
class VendorErrorDetails:
    """Everything that a vendor's error body can be made of.

    Args:
        entry: Status and code of the vendor.
        message: What failed and what to do, in plain text.
        code: Error code of Sandlot.
        request_id: Id of the request.
        retryable: Whether the same request may succeed later.
        retry_after_s: Seconds until the request may succeed. None: a retry does not help, or the time is unknown.
    """

    entry: ErrorTableEntry
    message: str
    code: ErrorCode
    request_id: str
    retryable: bool
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class SandboxServers:
    """Servers inside sandboxes whose place an API takes: its clients send their requests to ``PORT-SANDBOX.DOMAIN``, the host of a preview.

    Args:
        ports: Ports of the servers.
        owns: Function that returns whether a path, without the prefix of the API, belongs to these servers.
        headers: Function that returns the headers by which the routes of the API know the sandbox and the port. They replace those of the client.
    """

    ports: Collection[int]
    owns: Callable[[str], bool]
    headers: Callable[[str, int], list[tuple[bytes, bytes]]]


class PrefixRouter(APIRouter):
    """Routes below a prefix. All paths below the prefix belong to them, also unknown ones.

    A request is compared with the prefix once; without this class, each pattern would be matched twice.

    Args:
        prefix: ``/`` and one path segment.
        router: The routes.
    """

    def __init__(self, prefix: str, router: APIRouter) -> None:
        super().__init__(redirect_slashes=False)
        self.routes.extend(router.routes)
        self._start = f"{prefix}/"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return a full match for every path below the prefix."""
        return (Match.FULL if scope["path"].startswith(self._start) else Match.NONE), {}


@dataclass(frozen=True)
class VendorApi:
    """One compatibility API.

    Args:
        name: Name of the vendor; origin of its runs in the execution log.
        prefix: ``/`` and one path segment, with which the base URL of the vendor's client ends.
        router: Routes below the prefix.
        table: Status and code of the vendor for every error code.
        body: Returns the error body of the vendor.
        help: Hint of the error for unknown paths.
        root_router: Routes that the vendor's client requests without the prefix. None: there are none.
        authenticate: Returns the principal of a request that has a credential of the vendor's client, which this service issued, in place of an API
            key; None if the request has none. The argument is the ASGI scope; the body has not been read.
        webhook_payload: Returns the payload of an event for the vendor's webhooks. None: the vendor has no webhooks.
        servers: Servers inside sandboxes whose place the API takes. None: there are none.
        headers: Returns additional headers of an error that the vendor's client reads. ``Retry-After`` is sent in any case if the time is known.
    """

    name: str
    prefix: str
    router: APIRouter
    table: Mapping[ErrorCode, ErrorTableEntry]
    body: Callable[[VendorErrorDetails], Mapping[str, Any]]
    help: str
    root_router: APIRouter | None = None
    authenticate: Callable[[Mapping[str, Any], Node], Awaitable[Principal | None]] | None = None
    webhook_payload: Callable[[EventRecord], Mapping[str, Any]] | None = None
    servers: SandboxServers | None = None
    headers: Callable[[VendorErrorDetails], Mapping[str, str]] = lambda _: {}

    @cached_property
    def roots(self) -> frozenset[str]:
        """Path templates of :attr:`root_router`."""
        routes = () if self.root_router is None else self.root_router.routes
        return frozenset(route.path for route in routes if isinstance(route, (APIRoute, APIWebSocketRoute)))

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """Return an error in the format of the vendor. See :class:`~sandlot.web.error_formats.ErrorFormat`."""
        entry = self.table[error.code]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:  # the only status of HTTP itself that no error code has
            entry = ErrorTableEntry(status, entry.code)
        details = VendorErrorDetails(
            entry=entry, message=str(error), code=error.code, request_id=request_id, retryable=error.retryable, retry_after_s=retry_after_s(error)
        )
        return RenderedError(entry.status, self.body(details), headers=self.headers(details))


def not_supported(router: APIRouter, method: str, path: str, hint: str) -> None:
    """Add a route for a call of the vendor that Sandlot does not have. The response is 501 in the format of the vendor.

    Args:
        router: Router of the vendor.
        method: HTTP method.
        path: Path below the prefix.
        hint: What to use instead, in one sentence.
    """

    async def respond(request: Request) -> None:
        raise UnsupportedError(f"Sandlot does not have {method} {request.url.path}.", code=ErrorCode.UNSUPPORTED, hint=hint)

    router.add_api_route(path, respond, methods=[method])
