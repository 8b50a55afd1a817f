"""Where JSON bodies are parsed, and which ones are not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import AfterValidator

from sandlot.model.errors import InvalidRequestError, LimitError, SandlotError
from sandlot.web import errors, json_body
from sandlot.web.json_body import INLINE_MAX_BYTES, MAX_DEPTH, MAX_VALUES, THREAD, JsonParser, JsonRoute, check_shape
from sandlot.web.models import RequestModel
from tests.support.cases import cases

LARGE = "x" * (INLINE_MAX_BYTES + 1)
validated: list[str] = []
"""Names of the threads in which a body was validated."""


def _record(text: str) -> str:
    validated.append(threading.current_thread().name)
    return text


class Note(RequestModel):
    """A body."""

    text: Annotated[str, AfterValidator(_record)] = ""
    other: int | None = None


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    validated.clear()
    app = FastAPI()
    app.router.route_class = JsonRoute
    app.state.json_parser = JsonParser()
    errors.install_error_handlers(app)

    @app.post("/notes")
    async def add(note: Note) -> dict[str, Any]:
        return {"length": len(note.text), "set": sorted(note.model_fields_set)}

    @app.post("/maybe")
    async def maybe(note: Note | None = None) -> int:
        return 0 if note is None else len(note.text)

    monkeypatch.setattr(json_body, "parse_json", _recorded_parse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandlot") as made:
        yield made


def _recorded_parse(content: bytes) -> Any:  # noqa: ANN401 - any JSON
    validated.append(threading.current_thread().name)
    return json.loads(content)


async def test_large_body_is_decoded_and_validated_in_the_thread_and_once(client: httpx.AsyncClient) -> None:
    assert (await client.post("/notes", json={"text": LARGE})).json() == {"length": len(LARGE), "set": ["text"]}
    assert len(validated) == 2
    assert all(name.startswith(THREAD) for name in validated)
    assert (await client.post("/maybe", json={"text": LARGE})).json() == len(LARGE)
    assert all(name.startswith(THREAD) for name in validated)


async def test_small_body_is_parsed_at_once(client: httpx.AsyncClient) -> None:
    assert (await client.post("/notes", json={"text": "x"})).json() == {"length": 1, "set": ["text"]}
    assert validated == [threading.current_thread().name]


async def test_other_requests_are_answered_while_a_large_body_is_parsed(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    began, answered = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def parse(content: bytes) -> Any:  # noqa: ANN401 - any JSON
        loop.call_soon_threadsafe(began.set)
        assert answered.wait(60), "the loop is blocked"
        return json.loads(content)

    monkeypatch.setattr(json_body, "parse_json", parse)
    large = asyncio.create_task(client.post("/notes", json={"text": LARGE}))
    await began.wait()
    assert (await client.post("/notes", json={"text": "x"})).status_code == 200
    assert not large.done()
    answered.set()
    assert (await large).status_code == 200


@pytest.mark.parametrize("padding", ["", LARGE])
async def test_errors_are_the_same_for_small_and_large_bodies(client: httpx.AsyncClient, padding: str) -> None:
    refused = await client.post("/notes", json={"text": padding, "other": "no number", "unknown": 1})
    assert refused.status_code == 400
    assert set(refused.json()["fields"]) == {"other", "unknown"}
    broken = await client.post("/notes", content=json.dumps({"text": padding})[:-1], headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["detail"]) == (400, "The request body is not JSON.")
    plain = await client.post("/notes", content=json.dumps({"text": padding}), headers={"Content-Type": "text/plain"})
    assert (plain.status_code, set(plain.json()["fields"])) == (400, {"body"})


async def test_large_body_must_be_utf_8(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for encoding in ("utf-16", "latin-1"):
        content = json.dumps({"text": "\xe9" + LARGE}, ensure_ascii=False).encode(encoding)
        refused = await client.post("/notes", content=content, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


@cases(
    "what, make, error",
    [
        ("a million keys", lambda: json.dumps({"metadata": {str(number): "" for number in range(1_000_000)}}).encode(), LimitError),
        ("empty strings", lambda: b"[" + b'"",' * 1_000_000 + b'""]', LimitError),
        ("numbers", lambda: b"[" + b"1," * 1_000_000 + b"1]", LimitError),
        ("objects", lambda: b"[" + b"{}," * 1_000_000 + b"1]", LimitError),
        ("after a string that ends with a backslash", lambda: b'["\\\\",' + b"1," * 1_000_000 + b"1]", LimitError),
        ("after a long string", lambda: b'["' + b"\\n" * 100_000 + b'",' + b"1," * MAX_VALUES + b"1]", LimitError),
        ("deep lists", lambda: b"[" * 8_000_000, InvalidRequestError),
        ("deep objects", lambda: b'{"a":' * 1_000_000, InvalidRequestError),
        ("deep, between strings", lambda: b'["[]]]]",' * (MAX_DEPTH + 1), InvalidRequestError),
    ],
)
def test_json_of_too_many_values_or_levels_is_refused(what: str, make: Callable[[], bytes], error: type[SandlotError]) -> None:  # noqa: ARG001
    content = make()
    with pytest.raises(error):
        check_shape(content)


@cases(
    "what, make",
    [
        ("code", lambda: json.dumps({"code": 'f(["a", {"b": 1}])\n' * 200_000}).encode()),
        ("escapes", lambda: json.dumps({"code": '\\"' * 1_000_000 + "[,{" * 100_000}).encode()),
        ("not ASCII", lambda: json.dumps({"code": "é,[" * 500_000}, ensure_ascii=False).encode()),
        ("as many values as are allowed", lambda: b"[" + b"1," * (MAX_VALUES - 1) + b"1]"),
        ("as many levels as are allowed", lambda: b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b" " * 100_000),
        ("many small lists", lambda: b"[" + b"[]," * (MAX_VALUES // 2 - 1) + b"1]"),
        ("cut in a string", lambda: b'{"code": "' + b"[" * 200_000),
        ("cut in an escape", lambda: b'{"code": "' + b"[" * 200_000 + b"\\"),
        ("empty", lambda: b""),
    ],
)
def test_text_is_not_counted_as_values(what: str, make: Callable[[], bytes]) -> None:  # noqa: ARG001
    check_shape(make())


def test_string_may_end_anywhere_in_a_window() -> None:
    for end in range(json_body.WINDOW_BYTES - 4, json_body.WINDOW_BYTES + 4):
        for last in ("", "\\", '"', '\\"'):
            content = json.dumps(["[," * (end // 2) + "x" * (end % 2) + last, *[1] * (MAX_VALUES - 1)], separators=(",", ":")).encode()
            check_shape(content)
            with pytest.raises(LimitError):
                check_shape(content[:-1] + b",1]")
