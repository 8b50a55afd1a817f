"""The client of SandboxAPI's surface: what it sends, what it makes of answers, and where it looks for key and address."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sandlot import AuthenticationError, InvalidRequestError, NotFoundError, SandlotError, UnavailableError
from sandlot.sdk.compat.sandboxapi import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE, SandboxAPI

Answer = Callable[[httpx.Request], httpx.Response]


class Recorder:
    """Answers every request in the same way, and remembers them."""

    def __init__(self, status: int = 200, body: Any = None, content: bytes | None = None) -> None:  # noqa: ANN401 - JSON
        self.seen: list[httpx.Request] = []
        self._status = status
        self._content = json.dumps(body or {}).encode() if content is None else content

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return httpx.Response(self._status, content=self._content)

    @property
    def sent(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.seen[-1].content)


def client(answer: Answer) -> SandboxAPI:
    return SandboxAPI(api_key="k", base_url="http://there/sandboxapi/", http_client=httpx.Client(transport=httpx.MockTransport(answer)))


DONE = {"id": "1", "status": "completed", "language": "python3", "stdout": "1\n", "stderr": "", "exit_code": 0, "wall_time_ms": 5, "newer": True}


def test_a_refusal_is_raised_with_what_was_said(subtests: pytest.Subtests) -> None:
    for status, raised in (
        (400, InvalidRequestError),
        (401, AuthenticationError),
        (404, NotFoundError),
        (503, UnavailableError),
        (500, SandlotError),
        (418, SandlotError),
    ):
        with subtests.test(status=status, raised=raised):
            there = client(Recorder(status, body={"error": "session not found", "message": "There is no session 'x'."}))
            with pytest.raises(raised, match="There is no session 'x'"):
                there.sessions.execute("x", "1")


def test_a_refusal_that_says_nothing_is_raised_by_its_status(subtests: pytest.Subtests) -> None:
    for content in (b"<html>", b"[]", b"\xff", b""):
        with subtests.test(content=content), pytest.raises(SandlotError, match="502"):
            client(Recorder(502, content=content)).execute("bash", "true")


def test_nobody_there_is_said_with_the_address() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UnavailableError, match=rf"http://there/sandboxapi.*{URL_VARIABLE}"):
        client(refuse).execute("bash", "true")


def test_a_batch_keeps_its_order_and_one_that_fails_spoils_none() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        code = json.loads(request.content)["code"]
        if code == "refused":
            return httpx.Response(400, json={"error": "no", "message": "no"})
        return httpx.Response(200, json={"status": "completed", "stdout": code, "exit_code": int(code == "fails")})

    asked = [{"language": "bash", "code": code} for code in ("a", "refused", "fails", "b")]
    done = client(answer).execute_batch([*asked, {"code": "no language"}, {"language": "bash", "code": object()}], concurrency=2)
    assert [each.status for each in done.results] == ["completed", "error", "completed", "completed", "error", "error"]
    assert [each.stdout for each in done.results] == ["a", "", "fails", "b", "", ""]
    assert (done.total, done.completed, done.failed) == (6, 2, 4)
    assert client(answer).execute_batch([]).total == 0


def test_where_key_and_address_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(AuthenticationError, match=KEY_VARIABLE):
        SandboxAPI()
    with SandboxAPI(api_key="k") as there:
        assert there.base_url == DEFAULT_URL
    monkeypatch.setenv(KEY_VARIABLE, "k")
    monkeypatch.setenv(URL_VARIABLE, "http://other/")
    with SandboxAPI() as there:
        assert there.base_url == "http://other"
    with SandboxAPI(base_url="http://given") as there:
        assert there.base_url == "http://given"
