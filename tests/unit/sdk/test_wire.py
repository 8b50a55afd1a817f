"""Bodies, problems and repetition: pure decisions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.errors import CODES, ErrorCode, InternalError, InvalidRequestError, LimitError, SandboxEndedError, error_class
from sandlot.model.specs import GIB, KIB, MIB
from sandlot.sdk import wire
from sandlot.sdk.info import Entry, SandboxInfo


def test_sizes(subtests: pytest.Subtests) -> None:
    for text, size in (
        (5, 5),
        ("6", 6),
        ("512M", 512 * MIB),
        ("512 MiB", 512 * MIB),
        ("1.5g", 3 * GIB // 2),
        ("2GB", 2 * GIB),
        ("7k", 7 * KIB),
        (" 1T ", 1024 * GIB),
    ):
        with subtests.test(text=text, size=size):
            assert wire.size_bytes(text) == size


def test_what_is_no_size_is_refused(subtests: pytest.Subtests) -> None:
    for text in ("", "M", "1X", "-1M", "1 2M", "1e3"):
        with subtests.test(text=text), pytest.raises(InvalidRequestError, match="size"):
            wire.size_bytes(text)


def test_what_is_not_given_is_not_sent() -> None:
    body = wire.sandbox_body(
        template=None, timeout=None, idle_timeout=None, persistent=False, envs=None, metadata=None, limits={"cpus": None}, isolation=None,
        network=None, name=None, files=None,
    )  # fmt: skip
    assert body == {}


def test_limits_are_sent_in_bytes_and_in_part() -> None:
    assert wire.limits_body(cpus=0.5, memory="512M", disk=None, pids=None) == {"cpus": 0.5, "memory_bytes": 512 << 20}
    assert wire.limits_body(cpus=None, memory=None, disk="1.5G", pids=9) == {"disk_bytes": 3 << 29, "pids": 9}
    with pytest.raises(InvalidRequestError):
        wire.limits_body(cpus=None, memory="lots", disk=None, pids=None)


def test_no_time_limit_is_said() -> None:
    body = wire.process_body("x", envs=None, cwd=None, user=None, timeout=None, background=False, stdin=None, stdin_open=False)
    assert body == {"command": "x", "timeout": None}


@given(st.binary(max_size=200))
def test_standard_input_is_sent_whole(data: bytes) -> None:
    inline, rest = wire.split_stdin(data, inline_bytes=100)
    assert (inline.encode() if inline is not None else rest) == data
    assert inline is None or len(data) <= 100


def test_what_json_cannot_carry_is_refused(subtests: pytest.Subtests) -> None:
    for value in ("\udcff", float("nan"), float("inf"), b"bytes", object()):
        with subtests.test(value=value), pytest.raises(InvalidRequestError):
            wire.encode({"x": value})
    assert wire.encode({"x": "é\u2028"}) == '{"x":"é\u2028"}'.encode()


@given(st.text())
def test_a_segment_is_one(text: str) -> None:
    assert "/" not in wire.segment(text)
    assert "?" not in wire.segment(text)
    assert wire.segment(text)


def test_every_code_comes_back_as_its_class(subtests: pytest.Subtests) -> None:
    for code in list(ErrorCode):
        with subtests.test(code=code):
            status, _ = CODES[code]
            body = json.dumps({"code": code, "detail": "what", "hint": "do", "fields": {"a": 1}, "request_id": "r"}).encode()
            error = wire.failure(status, "application/problem+json", body)
            assert type(error) is error_class(code)
            assert (error.code, error.message, error.hint, dict(error.fields)) == (code, "what", "do", {"a": 1, "request_id": "r"})


def test_a_code_of_a_later_version_is_what_its_status_says_and_keeps_its_words() -> None:
    known = {status for status, _ in CODES.values()}
    for status in range(400, 600):
        error = wire.from_problem({"code": "quota_of_the_moon", "detail": "what", "hint": "do", "status": status})
        assert (error.message, error.hint, dict(error.fields)) == ("what", "do", {"code": "quota_of_the_moon"})
        assert not error.retryable
        assert error.status == status if status in known else (error.status == 400) == (status < 500)


def test_a_code_of_a_later_version_without_a_status_is_internal(subtests: pytest.Subtests) -> None:
    for status in (None, "404", [404], True):
        with subtests.test(status=status):
            assert type(wire.from_problem({"code": "quota_of_the_moon", "status": status})) is InternalError


def test_an_answer_that_is_no_problem_is_shown(subtests: pytest.Subtests) -> None:
    for body in (b"<html>Bad gateway</html>", b"", b"[1]", b'{"code": 5}', b"\xff\xfe"):
        with subtests.test(body=body):
            error = wire.failure(502, "text/html", body, "r7")
            assert error.code is ErrorCode.SERVICE_UNAVAILABLE
            assert "502" in error.message
            assert error.fields["request_id"] == "r7"
            assert wire.failure(404, "text/html", body).code is ErrorCode.INTERNAL


def test_only_the_service_says_that_a_call_may_be_repeated() -> None:
    assert wire.retryable(b'{"code": "busy", "retryable": true}')
    bodies = (b'{"code": "busy"}', b'{"code": "busy", "retryable": false}', b'{"retryable": "true"}', b'{"retryable": 1}', b"[]", b"<html>")
    assert [body for body in bodies if wire.retryable(body)] == []


def test_a_sandbox_that_ended_says_why() -> None:
    wire.check_alive(SandboxInfo("x", "running", "base"))
    with pytest.raises(SandboxEndedError, match="oom") as caught:
        wire.check_alive(SandboxInfo("x", "failed", "base", exit_reason="oom"))
    assert caught.value.fields["reason"] == "oom"


def test_a_listing_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [Entry("a", "/a", "file"), Entry("b", "/b", "file")], [Entry("c", "/c", "file")]
    wire.check_page([], first, more=True)
    wire.check_page(first, second, more=False)
    wire.check_page([], [], more=False)
    with pytest.raises(LimitError):
        wire.check_page(first, first, more=True)
    with pytest.raises(LimitError):
        wire.check_page(first, [], more=True)
    monkeypatch.setattr(wire, "MAX_LISTED", 2)
    with pytest.raises(LimitError):
        wire.check_page(first, second, more=True)


def test_a_url_of_the_service_begins_as_this_client_reaches_it(subtests: pytest.Subtests) -> None:
    for base in ("https://outside", "https://outside/"):
        with subtests.test(base=base):
            given = "http://inside:8080/v1/signed/files/content?a=b%2Fc&d=e"
            assert wire.reached(given, base) == "https://outside/v1/signed/files/content?a=b%2Fc&d=e"
            assert wire.reached(given, None) == given
