"""Programs that are run once, by the SDK: what is sent, lines however they are cut, errors of one and of all, and connections that break."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot import AsyncClient, Client, InvalidRequestError, NotFoundError, UnavailableError
from sandlot.sdk.models.programs import ProgramResult
from sandlot.sdk.requests import batch_body
from sandlot.sdk.responses import JsonLines
from tests.unit.sdk.scripted import Reply, Script

RESULT = {"status": "completed", "language": "bash", "stdout": "1\n", "stderr": "", "exit_code": 0, "signal": None, "duration_s": 0.5}
RESULT |= {"cpu_s": 0.25, "peak_bytes": 4096, "detail": "", "execution": "0123"}
PROBLEM = {
    "type": "about:blank",
    "title": "Not Found",
    "status": 404,
    "detail": "There is no template.",
    "code": "template_not_found",
    "hint": "List.",
}
PROBLEM |= {"retryable": False, "request_id": "r", "fields": {}}


def item(index: int, result: Any = None, error: Any = None) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps({"index": index, "result": result, "error": error}).encode() + b"\n"


def lines(*pieces: bytes, cut: bool = False) -> Reply:
    return Reply(pieces=list(pieces), headers={"Content-Type": "application/x-ndjson"}, cut=cut)


def test_program_is_sent_and_its_result_read(service: Script) -> None:
    service.say(lines(b"\n", item(0, RESULT)))
    with Client(url=service.url) as client:
        done = client.programs.run(
            "bash",
            "cat",
            stdin="x",
            timeout=3,
            files={"a": "text", "b": b"\xff"},
            envs={"A": "1"},
            expected_output="x",
            comparison="numeric",
            tolerance=0.5,
            output_bytes=10,
            memory="64M",
            pids=32,
            template="base",
        )
    assert done == ProgramResult("completed", stdout="1\n", language="bash", duration_s=0.5, cpu_s=0.25, peak_bytes=4096, id="0123")
    assert done.ok
    (seen,) = service.seen
    assert (seen.method, seen.path, seen.headers["accept"]) == ("POST", "/v1/programs/batch", "application/x-ndjson")
    assert seen.json() == {
        "items": [
            {
                "language": "bash",
                "code": "cat",
                "stdin": "x",
                "timeout": 3,
                "files": {"a": "text", "b": {"content": "/w==", "encoding": "base64"}},
                "env": {"A": "1"},
                "expected_output": "x",
                "comparison": "numeric",
                "tolerance": 0.5,
                "output_bytes": 10,
                "limits": {"memory_bytes": 64 << 20, "pids": 32},
                "template": "base",
            }
        ]
    }


def test_what_is_not_given_is_not_sent() -> None:
    assert batch_body([{"language": "bash", "code": ""}], None) == {"items": [{"language": "bash", "code": ""}]}


def test_unknown_program_option_is_refused_before_the_request() -> None:
    with pytest.raises(InvalidRequestError, match=r"tiemout.* timeout"):
        batch_body([{"language": "bash", "code": "", "tiemout": 1}], None)


async def test_batch_results_are_in_order(service: Script) -> None:
    service.say(lines(item(2, RESULT), item(1, error=PROBLEM), item(0, {**RESULT, "status": "wrong_answer"})))
    async with AsyncClient(url=service.url) as client:
        done = await client.programs.run_batch([{"language": "bash", "code": str(n)} for n in range(3)], concurrency=2)
    assert [(each.index, each.ok) for each in done] == [(0, False), (1, False), (2, True)]
    assert isinstance(done[1].error, NotFoundError)
    with pytest.raises(NotFoundError, match="no template"):
        done[1].unwrap()
    assert done[0].unwrap().status == "wrong_answer"
    assert service.seen[0].json()["concurrency"] == 2


def test_error_of_a_program_is_raised(service: Script) -> None:
    service.say(lines(item(0, error=PROBLEM)))
    with Client(url=service.url) as client, pytest.raises(NotFoundError, match="no template"):
        client.programs.run("bash", "")


def test_refused_or_failed_batch_is_raised(service: Script) -> None:
    service.say(Reply(400, {**PROBLEM, "code": "invalid_request", "status": 400}, {"Content-Type": "application/problem+json"}))
    with Client(url=service.url) as client:
        with pytest.raises(InvalidRequestError):
            client.programs.run("bash", "")
        service.say(lines(item(0, RESULT), json.dumps(PROBLEM).encode() + b"\n"))
        with pytest.raises(NotFoundError):
            client.programs.run_batch([{"language": "bash", "code": ""}] * 2)


def test_cut_batch_is_an_error(service: Script, subtests: pytest.Subtests) -> None:
    for cut in (False, True):
        with subtests.test(cut=cut):
            service.say(lines(item(0, RESULT), b'{"index"', cut=cut))
            with Client(url=service.url) as client, pytest.raises(UnavailableError):
                client.programs.run_batch([{"language": "bash", "code": ""}] * 2)


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=5), st.data())
def test_lines_are_the_same_however_they_are_cut(objects: list[dict[str, str]], data: st.DataObject) -> None:
    text = b"".join(json.dumps(each, ensure_ascii=False).encode("utf-8", "replace") + b"\n" * data.draw(st.integers(1, 3)) for each in objects)
    read, at = JsonLines(), 0
    told: list[dict[str, Any]] = []
    while at < len(text):
        size = data.draw(st.integers(1, 20))
        told += read.feed(text[at : at + size])
        at += size
    assert told == [json.loads(json.dumps(each, ensure_ascii=False).encode("utf-8", "replace")) for each in objects]
