"""Responses and the errors that they become."""

from __future__ import annotations

import json

import pytest

from sandlot.model.errors import CODES, ErrorCode, InternalError, LimitError, SandboxEndedError, error_class
from sandlot.model.faults import Fault
from sandlot.sdk import responses
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.models.sandboxes import SandboxInfo


def test_each_code_has_its_error_class(subtests: pytest.Subtests) -> None:
    for code in list(ErrorCode):
        with subtests.test(code=code):
            status, _ = CODES[code]
            body = json.dumps({"code": code, "detail": "what", "hint": "do", "fields": {"a": 1}, "request_id": "r"}).encode()
            error = responses.error_from_response(status, "application/problem+json", body)
            assert type(error) is error_class(code)
            assert (error.code, error.message, error.hint, dict(error.fields)) == (code, "what", "do", {"a": 1, "request_id": "r"})


def test_unknown_code_has_the_class_of_its_status() -> None:
    known = {status for code, (status, _) in CODES.items() if code is not ErrorCode.EXECUTION_FAILED}  # never sent by a service
    for status in range(400, 600):
        error = responses.error_from_problem({"code": "quota_of_the_moon", "detail": "what", "hint": "do", "status": status})
        assert (error.message, error.hint, dict(error.fields)) == ("what", "do", {"code": "quota_of_the_moon"})
        assert not error.retryable
        assert error.status == status if status in known else (error.status == 400) == (status < 500)


def test_a_code_of_a_later_version_without_a_status_is_internal(subtests: pytest.Subtests) -> None:
    for status in (None, "404", [404], True):
        with subtests.test(status=status):
            assert type(responses.error_from_problem({"code": "quota_of_the_moon", "status": status})) is InternalError


def test_fault_is_the_one_of_the_service(subtests: pytest.Subtests) -> None:
    for given, fault in (("code", Fault.CODE), ("of the future", Fault.REQUEST), (None, Fault.REQUEST), (["code"], Fault.REQUEST)):
        with subtests.test(given=given):
            assert responses.error_from_problem({"code": "conflict", "status": 409, "fault": given}).fault is fault


def test_an_answer_that_is_no_problem_is_shown(subtests: pytest.Subtests) -> None:
    for body in (b"<html>Bad gateway</html>", b"", b"[1]", b'{"code": 5}', b"\xff\xfe"):
        with subtests.test(body=body):
            error = responses.error_from_response(502, "text/html", body, "r7")
            assert error.code is ErrorCode.SERVICE_UNAVAILABLE
            assert "502" in error.message
            assert error.fields["request_id"] == "r7"
            assert responses.error_from_response(404, "text/html", body).code is ErrorCode.INTERNAL


def test_only_the_service_says_that_a_call_may_be_repeated() -> None:
    assert responses.is_retryable(b'{"code": "busy", "retryable": true}')
    bodies = (b'{"code": "busy"}', b'{"code": "busy", "retryable": false}', b'{"retryable": "true"}', b'{"retryable": 1}', b"[]", b"<html>")
    assert [body for body in bodies if responses.is_retryable(body)] == []


def test_a_sandbox_that_ended_says_why() -> None:
    responses.check_alive(SandboxInfo("x", "running", "base"))
    with pytest.raises(SandboxEndedError, match="oom") as caught:
        responses.check_alive(SandboxInfo("x", "failed", "base", exit_reason="oom", fault=Fault.LIMIT))
    assert (caught.value.fields["reason"], caught.value.fault) == ("oom", Fault.LIMIT)
    with pytest.raises(SandboxEndedError) as caught:
        responses.check_alive(SandboxInfo("x", "stopped", "base", exit_reason="killed"))
    assert caught.value.fault is Fault.REQUEST


def test_a_listing_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [FileEntry("a", "/a", "file"), FileEntry("b", "/b", "file")], [FileEntry("c", "/c", "file")]
    responses.check_page([], first, more=True)
    responses.check_page(first, second, more=False)
    responses.check_page([], [], more=False)
    with pytest.raises(LimitError):
        responses.check_page(first, first, more=True)
    with pytest.raises(LimitError):
        responses.check_page(first, [], more=True)
    monkeypatch.setattr(responses, "MAX_DIRECTORY_ENTRIES", 2)
    with pytest.raises(LimitError):
        responses.check_page(first, second, more=True)
