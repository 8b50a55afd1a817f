"""Code over HTTP: variables that stay, results of every kind, and everything that is no code."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from sandlot.core.access.idempotency import execution_id
from sandlot.model.executions import Display
from sandlot.model.ids import PROCESS_ID, SandboxId
from sandlot.server.v1.code import DisplayResponse, mime_bundle, parse_event_id
from sandlot.web.streaming import NDJSON_MEDIA_TYPE, SSE_MEDIA_TYPE
from tests.support.cases import cases
from tests.support.http import output, post, problem, told
from tests.support.service import Bench
from tests.support.until import until

FIELDS = {
    "id",
    "status",
    "fault",
    "execution_count",
    "timed_out",
    "duration_s",
    "stdout",
    "stderr",
    "stdout_omitted_bytes",
    "stderr_omitted_bytes",
    "results",
    "results_omitted",
    "error",
    "urls",
}


async def test_as_one_answer(http: httpx.AsyncClient, url: str) -> None:
    done = (await http.post(url + "/code", json={"code": "x = 1\nprint('é')\nx"})).json()
    assert set(done) == FIELDS
    assert (done["status"], done["execution_count"], done["stdout"], done["error"]) == ("ok", 1, "é\n", None)
    assert done["results"] == [{"data": {"text/plain": "1"}, "main": True, "metadata": {}, "display_id": None, "update": False}]
    failed = (await http.post(url + "/code", json={"code": "x / 0"})).json()
    assert (failed["status"], failed["error"]["name"], failed["error"]["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert failed["error"]["traceback"]


async def test_events_of_a_run_are_streamed_as_json_lines(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.post(url + "/code", json={"code": "print('é')\n1"}, headers={"Accept": NDJSON_MEDIA_TYPE})
    assert answer.headers["content-type"] == NDJSON_MEDIA_TYPE
    all_told = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["event"] for each in all_told] == ["accepted", "started", "output", "display", "exit"]
    assert all_told[2]["data"] == {"stream": "stdout", "offset": 0, "encoding": "utf-8", "data": "é\n"}
    assert [each.get("id") for each in all_told] == ["0-0-0", "0-0-1", "3-0-1", "3-0-2", None]


@pytest.mark.real_guest
@pytest.mark.parametrize("between", ["", "display(1)", "print('x', file=sys.stderr)"])
async def test_character_of_two_writes_is_whole(http: httpx.AsyncClient, url: str, between: str) -> None:
    code = f"import os, sys, time\nos.write(1, b'\\xe2')\ntime.sleep(0.1)\n{between}\nos.write(1, b'\\x98\\x95')"
    done = (await http.post(url + "/code", json={"code": code})).json()
    assert done["stdout"] == "☕", done
    async with http.stream("POST", url + "/code", json={"code": code}, headers={"Accept": NDJSON_MEDIA_TYPE}) as response:
        events = [json.loads(line) async for line in response.aiter_lines() if line]
    assert [event["data"]["data"] for event in events if event["event"] == "output" and event["data"]["stream"] == "stdout"] == ["☕"]


async def test_stream_continues_after_the_id_of_any_event(http: httpx.AsyncClient, url: str) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'a\\xc3')\nsys.stdout.flush()\ndisplay(1)\nprint('b', file=sys.stderr)\n1/0"
    begun = (await http.post(url + "/code", json={"code": code, "background": True})).json()["id"]
    path = f"{url}/code/{begun}"
    whole = await with_ids(http, path)
    assert [name for name, _, _ in whole][-2:] == ["error", "exit"]
    for seen, (_, id_, _) in enumerate(whole[:-1]):
        rest = await with_ids(http, path, **{"Last-Event-ID": id_})
        assert rest[1:] == whole[max(1, seen + 1) :], id_
    events_from, stdout_from, stderr_from = parse_event_id(whole[-2][1]) or (0, 0, 0)
    asked = await told(http, path, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from)
    assert [name for name, _ in asked] == ["accepted", "exit"]


async def test_what_runs_in_the_background_outlives_its_client_and_is_followed(http: httpx.AsyncClient, url: str) -> None:
    code = "import time\nfor n in range(30):\n    print(n, flush=True)\n    time.sleep(0.05)\n'done'"
    answer = await http.post(url + "/code", json={"code": code, "background": True})
    assert answer.status_code == 202
    path = f"{url}/code/{answer.json()['id']}"
    kept = (await http.get(path)).json()
    assert (kept["status"], kept["done"]) == ("running", False)
    at = kept["next"]
    waited = (await http.get(path, params={"wait": 60, **at})).json()
    assert (waited["status"], waited["done"], waited["results"][0]["data"]) == ("ok", True, {"text/plain": "'done'"})
    assert kept["stdout"] + waited["stdout"] == "".join(f"{n}\n" for n in range(30))
    assert (await http.get(path)).json()["stdout"] == kept["stdout"] + waited["stdout"], "also after its end, from the beginning"
    assert output(await told(http, path)) == (kept["stdout"] + waited["stdout"]).encode()


async def test_interrupt_ends_the_named_run_only_whether_it_runs_or_waits(http: httpx.AsyncClient, url: str) -> None:
    first, second, third = [
        (await http.post(url + "/code", json={"code": code, "background": True, "timeout": None})).json()["id"]
        for code in ("y = 5\nwhile True: pass", "y = 6", "y += 1")
    ]
    while (await http.get(f"{url}/code/{first}")).json()["next"]["events_from"] == 0:
        pass  # its turn has not come yet
    assert (await http.post(f"{url}/code/{second}/interrupt")).json() == {"running": True}
    assert (await http.post(f"{url}/code/{first}/interrupt")).json() == {"running": True}
    interrupted = (await http.get(f"{url}/code/{first}", params={"wait": 60})).json()
    assert (interrupted["status"], interrupted["error"]["name"]) == ("error", "KeyboardInterrupt")
    assert (await http.get(f"{url}/code/{second}", params={"wait": 60})).json()["status"] == "aborted"
    assert (await http.get(f"{url}/code/{third}", params={"wait": 60})).json()["status"] == "ok"
    assert (await http.post(url + "/code", json={"code": "print(y)"})).json()["stdout"] == "6\n"
    assert (await http.post(f"{url}/code/{first}/interrupt")).json() == {"running": False}


async def test_a_run_that_is_asked_for_again_under_its_key_is_execution_id(http: httpx.AsyncClient, url: str) -> None:
    key = {"Idempotency-Key": "mine"}
    await http.post(url + "/code", json={"code": "n = 0"})
    first, again = [(await http.post(url + "/code", json={"code": "n += 1; print(n)"}, headers=key)).json() for _ in range(2)]
    assert first == again
    assert first["stdout"] == "1\n"
    other = (await http.post(url + "/code", json={"code": "print(n)"}, headers=key)).json()
    assert (other["stdout"], other["id"] != first["id"]) == ("1\n", True), "another request is another run"
    problem(await http.post(url + "/code", json={"code": "1"}, headers={"Idempotency-Key": "x" * 300}), 400, "invalid_request")


def test_the_run_of_a_key_is_one_sandboxes() -> None:
    one, other = (SandboxId(f"sb-aaaa-{each * 16}") for each in "ab")
    assert execution_id(one, "k", "{}") == execution_id(one, "k", "{}")
    assert len({execution_id(one, "k", "{}"), execution_id(other, "k", "{}"), execution_id(one, "l", "{}"), execution_id(one, "k", "[]")}) == 4
    assert PROCESS_ID.fullmatch(execution_id(one, "k", "{}"))


@pytest.mark.parametrize("id_", ["", "1", "1-2", "1-2-3-4", "a-b-c", "1--2", "٣-1-2", "1-2-" + "9" * 19])
def test_an_event_id_of_somebody_else_is_none(id_: str) -> None:
    assert parse_event_id(id_) is None


async def test_unknown_execution_is_not_found_in_every_format(http: httpx.AsyncClient, url: str) -> None:
    path = f"{url}/code/{'0' * 32}"
    problem(await http.get(path), 404, "execution_not_found")
    problem(await http.post(f"{path}/interrupt"), 404, "execution_not_found")
    for accept in ("text/event-stream", "application/x-ndjson"):
        problem(await http.get(path, headers={"Accept": accept}), 404, "execution_not_found")
    problem(await http.get(f"{url}/code/nonsense"), 400, "invalid_request")


@cases("accept", ["application/json", SSE_MEDIA_TYPE])
@pytest.mark.real_guest
async def test_disconnect_interrupts_the_cell_and_keeps_the_variables(at: Bench, http: httpx.AsyncClient, url: str, accept: str) -> None:
    async def has_begun() -> bool:
        return (await http.get(url + "/files/stat", params={"path": "/tmp/begun"})).is_success

    content = json.dumps({"code": "y = 5\nopen('/tmp/begun', 'w').close()\nwhile True: pass", "timeout": None})
    head = f"host: x\r\naccept: {accept}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    _, writer = await asyncio.open_unix_connection(at.service.settings.socket)
    writer.write(f"POST {url}/code HTTP/1.1\r\n{head}\r\n\r\n{content}".encode())
    await until(has_begun)
    writer.transport.abort()
    assert (await http.post(url + "/code", json={"code": "print(y)"})).json()["stdout"] == "5\n"


@cases(
    "body,status,code",
    [
        ({}, 400, "invalid_request"),
        ({"code": "x", "language": "cobol"}, 400, "invalid_request"),
        ({"code": "a\0b"}, 400, "invalid_request"),
        ({"code": "print('\ud800')"}, 400, "invalid_request"),
        ({"code": "#" * 5_000_000}, 413, "too_large"),
        ({"code": "x", "timeout": 0}, 400, "invalid_request"),
        ({"code": "x", "env": {"A": "x" * 200_000}}, 400, "invalid_request"),
        ({"code": "x", "kernel": "y"}, 400, "invalid_request"),
        ({"code": "x", "context": "nope"}, 404, "context_not_found"),
        ({"code": "x", "context": "ctx-0123456789abcdef"}, 404, "context_not_found"),
        ({"code": "x", "context": "default", "language": "bash"}, 409, "conflict"),
    ],
)
async def test_what_makes_no_sense_is_told_and_the_next_one_runs(http: httpx.AsyncClient, url: str, body: object, status: int, code: str) -> None:
    problem(await post(http, url + "/code", body), status, code)
    assert (await http.post(url + "/code", json={"code": "print('ok')"})).json()["stdout"] == "ok\n"


def test_mime_bundles_as_json_carries_them() -> None:
    assert mime_bundle(
        {"text/plain": "a", "image/png": b"\x89PNG", "image/svg+xml": b"<svg/>", "application/json": "{}", "application/pdf": b"%"}
    ) == {
        "text/plain": "a",
        "image/png": "iVBORw==",
        "image/svg+xml": "<svg/>",
        "application/json": "{}",
        "application/pdf": "JQ==",
    }


def test_metadata_as_json_carries_it() -> None:
    told = DisplayResponse.of(Display({"text/plain": "a"}, main=True, metadata={"a": [1, float("nan"), b"\xff"], "b": {"c": float("inf")}}))
    assert told.metadata == {"a": [1, None, "/w=="], "b": {"c": None}}


async def with_ids(http: httpx.AsyncClient, path: str, **headers: str) -> list[tuple[str, str, str]]:
    """Name, id and data of the events that an execution is followed by."""
    async with http.stream("GET", path, headers={"Accept": SSE_MEDIA_TYPE, **headers}) as response:
        blocks = (await response.aread()).decode().strip().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(each["event"], each.get("id", ""), each["data"]) for each in fields]
