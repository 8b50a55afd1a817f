"""Processes over HTTP: as one answer, as events, in the background; fed, signalled, left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from sandlot.core.execution import stdin
from sandlot.core.execution.helpers import is_helper
from sandlot.model.access import OPERATOR
from tests.support.cases import cases
from tests.support.http import events, output, post, problem, told
from tests.support.service import Bench
from tests.support.until import until


@pytest.mark.real_guest
async def test_as_one_answer(http: httpx.AsyncClient, url: str) -> None:
    done = (await http.post(url + "/processes", json={"command": "cat; echo $A >&2; exit 3", "stdin": "in é", "env": {"A": "b"}})).json()
    assert set(done) == {
        "id",
        "exit_code",
        "signal",
        "reason",
        "timed_out",
        "fault",
        "duration_s",
        "stdout",
        "stderr",
        "stdout_omitted_bytes",
        "stderr_omitted_bytes",
        "files",
        "files_more",
        "urls",
    }
    assert (done["exit_code"], done["reason"], done["stdout"], done["stderr"], done["stdout_omitted_bytes"]) == (3, "exited", "in é", "b\n", 0)
    argv = {"argv": ["python3", "-c", "import os; print(os.getcwd(), os.getuid())"], "cwd": "/tmp", "user": "root"}
    assert (await http.post(url + "/processes", json=argv)).json()["stdout"] == "/tmp 0\n"


@pytest.mark.real_guest
async def test_as_events(http: httpx.AsyncClient, url: str) -> None:
    all_told = await told(http, url + "/processes", {"command": "printf 'a\\377b'; printf é; echo err >&2; exit 1"})
    assert all_told[0][0] == "started"
    assert set(all_told[0][1]) == {"id", "pid"}
    assert output(all_told) == b"a\xffb" + "é".encode()
    assert output(all_told, "stderr") == b"err\n"
    name, ended = all_told[-1]
    assert (name, set(ended), ended["exit_code"]) == ("exit", {"id", "exit_code", "signal", "reason", "timed_out", "fault", "duration_s"}, 1)


async def test_one_is_started_again(http: httpx.AsyncClient, url: str) -> None:
    url += "/processes"
    first = (await http.post(url, json={"command": "sleep 1000", "background": True})).json()
    second = await http.post(f"{url}/{first['id']}/restart")
    assert second.status_code == 201, second.text
    assert second.json()["id"] != first["id"]
    known = {each["id"]: each["running"] for each in (await http.get(url)).json()["processes"]}
    assert (known[first["id"]], known[second.json()["id"]]) == (False, True)
    await http.post(f"{url}/{second.json()['id']}/signal", json={"signal": "SIGKILL"})
    assert (await http.post(f"{url}/{'0' * 32}/restart")).status_code == 404


async def test_a_client_that_does_not_read_stops_its_own_process_only(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    async with http.stream("POST", url + "/processes", json={"command": "yes", "timeout": None}, headers={"Accept": "text/event-stream"}) as slow:
        written = -1
        while True:
            (info,) = (await http.get(url + "/processes")).json()["processes"]
            if info["stdout_bytes"] == written:
                break
            written = info["stdout_bytes"]
            await asyncio.sleep(0.5)
        assert written < 32_000_000
        assert (await http.post(url + "/processes", json={"command": "echo fine"})).json()["stdout"] == "fine\n"
        assert slow.status_code == 200
    await until(lambda: no_process(http, url))
    assert at.sandboxes.held == 1


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_goes_away_takes_its_process_along(http: httpx.AsyncClient, url: str, accept: str) -> None:
    async def ask() -> None:
        async with http.stream("POST", url + "/processes", json={"command": "sleep 77"}, headers={"Accept": accept}) as response:
            await response.aread()

    asking = asyncio.create_task(ask())
    await until(lambda: one_process(http, url))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: no_process(http, url))


async def test_in_the_background(http: httpx.AsyncClient, url: str) -> None:
    response = await http.post(url + "/processes", json={"command": "cat; exit 4", "background": True, "stdin_open": True})
    assert response.status_code == 201
    assert set(response.json()) == {"id", "pid"}
    process = f"{url}/processes/{response.json()['id']}"
    assert (await http.post(process + "/stdin", content=b"one\n")).status_code == 200

    async def chunks() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d\n" % number

    assert (await http.post(process + "/stdin", content=chunks())).status_code == 200
    assert (await http.delete(process + "/stdin")).status_code == 204
    problem(await http.post(process + "/stdin", content=b"late"), 409, "conflict")

    async def written() -> bool:
        return bool((await http.get(process + "/output")).json()["stdout"])

    await until(written)  # an offset that is not reached yet is refused
    all_told = await told(http, process + "/output", stdout_from=4)
    assert "".join(data["data"] for name, data in all_told if name == "output") == "0\n1\n2\n3\n4\n"
    assert all_told[-1][1]["exit_code"] == 4
    kept = (await http.get(process + "/output")).json()
    assert (kept["stdout"], kept["exit"]["exit_code"]) == ("one\n0\n1\n2\n3\n4\n", 4)


async def test_what_there_is_by_now(http: httpx.AsyncClient, url: str) -> None:
    made = (await http.post(url + "/processes", json={"command": "echo now; sleep 77", "background": True})).json()
    process = f"{url}/processes/{made['id']}"

    async def written() -> bool:
        return bool((await http.get(process + "/output")).json()["stdout"] == "now\n")

    await until(written)
    all_told = await told(http, process + "/output", follow="false")
    assert [name for name, _ in all_told] == ["started", "output"]
    assert (await http.post(process + "/signal", json={"signal": "SIGTERM"})).json() == {"running": True}
    (info,) = (await http.get(url + "/processes")).json()["processes"]
    await until(lambda: no_process(http, url))
    (info,) = (await http.get(url + "/processes")).json()["processes"]
    assert (info["reason"], info["signal"], info["exit_code"]) == ("signalled", 15, 143)
    assert (await http.post(process + "/signal", json={"signal": 9})).json() == {"running": False}


async def test_a_sandbox_that_ends_is_told_in_the_stream(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    async with http.stream("POST", url + "/processes", json={"command": "echo a; sleep 77"}, headers={"Accept": "text/event-stream"}) as response:
        stream = events(response)
        async for name, _ in stream:
            if name == "output":
                break
        at.driver.booted[0].crash()
        name, failure = await anext(stream)
        assert (name, failure["status"], failure["code"]) == ("failure", 410, "sandbox_ended")
        assert (failure["fields"]["reason"], failure["fault"]) == ("crashed", "lost")
        assert failure["request_id"] == response.headers["x-request-id"]


async def test_an_idle_stream_says_that_it_lives(http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.web.streaming.KEEP_ALIVE_S", 0.1)
    headers = {"Accept": "text/event-stream"}
    async with http.stream("POST", url + "/processes", json={"command": "sleep 0.5"}, headers=headers) as response:
        assert [line async for line in response.aiter_lines()].count(": keep-alive") >= 3


@cases(
    "body,status,code",
    [
        ({}, 400, "invalid_request"),
        ({"command": "a", "argv": ["a"]}, 400, "invalid_request"),
        ({"command": ""}, 400, "invalid_request"),
        ({"command": "a\0b"}, 400, "invalid_request"),
        ({"command": "\udcff"}, 400, "invalid_request"),
        ({"command": "echo " + "x" * 140_000}, 400, "invalid_request"),
        ({"argv": []}, 400, "invalid_request"),
        ({"argv": ["/nonexistent"]}, 404, "program_not_found"),
        ({"argv": ["/etc/passwd"]}, 403, "permission_denied"),
        ({"argv": ["a"] * 16_384, "env": {str(n): "" for n in range(4096)}}, 404, "program_not_found"),
        ({"command": "true", "env": {str(n): "" for n in range(4097)}}, 400, "invalid_request"),
        ({"command": "true", "cwd": "/nonexistent"}, 404, "working_directory_not_found"),
        ({"command": "true", "cwd": ""}, 400, "path_invalid"),
        ({"command": "true", "user": "admin"}, 400, "invalid_request"),
        ({"command": "true", "timeout": 0}, 400, "invalid_request"),
        ({"command": "true", "env": {"A": "x" * 200_000}}, 400, "invalid_request"),
        ({"command": "cat", "stdin": "x", "stdin_open": True}, 400, "invalid_request"),
        ({"command": "true", "nice": 5}, 400, "invalid_request"),
    ],
)
async def test_what_makes_no_sense_is_told_and_the_next_one_runs(http: httpx.AsyncClient, url: str, body: object, status: int, code: str) -> None:
    problem(await post(http, url + "/processes", body), status, code)
    assert (await http.post(url + "/processes", json={"command": "echo ok"})).json()["stdout"] == "ok\n"


async def test_unknown_processes(http: httpx.AsyncClient, url: str) -> None:
    unknown = f"{url}/processes/{'0' * 32}"
    for response in (
        await http.get(unknown + "/output"),
        await http.get(unknown + "/output", headers={"Accept": "text/event-stream"}),
        await http.post(unknown + "/stdin", content=b"x"),
        await http.delete(unknown + "/stdin"),
        await http.post(unknown + "/signal", json={"signal": 9}),
    ):
        problem(response, 404, "process_not_found")
    problem(await http.get(f"{url}/processes/xyz/output"), 400, "invalid_request")
    for signal in (0, 65, "NOPE", None, 1.5):
        problem(await http.post(unknown + "/signal", json={"signal": signal}), 400, "invalid_request")
    problem(await http.get(unknown + "/output?stdout_from=-1"), 400, "invalid_request")


async def one_process(http: httpx.AsyncClient, url: str) -> bool:
    return [info["running"] for info in (await http.get(url + "/processes")).json()["processes"]].count(True) == 1


async def no_process(http: httpx.AsyncClient, url: str) -> bool:
    return not any(info["running"] for info in (await http.get(url + "/processes")).json()["processes"])


@pytest.mark.real_guest
async def test_one_is_looked_at_and_waited_for(http: httpx.AsyncClient, url: str) -> None:
    body = {"command": "read x; echo $x; exit 3", "background": True, "stdin_open": True}
    process = (await http.post(url + "/processes", json=body)).json()["id"]
    known = (await http.get(f"{url}/processes/{process}")).json()
    assert (known["running"], known["stdin_open"], known["pty"], known["stdin_bytes"]) == (True, True, False, 0)
    assert known["duration_s"] >= 0
    assert (await http.get(f"{url}/processes/{process}/wait", params={"timeout": 0})).json() == {"process": process, "running": True, "exit": None}
    waiting = asyncio.create_task(http.get(f"{url}/processes/{process}/wait"))
    assert (await http.post(f"{url}/processes/{process}/stdin", content=b"in\n")).json() == {"stdin_bytes": 3}
    waited = (await waiting).json()
    assert (waited["running"], waited["exit"]["exit_code"]) == (False, 3)
    problem(await http.get(f"{url}/processes/{'0' * 32}/wait"), 404, "process_not_found")
    problem(await http.get(f"{url}/processes/{'0' * 32}"), 404, "process_not_found")
    problem(await http.get(f"{url}/processes/{process}/wait", params={"timeout": 1e9}), 400, "invalid_request")


async def test_a_write_that_is_sent_again_is_done_once(http: httpx.AsyncClient, url: str) -> None:
    process = (await http.post(url + "/processes", json={"argv": ["cat"], "background": True, "stdin_open": True})).json()["id"]
    for _ in range(2):
        written = await http.post(f"{url}/processes/{process}/stdin", params={"offset": 0}, content=b"once")
        assert written.json() == {"stdin_bytes": 4}
    missing = problem(await http.post(f"{url}/processes/{process}/stdin", params={"offset": 9}, content=b"late"), 409, "conflict")
    assert missing["fields"]["stdin_bytes"] == 4
    assert (await http.delete(f"{url}/processes/{process}/stdin")).status_code == 204
    assert output(await told(http, f"{url}/processes/{process}/output")) == b"once"


async def test_events_say_where_to_go_on(http: httpx.AsyncClient, url: str) -> None:
    process = (await http.post(url + "/processes", json={"command": "printf 'aé'; printf b >&2; printf c", "background": True})).json()["id"]
    await http.get(f"{url}/processes/{process}/wait")
    address, headers = f"{url}/processes/{process}/output", {"Accept": "text/event-stream"}
    whole = (await http.get(address, headers=headers)).text
    last = [line.removeprefix("id: ") for line in whole.splitlines() if line.startswith("id: ")][-1]
    assert last == "4-1"
    after = (await http.get(address, headers={**headers, "Last-Event-ID": "3-1"})).text
    assert '"data":"c"' in after
    assert '"data":"b"' not in after
    nothing = (await http.get(address, headers={**headers, "Last-Event-ID": "what"})).text
    assert nothing == whole, "an id that is none of ours says nothing"


@pytest.mark.real_guest
async def test_a_run_tells_which_files_it_changed(http: httpx.AsyncClient, url: str) -> None:
    await http.post(url + "/processes", json={"command": "echo 1 > /workspace/old; echo 1 > /workspace/same"})
    body = {"command": "mkdir -p /workspace/d; echo 2 > /workspace/old; echo new > /workspace/d/new; echo no > /tmp/else", "track": ["/workspace"]}
    done = (await http.post(url + "/processes", json=body)).json()
    assert [(file["path"], file["created"]) for file in done["files"]] == [("/workspace/d/new", True), ("/workspace/old", False)]
    assert (done["files"][0]["size_bytes"], done["files_more"]) == (4, False)
    name, ended = (await told(http, url + "/processes", {**body, "command": "echo 3 > /workspace/old"}))[-1]
    assert (name, [file["path"] for file in ended["files"]]) == ("exit", ["/workspace/old"])
    assert "files" not in (await told(http, url + "/processes", {"command": "true"}))[-1][1]
    assert (await http.get(url + "/processes")).json()["processes"][-1]["argv"][-1] == "true", "what looked is in no list"
    logged = (await http.get("/v1/executions")).json()["executions"]
    assert [run["files"] for run in logged] == [None, 1, 2, None], "and in no log"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.real_guest
async def test_run_has_its_result_if_its_change_report_fails(at: Bench, http: httpx.AsyncClient, url: str, accept: str) -> None:
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    body = {"command": "until [ -e /workspace/go ]; do sleep 0.05; done; echo important; exit 3", "track": ["/workspace"]}

    async def ask() -> str:
        return (await http.post(url + "/processes", json=body, headers={"Accept": accept})).text

    asking = asyncio.create_task(ask())
    await until(lambda: one_process(http, url))
    async with sandbox.connection() as link:
        (program,) = [info for info in await link.processes.list() if is_helper(info.argv)]
        await link.processes.signal(program.process, 9)
    await http.put(f"{url}/files/content", params={"path": "/workspace/go"}, content=b"")
    answer = await asking
    for said in ("important", '"exit_code":3', '"files":[]', '"files_more":true'):
        assert said in answer


async def test_disconnect_while_input_is_not_read_releases_the_input(
    at: Bench, http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "PROMPT_S", 0.2)
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    started = {"command": "sleep 4361", "background": True, "stdin_open": True}
    process = f"{url}/processes/{(await http.post(url + '/processes', json=started)).json()['id']}"
    writing = [asyncio.create_task(http.post(process + "/stdin", content=b"x" * 2_000_000)) for _ in range(2)]
    await until(lambda: sandbox.activity.held >= 2)
    problem(await http.delete(process + "/stdin"), 409, "conflict")
    for task in writing:
        task.cancel()
    await asyncio.wait(writing)
    await until(lambda: sandbox.activity.held == 0)
    assert (await http.delete(process + "/stdin")).status_code == 204, "the end is on its way"
    problem(await http.post(process + "/stdin", content=b"late"), 409, "conflict")
    assert (await http.get(process)).json()["running"]
