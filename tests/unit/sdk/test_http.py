"""Exceptions of httpx become errors of the SDK."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.sdk.config import Target
from sandlot.sdk.http import ConnectionFailedError, ConnectionLostError, sendable, translated, unreachable_error

REMOTE = Target("http://example.com:8000")
LOCAL = Target("http://sandlot", socket=Path("/d/sandlot.sock"), local=Path("/d"))


@pytest.mark.parametrize(
    "raised, expected",
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), ConnectionFailedError),
        (httpx.ConnectTimeout(""), ConnectionFailedError),
        (httpx.ReadTimeout(""), UnavailableError),
        (httpx.ReadError("reset"), ConnectionLostError),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), ConnectionLostError),
        (httpx.StreamClosed(), ConnectionLostError),
    ],
)
def test_exceptions_of_httpx_become_errors(raised: Exception, expected: type[SandlotError]) -> None:
    with pytest.raises(UnavailableError) as caught, translated(REMOTE):
        raise raised
    assert type(caught.value) is expected
    assert caught.value.code is ErrorCode.SERVICE_UNAVAILABLE
    assert caught.value.__cause__ is raised


def test_other_exceptions_pass() -> None:
    with pytest.raises(KeyError), translated(REMOTE):
        raise KeyError


def test_connection_error_names_the_service_and_the_reason() -> None:
    error = unreachable_error(REMOTE, httpx.ConnectError("[Errno 111] Connection refused"))
    assert error.message == "Cannot connect to the Sandlot service at http://example.com:8000: connection refused."
    assert "SANDLOT_URL" in error.hint
    assert "/d/sandlot.sock" in unreachable_error(LOCAL).message
    assert "sandlot create" in unreachable_error(LOCAL).hint


@pytest.mark.parametrize("text", ["/v1/\ud800", "/v1/" + "x" * 70_000])
def test_paths_that_no_url_can_have_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError), sendable():
        httpx.Client(base_url=REMOTE.base_url).build_request("GET", text)
