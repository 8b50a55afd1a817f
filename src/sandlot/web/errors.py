"""Every failure as one shape: ``application/problem+json`` (RFC 9457), from a model error, a route, a body or a defect.

Laws:
- Every answer that is no success has this body, whatever failed: also an unknown route, a wrong method, a body that is no JSON.
  Under a door's prefix the door tells the same in its vendor's shape (``web/error_formats.py``).
- A client never sees a traceback, a path of the host or a name of the code; the log has them, under the same request id.
- A validation error names the fields and says what is wrong with each, but repeats none of the values: they may be secrets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, LimitError, NotFoundError, SandlotError, TimeoutExceededError
from sandlot.web.error_formats import ErrorFormat, ErrorFormatSelector, RenderedError, retry_after_s

MEDIA_TYPE = "application/problem+json"

MAX_FIELDS = 20
"""That one answer names; whoever corrects those is told the next."""

RAW_SUFFIXES = ("/files/content", "/files/archive", "/stdin", "/v1/files")
"""Routes of the API that stream their body into the sandbox, or the file store, instead of parsing it."""

_CLIENT_DISCONNECTED = 499
"""What the log says of a request whose client went away (nginx's convention); nobody receives it."""

_PLAIN: Mapping[str, str] = {
    "extra_forbidden": "There is no such field.",
    "missing": "This field is required.",
    "model_attributes_type": "This should be a JSON object, sent with 'Content-Type: application/json'.",
    "dict_type": "This should be a JSON object.",
    "json_invalid": "This is not JSON.",
}


class BodyRefusedError(HTTPException):
    """A body is not taken to its end. An HTTPException, because FastAPI turns all others that a body raises into a 400."""

    def __init__(self, error: SandlotError) -> None:
        super().__init__(status_code=error.status)
        self.error = error


def body_too_large_error(limit: int, *, raw: bool) -> LimitError:
    """What a client is told whose body is too large."""
    if raw:
        return LimitError(
            f"The upload has more than {limit} bytes, which is the limit of this server.",
            code=ErrorCode.TOO_LARGE,
            hint="Send it in parts, or raise SANDLOT_UPLOAD_MAX_BYTES on the server.",
            fields={"max_bytes": limit},
        )
    return LimitError(
        f"The request has more than {limit} bytes.",
        code=ErrorCode.TOO_LARGE,
        hint="Upload large code or data as a file and use that.",
        fields={"max_bytes": limit},
    )


def problem_document(error: SandlotError, request_id: str) -> dict[str, Any]:
    """The body that tells an error."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.message,
        "code": str(error.code),
        "hint": error.hint,
        "retryable": error.retryable,
        "request_id": request_id,
        "fields": dict(error.fields),
    }


class ProblemFormat:
    """Tells failures as problem+json, for all that is no door's."""

    prefix = ""
    roots: Collection[str] = ()
    authenticate = None
    help = "GET /openapi.json lists what there is."

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """The problem that an error is."""
        body = problem_document(error, request_id)
        if status is not None:
            body["status"], body["title"] = status, HTTPStatus(status).phrase
        return RenderedError(body["status"], body, MEDIA_TYPE)

    def takes_raw(self, path: str) -> bool:
        """Whether that route streams its body into the sandbox or the file store."""
        return path.endswith(RAW_SUFFIXES)


PROBLEM_FORMAT = ProblemFormat()
NATIVE_FORMATS = ErrorFormatSelector(PROBLEM_FORMAT)
"""Of a service without doors."""


def problem_response(
    error: SandlotError,
    request_id: str,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    error_format: ErrorFormat = PROBLEM_FORMAT,
) -> Response:
    """The response that tells an error.

    Args:
        error: It.
        request_id: The request's.
        status: Where HTTP has a better one than the error's code.
        headers: More of them.
        error_format: Who tells it.
    """
    told = error_format.render_error(error, request_id, status)
    more = {**(headers or {}), **told.headers}
    if (seconds := retry_after_s(error)) is not None:
        more["Retry-After"] = str(seconds)
    if told.status == HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = "Bearer"
    content = json.dumps(told.body, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(content, status_code=told.status, headers=more, media_type=told.media_type)


def validation_error(errors: Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """What pydantic found, as one error: ``fields`` has dotted names and what is wrong with each. Pure."""
    fields: dict[str, str] = {}
    for found in errors:
        if len(fields) == MAX_FIELDS:
            break
        where = [str(part) for part in found.get("loc", ())]
        kind = str(found.get("type", ""))
        if kind == "json_invalid":
            return InvalidRequestError(
                "The body is not JSON.",
                hint="Send a JSON object in UTF-8.",
                fields={"body": f"{found.get('ctx', {}).get('error', 'invalid')} at character {where[-1]}"},
            )
        name = ".".join(where[1:]) or where[0]
        fields[name[:200]] = _PLAIN.get(kind) or str(found.get("msg", "This is not valid.")).removeprefix("Value error, ")
    names = ", ".join(fields)
    return InvalidRequestError(
        f"The request is not valid: {names}." if len(names) < 300 else "The request is not valid.",  # noqa: PLR2004 - one line
        hint="; ".join(f"{name}: {text}" for name, text in list(fields.items())[:5]),
        fields=fields,
    )


def install_error_handlers(app: FastAPI, error_formats: ErrorFormatSelector = NATIVE_FORMATS) -> None:
    """Make an app answer every failure like this.

    Args:
        app: It.
        error_formats: Who tells what.
    """

    def said(request: Request, error: SandlotError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
        record_failure(request.scope, error)
        return problem_response(error, request_id(request), status=status, headers=headers, error_format=error_formats.select(request.scope["path"]))

    async def on_sandlot_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, SandlotError):
            raise error
        return said(request, error)

    async def on_validation(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        return said(request, validation_error(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        if isinstance(error, BodyRefusedError):
            return said(request, error.error)
        if not isinstance(error, HTTPException):
            raise error
        return said(request, _from_http(request, error, error_formats.select(request.scope["path"]).help), error.status_code, error.headers)

    async def on_disconnect(_request: Request, _error: Exception) -> Response:
        return Response(status_code=_CLIENT_DISCONNECTED)

    app.add_exception_handler(SandlotError, on_sandlot_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ClientDisconnect, on_disconnect)


def record_failure(scope: Scope, error: SandlotError) -> None:
    """Let the frame around a request know what its client was told; the frame counts it."""
    scope.setdefault("state", {})["failure"] = error.code


def body_timeout_error(seconds: float) -> TimeoutExceededError:
    """What a client is told whose body stopped half-way."""
    return TimeoutExceededError(
        f"Nothing came of the request's body for {seconds:g} s.", code=ErrorCode.TIMEOUT, hint="Send it again, without pauses as long as that."
    )


def internal_error() -> InternalError:
    """What a client is told of a defect in Sandlot: nothing but that there is one."""
    return InternalError("Sandlot failed by a defect of its own.", hint="The service's log has the details under this request id. Please report it.")


def request_id(request: Request) -> str:
    """The id that this request's answer and log lines carry."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def _from_http(request: Request, error: HTTPException, help_: str) -> SandlotError:
    """What the framework raised, in our words."""
    route = f"{request.method} {request.url.path}"[:200]
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"There is no {route}.", code=ErrorCode.NOT_FOUND, hint=help_)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return InvalidRequestError(f"There is no {route}.", hint=help_)
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return InvalidRequestError("The body cannot be read.", hint="Send a JSON object in UTF-8, not nested deeper than a hundred levels.")
    return SandlotError(str(error.detail), code=ErrorCode.INVALID_REQUEST)
