"""Error responses: one shape for errors of the model, of routing, of request bodies and for defects.

Invariants:
- Every unsuccessful response has a body in the format of its API (``web/error_formats.py``): ``application/problem+json`` (RFC 9457) in the native
  API, a vendor's own format below the vendor's prefix.
- A response never contains a traceback, a path of the host or a name in the code. The log has them, under the same request id.
- A validation error names the fields and describes each problem. It repeats no values, because they may be secrets.
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
from starlette.websockets import WebSocketDisconnect

from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, LimitError, NotFoundError, SandlotError, TimeoutExceededError
from sandlot.model.faults import Fault
from sandlot.web.error_formats import ErrorFormat, ErrorFormatSelector, RenderedError, retry_after_s
from sandlot.web.request_id import get_request_id
from sandlot.web.route_table import RouteEntry, allowed_methods

MEDIA_TYPE = "application/problem+json"

MAX_FIELDS = 20
"""Fields that a validation error names."""

_CLIENT_DISCONNECTED = 499
"""Status in the log if the client disconnected before the response (convention of nginx)."""

_MESSAGES: Mapping[str, str] = {
    "extra_forbidden": "There is no such field.",
    "missing": "This field is required.",
    "model_attributes_type": "This should be a JSON object, sent with 'Content-Type: application/json'.",
    "dict_type": "This should be a JSON object.",
    "json_invalid": "This is not JSON.",
}
"""Type of a pydantic error -> text that replaces pydantic's."""


class BodyRefusedError(HTTPException):
    """Error for a request body that is not read to its end. An HTTPException, because FastAPI turns all other errors of reading a body into a 400."""

    def __init__(self, error: SandlotError) -> None:
        super().__init__(status_code=error.status)
        self.error = error


class ResponseInterruptedError(Exception):
    """Ends a response that has begun and cannot be completed. The server closes the connection; ``server/log_config.py`` drops its log line."""


def ordinary_failure(error: BaseException) -> tuple[bool, SandlotError | None]:
    """Return True for a failure that a client or a sandbox can cause, with the error to report; None if the client has left. Pure."""
    match error:
        case BodyRefusedError():
            return True, error.error
        case SandlotError():
            return True, error
        case ClientDisconnect() | WebSocketDisconnect():
            return True, None
        case BaseExceptionGroup():  # of the tasks of a streamed response
            found = [ordinary_failure(each) for each in error.exceptions]
            return all(ordinary for ordinary, _ in found), next((each for _, each in found if each is not None), None)
        case RuntimeError(__cause__=BaseException() as cause):  # Starlette wraps an error with a handler if the response has begun
            return ordinary_failure(cause)
        case _:
            return False, None


def body_too_large_error(max_bytes: int, *, is_upload: bool) -> LimitError:
    """Return the error for a request body that exceeds its limit."""
    if is_upload:
        return LimitError(
            f"The upload has more than {max_bytes} bytes, the limit of the file store.",
            code=ErrorCode.TOO_LARGE,
            hint="Write the file to a sandbox or in parts, or raise SANDLOT_UPLOAD_MAX_BYTES on the server.",
            fields={"max_bytes": max_bytes},
        )
    return LimitError(
        f"The request body has more than {max_bytes} bytes.",
        code=ErrorCode.TOO_LARGE,
        hint="Upload large code or data as a file, and refer to the file.",
        fields={"max_bytes": max_bytes},
    )


def problem_document(error: SandlotError, request_id: str) -> dict[str, Any]:
    """Return an error as a problem document."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.message,
        "code": str(error.code),
        "hint": error.hint,
        "retryable": error.retryable,
        "fault": error.fault,
        "request_id": request_id,
        "fields": dict(error.fields),
    }


class ProblemFormat:
    """Problem documents, the format of the native API."""

    prefix = ""
    roots: Collection[str] = ()
    authenticate = None
    help = "GET /openapi.json lists all paths."

    def render_error(self, error: SandlotError, request_id: str, status: int | None) -> RenderedError:
        """Return an error as a problem document."""
        body = problem_document(error, request_id)
        if status is not None:
            body["status"], body["title"] = status, HTTPStatus(status).phrase
        return RenderedError(body["status"], body, MEDIA_TYPE)


PROBLEM_FORMAT = ProblemFormat()
NATIVE_FORMATS = ErrorFormatSelector(PROBLEM_FORMAT)
"""For a service without compatibility APIs."""


def problem_response(
    error: SandlotError,
    request_id: str,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    error_format: ErrorFormat = PROBLEM_FORMAT,
) -> Response:
    """Return the response for an error.

    Args:
        error: Error to report.
        request_id: Id of the request.
        status: HTTP status, if that of the error's code is less precise.
        headers: Additional headers.
        error_format: Format of the body.
    """
    rendered = error_format.render_error(error, request_id, status)
    more = {**(headers or {}), **rendered.headers}
    if (seconds := retry_after_s(error)) is not None:
        more["Retry-After"] = str(seconds)
    if rendered.status == HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = "Bearer"
    content = json.dumps(rendered.body, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(content, status_code=rendered.status, headers=more, media_type=rendered.media_type)


def validation_error(errors: Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """Return one error for all errors that pydantic found. Its ``fields`` maps dotted names to descriptions. Pure."""
    fields: dict[str, str] = {}
    for found in errors:
        if len(fields) == MAX_FIELDS:
            break
        location = [str(part) for part in found.get("loc", ())]
        kind = str(found.get("type", ""))
        if kind == "json_invalid":
            return InvalidRequestError(
                "The request body is not JSON.",
                hint="Send a JSON object in UTF-8.",
                fields={"body": f"{found.get('ctx', {}).get('error', 'invalid')} at character {location[-1]}"},
            )
        name = ".".join(location[1:]) or location[0]
        fields[name[:200]] = _MESSAGES.get(kind) or str(found.get("msg", "This is not valid.")).removeprefix("Value error, ")
    names = ", ".join(fields)
    return InvalidRequestError(
        f"The request is not valid: {names}." if len(names) < 300 else "The request is not valid.",  # noqa: PLR2004 - one line
        hint="; ".join(f"{name}: {text}" for name, text in list(fields.items())[:5]),
        fields=fields,
    )


def install_error_handlers(app: FastAPI, error_formats: ErrorFormatSelector = NATIVE_FORMATS, routes: Sequence[RouteEntry] = ()) -> None:
    """Give an app the handlers that turn exceptions into error responses.

    Args:
        app: App to change.
        error_formats: Formats by path.
        routes: All routes of the app, for the methods in the error 405. Starlette knows the methods of the first route of a path only.
    """

    def respond(request: Request, error: SandlotError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
        record_failure(request.scope, error)
        error_format = error_formats.select(request.scope["path"])
        return problem_response(error, get_request_id(request.scope), status=status, headers=headers, error_format=error_format)

    async def on_sandlot_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, SandlotError):
            raise error
        return respond(request, error)

    async def on_validation(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        return respond(request, validation_error(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        if isinstance(error, BodyRefusedError):
            return respond(request, error.error)
        if not isinstance(error, HTTPException):
            raise error
        headers = _allow(request, error, routes)
        return respond(request, _from_http(request, error, headers, error_formats.select(request.scope["path"]).help), error.status_code, headers)

    async def on_disconnect(_request: Request, _error: Exception) -> Response:
        return Response(status_code=_CLIENT_DISCONNECTED)

    app.add_exception_handler(SandlotError, on_sandlot_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ClientDisconnect, on_disconnect)


def record_failure(scope: Scope, error: SandlotError) -> None:
    """Store the code of an error that was reported to the client. The middleware logs and counts it."""
    scope.setdefault("state", {})["failure"] = error.code


def body_timeout_error(seconds: float) -> TimeoutExceededError:
    """Return the error for a request body that stopped arriving."""
    return TimeoutExceededError(
        f"No data of the request body arrived for {seconds:g} s.",
        code=ErrorCode.TIMEOUT,
        hint="Send the request again, without long pauses.",
        fault=Fault.REQUEST,
    )


def internal_error(request_id: str) -> InternalError:
    """Return the error for a defect in Sandlot, without details."""
    return InternalError(
        f"Internal error in Sandlot (request {request_id}).", hint="Report the lines of the service's log that contain this request id."
    )


def _allow(request: Request, error: HTTPException, routes: Sequence[RouteEntry]) -> Mapping[str, str]:
    """Return the headers of an exception of the framework, with all methods of the path in ``Allow``."""
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := allowed_methods(routes, request.scope["path"])):
        headers["Allow"] = ", ".join(methods)
    return headers


def _from_http(request: Request, error: HTTPException, headers: Mapping[str, str], hint: str) -> SandlotError:
    """Return an exception of the framework as an error of the model."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"There is no {request.method[:20]} {request.url.path[:180]}.", code=ErrorCode.NOT_FOUND, hint=hint)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return InvalidRequestError(f"{request.method[:20]} is not allowed on {request.url.path[:180]}.", hint=f"Use one of: {headers['Allow']}.")
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return InvalidRequestError("The request body cannot be parsed.", hint="Send a JSON object in UTF-8, nested at most a hundred levels deep.")
    return SandlotError(str(error.detail), code=ErrorCode.INVALID_REQUEST)
