"""What a door is: a name, a prefix, routes, and one table from every error code to the vendor's own words for it.

Laws:
- The table is total; a test looks at every door's.
- What a client reads is a sentence that says what happened and, where there is something, what to do about it.
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
from sandlot.web.error_formats import RenderedError, retry_after_s


@dataclass(frozen=True, slots=True)
class Kind:
    """What one of our error codes is at the vendor.

    Args:
        status: The HTTP status by which its client chooses what to raise.
        word: The vendor's own code for it, where its bodies carry one.
    """

    status: int
    word: str


_FAMILIES: Mapping[str, Collection[ErrorCode]] = MappingProxyType(
    {
        "invalid": (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.PATH_INVALID,
            ErrorCode.PATH_NOT_DIRECTORY,
            ErrorCode.PATH_IS_DIRECTORY,
            ErrorCode.PATH_NOT_REGULAR,
            ErrorCode.PATH_LINK_LOOP,
        ),
        "unauthenticated": (ErrorCode.UNAUTHENTICATED,),
        "forbidden": (ErrorCode.FORBIDDEN, ErrorCode.PERMISSION_DENIED),
        "absent": (*(code for code in ErrorCode if code.value.endswith("not_found")), ErrorCode.SANDBOX_ENDED),
        "conflict": (ErrorCode.PATH_EXISTS, ErrorCode.PATH_NOT_EMPTY, ErrorCode.CONFLICT, ErrorCode.SANDBOX_PAUSED, ErrorCode.SNAPSHOT_UNUSABLE),
        "too_large": (ErrorCode.TOO_LARGE,),
        "over": (ErrorCode.LIMIT_EXCEEDED, ErrorCode.QUOTA_EXCEEDED),
        "full": (ErrorCode.DISK_FULL, ErrorCode.NODE_DISK_FULL),
        "late": (ErrorCode.TIMEOUT,),
        "unsupported": (ErrorCode.UNSUPPORTED,),
        "away": (ErrorCode.HOST_NOT_READY, ErrorCode.BUSY, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_STOPPING),
        "internal": (ErrorCode.INTERNAL, ErrorCode.EXECUTION_FAILED),
    }
)
"""Error codes that most vendors have one word for."""


def table(  # noqa: PLR0913 - all by name, and each a row of it
    *,
    invalid: Kind,
    unauthenticated: Kind,
    forbidden: Kind,
    absent: Kind,
    conflict: Kind,
    too_large: Kind,
    over: Kind,
    full: Kind,
    late: Kind,
    unsupported: Kind,
    away: Kind,
    internal: Kind,
    others: Mapping[ErrorCode, Kind],
) -> Mapping[ErrorCode, Kind]:
    """A vendor's words for all error codes.

    Args:
        invalid: What was asked makes no sense.
        unauthenticated: No key, or none that is known.
        forbidden: The key, or the system inside, does not allow it.
        absent: There is no such thing.
        conflict: It does not go together with what there is.
        too_large: So much is never taken.
        over: More than the key may have.
        full: The disk is.
        late: It took too long.
        unsupported: Sandlot does not have it.
        away: Not now.
        internal: A defect.
        others: Codes that this vendor tells from the rest of their family.
    """
    words = {
        "invalid": invalid,
        "unauthenticated": unauthenticated,
        "forbidden": forbidden,
        "absent": absent,
        "conflict": conflict,
        "too_large": too_large,
        "over": over,
        "full": full,
        "late": late,
        "unsupported": unsupported,
        "away": away,
        "internal": internal,
    }
    return MappingProxyType({code: words[family] for family, codes in _FAMILIES.items() for code in codes} | dict(others))


@dataclass(frozen=True, slots=True)
class Failure:
    """All that a vendor's error body may be made of.

    Args:
        kind: What it is at the vendor.
        message: For people: what happened and what to do.
        code: Ours; stable.
        request_id: The request's.
        retryable: Whether the same request may succeed later.
        retry_after_s: Seconds after which it may; None where waiting does not help, or nobody knows for how long.
    """

    kind: Kind
    message: str
    code: ErrorCode
    request_id: str
    retryable: bool
    retry_after_s: int | None = None


class Below(APIRouter):
    """Routes below a prefix, which are looked at for what is asked for there, and for nothing else.

    Whatever is below it is theirs, also what there is not: one comparison in place of all of their patterns, each of which would be tried twice.

    Args:
        prefix: ``/`` and one part of a path.
        router: The routes.
    """

    def __init__(self, prefix: str, router: APIRouter) -> None:
        super().__init__(redirect_slashes=False)
        self.routes.extend(router.routes)
        self._below = f"{prefix}/"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is asked for below the prefix; which route answers is found out once, when it does."""
        return (Match.FULL if scope["path"].startswith(self._below) else Match.NONE), {}


@dataclass(frozen=True)
class Door:
    """One vendor's.

    Args:
        name: The vendor's, as it is in the execution log.
        prefix: ``/`` and one part of a path: what its client's base URL ends with.
        router: Its routes, below the prefix.
        table: Error code -> what it is at the vendor; total.
        body: Makes the vendor's error body.
        help: What somebody should do who asked for what there is not.
        at_root: Routes that its client asks for without the prefix; they belong to this door all the same.
        authenticate: Returns the principal of a request that has a credential of the vendor's client, which this service issued, in place of an API
            key; None if the request has none. It gets the ASGI scope, before the body is read.
        headers: Makes what more of headers an error has that its client looks at; ``Retry-After`` every answer has that knows when.
    """

    name: str
    prefix: str
    router: APIRouter
    table: Mapping[ErrorCode, Kind]
    body: Callable[[Failure], Mapping[str, Any]]
    help: str
    at_root: APIRouter | None = None
    authenticate: Callable[[Mapping[str, Any], Node], Awaitable[Principal | None]] | None = None
    headers: Callable[[Failure], Mapping[str, str]] = lambda _: {}

    @cached_property
    def roots(self) -> frozenset[str]:
        """The paths of :attr:`at_root`."""
        routes = () if self.at_root is None else self.at_root.routes
        return frozenset(route.path for route in routes if isinstance(route, (APIRoute, APIWebSocketRoute)))

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """An error in the vendor's words."""
        kind = self.table[error.code]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:  # all others that HTTP itself has are codes of ours as well
            kind = Kind(status, kind.word)
        failure = Failure(
            kind=kind, message=str(error), code=error.code, request_id=request_id, retryable=error.retryable, retry_after_s=retry_after_s(error)
        )
        return RenderedError(kind.status, self.body(failure), headers=self.headers(failure))


def refuse(router: APIRouter, method: str, path: str, why: str) -> None:
    """Give a router a route for something that the vendor has and Sandlot has not: it answers 501, in the vendor's words.

    Args:
        router: It.
        method: HTTP's.
        path: Below the prefix.
        why: One sentence: what to use in its place.
    """

    async def refused(request: Request) -> None:
        raise UnsupportedError(f"Sandlot does not have {method} {request.url.path}.", code=ErrorCode.UNSUPPORTED, hint=why)

    router.add_api_route(path, refused, methods=[method])
