"""Errors: status and class of each code, and errors that are rebuilt from the responses of untrusted peers."""

from __future__ import annotations

import pytest

from sandlot.model.errors import CODES, ErrorCode, InternalError, SandlotError, error_class, from_code


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_status_and_a_class(code: ErrorCode) -> None:
    status, retryable = CODES[code]
    assert 400 <= status < 600
    error = from_code(code.value, "what happened", hint="what to do", fields={"a": 1})
    assert type(error) is error_class(code)
    assert issubclass(error_class(code), SandlotError)
    assert (error.code, error.status, error.retryable) == (code, status, retryable)
    assert str(error) == "what happened what to do"
    assert dict(error.fields) == {"a": 1}


@pytest.mark.parametrize("code", ["", "nonsense", "INTERNAL", "internal "])
def test_unknown_code_becomes_an_internal_error(code: str) -> None:
    error = from_code(code, "odd")
    assert type(error) is InternalError
    assert error.code is ErrorCode.INTERNAL
    assert not error.retryable


def test_only_busy_and_unavailable_services_are_retryable() -> None:
    assert {code for code, (_, retryable) in CODES.items() if retryable} == {ErrorCode.BUSY, ErrorCode.SERVICE_UNAVAILABLE}


@pytest.mark.parametrize("kind", SandlotError.__subclasses__())
def test_error_without_a_code_has_a_code_of_its_class(kind: type[SandlotError]) -> None:
    assert type(from_code(kind("what happened").code, "what happened")) is kind
    assert type("Special", (kind,), {})("what happened").code is kind("what happened").code
