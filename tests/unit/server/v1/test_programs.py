"""Programs that are run once, over HTTP: one and many, as one answer and as lines, and clients that go away."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from sandlot.core.manager import SandboxManager
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.languages import AvailableLanguage, language_of
from sandlot.model.programs import BatchItem, ProgramParams, ProgramResult, ProgramStatus
from sandlot.server.app import create_app
from tests.support.cases import cases
from tests.support.scripted_app import local_client, scripted_service
from tests.support.scripted_node import ScriptedNode, ScriptedStream
from tests.support.service import Bench, tcp_client
from tests.support.until import until

URL = "/v1/programs"
FIELDS = {
    "status",
    "language",
    "stdout",
    "stderr",
    "exit_code",
    "signal",
    "timed_out",
    "fault",
    "duration_s",
    "cpu_s",
    "peak_bytes",
    "detail",
    "execution",
    "compile_output",
    "cases",
}


def program(code: str, language: str = "bash", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"language": language, "code": code, "template": "base", "limits": {"pids": 32768}, **more}


@pytest.mark.real_guest
async def test_one_with_everything(http: httpx.AsyncClient, at: Bench) -> None:
    body = program(
        "import os, sys\nprint(sys.stdin.read(), os.environ['A'], open('a.txt').read(), open('/tmp/b.bin', 'rb').read())",
        "py",
        stdin="é",
        env={"A": "1"},
        files={"a.txt": "text", "/tmp/b.bin": {"content": base64.b64encode(b"\xff").decode(), "encoding": "base64"}},
        timeout=30,
        expected_output="é 1 text b'\\xff'",
    )
    answer = await http.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert set(told) == FIELDS
    assert (told["status"], told["stdout"], told["stderr"]) == ("completed", "é 1 text b'\\xff'\n", "")
    assert (told["language"], told["exit_code"], told["signal"], told["detail"]) == ("python", 0, None, "")
    logged = (await http.get(f"/v1/executions/{told['execution']}")).json()
    assert logged["code"] == body["code"]
    await until(lambda: at.sandboxes.held == 0)


async def test_a_program_that_fails_is_an_answer(http: httpx.AsyncClient) -> None:
    told = (await http.post(URL, json=program("echo no >&2; exit 7"))).json()
    assert (told["status"], told["exit_code"], told["stderr"]) == ("runtime_error", 7, "no\n")
    told = (await http.post(URL, json=program("echo 1.04", expected_output="1.0", comparison="numeric", tolerance=0.1))).json()
    assert told["status"] == "completed"
    told = (await http.post(URL, json=program("echo 1.0 ", expected_output="1.0", comparison="exact"))).json()
    assert told["status"] == "wrong_answer"


async def test_languages_are_listed_with_the_template_that_runs_them(scripted: ScriptedNode, local: httpx.AsyncClient) -> None:
    java, python = language_of("java"), language_of("python")
    scripted.script("languages.list", [AvailableLanguage(python, "base", "3.11.2"), AvailableLanguage(java, None, None)])
    of_python = {"name": "python", "title": "Python", "aliases": ["python3", "py"], "extensions": [".py"]}
    of_java = {"name": "java", "title": "Java", "aliases": ["jdk"], "extensions": [".java"]}
    assert (await local.get(f"{URL}/languages")).json() == {
        "languages": [
            {**of_python, "template": "base", "version": "3.11.2", "has_context": True},
            {**of_java, "template": None, "version": None, "has_context": False},
        ]
    }


@cases(
    "wrong, said",
    [
        ({"language": "cobol"}, "python (python3, py)"),
        ({"code": 1}, "code"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 1e6}, "3600"),
        ({"comparison": "fuzzy"}, "comparison"),
        ({"tolerance": -1}, "tolerance"),
        ({"network": {"mode": "internet"}}, "network"),
        ({"files": {"main.sh": ""}}, "main.sh"),
        ({"files": {"x": {"content": "?", "encoding": "base64"}}}, "base64"),
        ({"limits": {"memory_bytes": 1}}, "memory_bytes"),
    ],
)
async def test_what_makes_no_sense_is_refused(api: httpx.AsyncClient, wrong: dict[str, Any], said: str) -> None:
    answer = await api.post(URL, json={**program("true"), **wrong})
    assert answer.status_code == 400, answer.text
    assert said in json.dumps(answer.json())


ITEMS = [
    program("sleep 0.5; echo slow", expected_output="slow"),
    program("echo fast"),
    {"language": "bash"},
    program("exit 3"),
    program("true", template="nope"),
    program("echo x", "cobol"),
    program("echo other", expected_output="same"),
    program("true", surplus=1),
]
OUTCOMES = ["completed", "completed", "invalid_request", "runtime_error", "template_not_found", "invalid_request", "wrong_answer", "invalid_request"]


def result(stdout: str) -> ProgramResult:
    return ProgramResult(ProgramStatus.COMPLETED, "bash", stdout, "", 0, None, 0.1)


def outcome(item: dict[str, Any]) -> str:
    assert (item["result"] is None) != (item["error"] is None)
    return str(item["result"]["status"] if item["error"] is None else item["error"]["code"])


async def test_batch_keeps_its_order_and_a_failed_item_affects_no_other(http: httpx.AsyncClient, at: Bench) -> None:
    answer = await http.post(f"{URL}/batch", json={"items": ITEMS, "concurrency": 3})
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    assert [item["index"] for item in items] == list(range(len(ITEMS)))
    assert [outcome(item) for item in items] == OUTCOMES
    assert items[0]["result"]["stdout"] == "slow\n"
    assert "code" in items[2]["error"]["fields"]
    assert "surplus" in items[7]["error"]["fields"]
    await until(lambda: at.sandboxes.held == 0)


async def test_a_batch_as_lines_tells_each_as_it_ends(scripted: ScriptedNode, local: httpx.AsyncClient) -> None:
    told = asyncio.Event()
    stream = ScriptedStream(BatchItem(1, result("fast\n")), told, BatchItem(0, result("slow\n")), BatchItem(2, NotFoundError("gone")))
    scripted.script("programs.run_batch", stream)
    async with local.stream("POST", f"{URL}/batch", json={"items": ITEMS}, headers={"Accept": "application/x-ndjson"}) as answer:
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = answer.aiter_lines()
        items = [json.loads(await anext(lines))]  # while the slow one still runs
        told.set()
        items += [json.loads(line) async for line in lines if line]
    assert [(item["index"], outcome(item)) for item in items] == [(1, "completed"), (0, "completed"), (2, "not_found")]
    await stream.closed.wait()
    asked = scripted.calls[0]["items"]
    assert [isinstance(item, ProgramParams) for item in asked] == [True, True, False, True, True, False, True, False]
    assert [item.code.value for item in asked if isinstance(item, SandlotError)] == ["invalid_request"] * 3


@cases("accept", ["application/json", "application/x-ndjson"])
async def test_a_client_that_goes_away_takes_its_batch_along(http: httpx.AsyncClient, at: Bench, accept: str) -> None:
    body = {"items": [program("sleep 100", timeout=100) for _ in range(20)], "concurrency": 3}

    async def ask() -> None:
        async with http.stream("POST", f"{URL}/batch", json=body, headers={"Accept": accept}) as answer:
            await answer.aread()

    asking = asyncio.create_task(ask())
    await until(lambda: at.sandboxes.held == 3)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: at.sandboxes.held == 0)
    assert at.driver.leftovers() == []


async def test_batch_runs_no_more_programs_at_once_than_requested(http: httpx.AsyncClient, at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    create = SandboxManager.create

    async def counted(self: SandboxManager, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - the same
        nonlocal most
        made = await create(self, *args, **more)
        most = max(most, sum(1 for sandbox in at.sandboxes.list(OPERATOR) if not sandbox.end_requested.is_set()))
        return made

    monkeypatch.setattr(SandboxManager, "create", counted)
    answer = await http.post(f"{URL}/batch", json={"items": [program(f"echo {n}") for n in range(9)], "concurrency": 2})
    assert [item["result"]["stdout"] for item in answer.json()["items"]] == [f"{n}\n" for n in range(9)]
    assert 1 <= most <= 2


async def test_batch_item_without_room_waits(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 3
    create = SandboxManager.create

    async def crowded(self: SandboxManager, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - the same
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise UnavailableError("full", code=ErrorCode.BUSY, fields={"retry_after_s": 1})
        return await create(self, *args, **more)

    monkeypatch.setattr(SandboxManager, "create", crowded)
    answer = await http.post(f"{URL}/batch", json={"items": [program("echo 1"), program("echo 2")]})
    assert [outcome(item) for item in answer.json()["items"]] == ["completed", "completed"]
    assert refusals == 0


async def test_a_defect_in_one_item_is_told_and_spoils_no_other(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    create = SandboxManager.create
    first = True

    async def fails(self: SandboxManager, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - the same
        nonlocal first
        if first:
            first = False
            raise RuntimeError("secret")
        return await create(self, *args, **more)

    monkeypatch.setattr(SandboxManager, "create", fails)
    answer = await http.post(f"{URL}/batch", json={"items": [program("echo 1"), program("echo 2")], "concurrency": 1})
    assert [outcome(item) for item in answer.json()["items"]] == ["internal", "completed"]
    assert "secret" not in answer.text


@cases("body", [{"items": []}, {"items": [{}] * 1001}, {"items": [{}], "concurrency": 0}, {"items": [{}], "concurrency": 33}])
async def test_a_batch_has_bounds(api: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await api.post(f"{URL}/batch", json=body)).status_code == 400


async def test_a_result_that_there_is_no_memory_for_is_told() -> None:
    node = ScriptedNode(buffers=BufferShares(4 << 20))
    async with local_client(create_app(scripted_service(node.services))) as http:
        body = {"items": [program("head -c 100000 /dev/zero") for _ in range(10)], "concurrency": 1}
        for _ in range(2):
            node.script("programs.run_batch", ScriptedStream(*(BatchItem(index, result("x" * 100_000)) for index in range(10))))
        told = [outcome(item) for item in (await http.post(f"{URL}/batch", json=body)).json()["items"]]
        assert set(told) == {"completed", "busy"}
        assert told == sorted(told, reverse=True)
        async with http.stream("POST", f"{URL}/batch", json=body, headers={"Accept": "application/x-ndjson"}) as answer:
            assert {outcome(json.loads(line)) async for line in answer.aiter_lines() if line} == {"completed"}
    assert node.services.buffers.taken_bytes == 0
    node.check()


async def test_a_key_with_few_sandboxes_has_its_batch_done_in_turns(at: Bench) -> None:
    _, secret = await at.service.api_keys.create("few", quota=Quota(sandboxes=1))
    async with tcp_client(at.service, secret) as http:
        body = {"items": [program(f"echo {n}") for n in range(3)], "concurrency": 3}
        items = (await http.post(f"{URL}/batch", json=body)).json()["items"]
    assert [item["result"] and item["result"]["stdout"] for item in items] == ["0\n", "1\n", "2\n"], items
