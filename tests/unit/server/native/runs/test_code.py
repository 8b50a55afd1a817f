"""Code over HTTP: variables that stay, results of every kind, and everything that is no code."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from sandlot.server.native.schemas.code import mime_bundle
from tests.support.http import output, post, problem, short, told
from tests.support.service import Bench

FIELDS = {
    "execution",
    "status",
    "execution_count",
    "duration",
    "stdout",
    "stderr",
    "stdout_omitted",
    "stderr_omitted",
    "results",
    "results_omitted",
    "error",
}


async def test_as_one_answer(http: httpx.AsyncClient, url: str) -> None:
    done = (await http.post(url + "/code", json={"code": "x = 1\nprint('é')\nx"})).json()
    assert set(done) == FIELDS
    assert (done["status"], done["execution_count"], done["stdout"], done["error"]) == ("ok", 1, "é\n", None)
    assert done["results"] == [{"data": {"text/plain": "1"}, "main": True}]
    failed = (await http.post(url + "/code", json={"code": "x / 0"})).json()
    assert (failed["status"], failed["error"]["name"], failed["error"]["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert failed["error"]["traceback"]


async def test_as_events(http: httpx.AsyncClient, url: str) -> None:
    all_told = await told(http, url + "/code", {"code": "print('a')\n1"})
    names = [name for name, _ in all_told]
    assert (names[0], set(names[1:3]), names[3:]) == ("started", {"output", "display"}, ["exit"])
    assert output(all_told) == b"a\n"
    assert set(all_told[-1][1]) == {"execution", "status", "execution_count", "duration"}
    all_told = await told(http, url + "/code", {"code": "1/0"})
    assert [name for name, _ in all_told] == ["started", "error", "exit"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_goes_away_interrupts_its_cell(http: httpx.AsyncClient, url: str, accept: str) -> None:
    async def ask() -> None:
        code = {"code": "y = 5\nwhile True: pass", "timeout": None}
        async with http.stream("POST", url + "/code", json=code, headers={"Accept": accept}) as response:
            await response.aread()

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await http.post(url + "/code", json={"code": "print(y)"})).json()["stdout"] == "5\n"


@pytest.mark.parametrize(
    "body,status,code",
    [
        ({}, 400, "invalid_request"),
        ({"code": None}, 400, "invalid_request"),
        ({"code": "x", "language": "cobol"}, 400, "invalid_request"),
        ({"code": "a\0b"}, 400, "invalid_request"),
        ({"code": "print('\ud800')"}, 400, "invalid_request"),
        ({"code": "#" * 5_000_000}, 413, "too_large"),
        ({"code": "#" * 10_000_000}, 413, "too_large"),
        ({"code": "x", "timeout": 0}, 400, "invalid_request"),
        ({"code": "x", "timeout": 1e9}, 400, "invalid_request"),
        ({"code": "x", "env": {"A": "x" * 200_000}}, 400, "invalid_request"),
        ({"code": "x", "kernel": "y"}, 400, "invalid_request"),
    ],
    ids=short,
)
async def test_what_makes_no_sense_is_told_and_the_next_one_runs(http: httpx.AsyncClient, url: str, body: object, status: int, code: str) -> None:
    problem(await post(http, url + "/code", body), status, code)
    assert (await http.post(url + "/code", json={"code": "print('ok')"})).json()["stdout"] == "ok\n"


async def test_bytes_that_are_no_json_are_no_code(http: httpx.AsyncClient, url: str) -> None:
    binary = b'{"code": "' + bytes(range(128, 256)) + b'"}'
    problem(await http.post(url + "/code", content=binary, headers={"Content-Type": "application/json"}), 400, "invalid_request")


async def test_empty_code_is_code(http: httpx.AsyncClient, url: str) -> None:
    assert (await http.post(url + "/code", json={"code": ""})).json()["status"] == "ok"


async def test_an_unknown_sandbox_is_told_first(at: Bench, http: httpx.AsyncClient) -> None:
    assert at.sandboxes.held == 0
    problem(await http.post("/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/code", json={"code": "1"}), 404, "sandbox_not_found")


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
