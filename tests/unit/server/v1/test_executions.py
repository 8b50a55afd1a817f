"""Outcomes of runs over HTTP, in responses, streams and the execution log."""

from __future__ import annotations

import httpx

from tests.support.http import told


async def test_timeout_of_every_kind_of_run_is_reported_alike(http: httpx.AsyncClient, url: str) -> None:
    slow = {"command": "sleep 60", "timeout": 0.05}
    late = {"timed_out": True, "exit_code": 124, "signal": 9}

    command = (await http.post(f"{url}/processes", json=slow)).json()
    streamed = (await told(http, f"{url}/processes", slow))[-1][1]
    started = (await http.post(f"{url}/processes", json={**slow, "background": True})).json()["id"]
    waited = (await http.get(f"{url}/processes/{started}/wait")).json()["exit"]
    output = (await http.get(f"{url}/processes/{started}/output")).json()["exit"]
    program = (await http.post("/v1/programs", json={"language": "bash", "code": "sleep 60", "template": "base", "timeout": 0.05})).json()
    for outcome in (command, streamed, waited, output, program):
        assert {name: outcome[name] for name in late} == late
    (listed,) = [each for each in (await http.get(f"{url}/processes")).json()["processes"] if each["id"] == started]
    assert (listed["exit_code"], listed["signal"], listed["reason"]) == (124, 9, "timeout")

    cell = (await http.post(f"{url}/code", json={"code": "import time\ntime.sleep(60)", "timeout": 0.05})).json()
    assert (cell["status"], cell["timed_out"]) == ("timeout", True)
    logged = (await http.get("/v1/executions")).json()["executions"]
    assert [(run["status"], run["timed_out"], run["exit_code"]) for run in logged] == [("timeout", True, None), *[("timeout", True, 124)] * 4]


async def test_run_that_ends_in_time_has_not_timed_out(http: httpx.AsyncClient, url: str) -> None:
    done = (await http.post(f"{url}/processes", json={"command": "exit 3"})).json()
    assert (done["timed_out"], done["exit_code"], done["signal"]) == (False, 3, None)
    killed = (await http.post(f"{url}/processes", json={"command": "kill -9 $$"})).json()
    assert (killed["timed_out"], killed["exit_code"], killed["signal"]) == (False, 137, 9)
    assert [run["timed_out"] for run in (await http.get("/v1/executions")).json()["executions"]] == [False, False]


async def test_results_and_exception_of_code_are_read_by_the_id_of_the_run(http: httpx.AsyncClient, url: str) -> None:
    done = (await http.post(f"{url}/code", json={"code": "6 * 7"})).json()
    failed = (await http.post(f"{url}/code", json={"code": "1 / 0"})).json()
    command = (await http.post(f"{url}/processes", json={"command": "true"})).json()
    logged = {run["id"]: run for run in (await http.get("/v1/executions")).json()["executions"]}

    found = (await http.get(f"/v1/executions/{done['id']}/results")).json()
    assert found == {"id": done["id"], "execution_count": done["execution_count"], "results": done["results"], "results_omitted": 0, "error": None}
    assert logged[done["id"]]["results_bytes"] > 0
    assert logged[done["id"]]["execution_count"] == done["execution_count"]
    assert (await http.get(f"/v1/executions/{failed['id']}/results")).json()["error"] == failed["error"]
    nothing = (await http.get(f"/v1/executions/{command['id']}/results")).json()
    assert (nothing["results"], nothing["error"], nothing["execution_count"]) == ([], None, None)
    assert logged[command["id"]]["results_bytes"] == 0


async def test_results_of_an_unknown_run_are_not_found(http: httpx.AsyncClient) -> None:
    for id_ in ("f" * 32, "x", "..%2f.."):
        assert (await http.get(f"/v1/executions/{id_}/results")).status_code == 404
