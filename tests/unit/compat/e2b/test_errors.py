"""Every error as E2B's clients read it."""

from __future__ import annotations

import json
from typing import Any

import httpx
from e2b.api import handle_api_exception
from e2b.envd.api import format_envd_api_exception
from e2b.exceptions import (
    AuthenticationException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    RateLimitException,
    SandboxNotRunningException,
    ServiceBusyException,
)
from e2b.retry import RETRYABLE_STATUSES, _retry_delay

from sandlot.compat.e2b import API
from sandlot.model.errors import CODES, ErrorCode, error_class
from sandlot.web.errors import problem_response
from tests.support.cases import cases


def told(code: ErrorCode) -> tuple[int, str]:
    """What a client is answered: status and message."""
    answered = problem_response(error_class(code)("It happened.", code=code, hint="Do this."), "abc", error_format=API)
    body = json.loads(bytes(answered.body))
    assert set(body) == {"code", "message"}
    assert body["code"] == answered.status_code
    return answered.status_code, body["message"]


@cases("code", ErrorCode)
def test_error_message_has_the_hint(code: ErrorCode) -> None:
    status, message = told(code)
    assert message.endswith("It happened. Do this.")
    assert ("was not found" in message) == (status == 502)


@cases(
    "code, raised",
    [
        (ErrorCode.UNAUTHENTICATED, AuthenticationException),
        (ErrorCode.QUOTA_EXCEEDED, RateLimitException),
        (ErrorCode.BUSY, ServiceBusyException),
    ],
)
def test_control_plane_client_raises_its_own_exceptions(code: ErrorCode, raised: type[Exception]) -> None:
    status, message = told(code)
    response = httpx.Response(status, json={"code": status, "message": message})
    assert isinstance(handle_api_exception(response), raised)


@cases(
    "code, raised",
    [
        (ErrorCode.PATH_INVALID, InvalidArgumentException),
        (ErrorCode.UNAUTHENTICATED, AuthenticationException),
        (ErrorCode.PATH_NOT_FOUND, NotFoundException),
        (ErrorCode.DISK_FULL, NotEnoughSpaceException),
        (ErrorCode.SANDBOX_ENDED, SandboxNotRunningException),
        (ErrorCode.SANDBOX_PAUSED, SandboxNotRunningException),
    ],
)
def test_envd_client_raises_its_own_exceptions(code: ErrorCode, raised: type[Exception]) -> None:
    assert isinstance(format_envd_api_exception(*told(code)), raised)


@cases("fields, again_s", [({}, None), ({"retry_after_s": 5}, 5.0)])
@cases("code", ErrorCode)
def test_clients_retry_only_retryable_errors(code: ErrorCode, fields: dict[str, Any], again_s: float | None) -> None:
    answered = problem_response(error_class(code)("It happened.", code=code, fields=fields), "abc", error_format=API)
    response = httpx.Response(answered.status_code, headers=dict(answered.headers))
    waits_s = _retry_delay(response, 0, lambda: 1.0)
    if answered.status_code not in RETRYABLE_STATUSES:
        assert waits_s is None
    else:
        assert waits_s == (again_s or (1.0 if CODES[code][1] else None))
