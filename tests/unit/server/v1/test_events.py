"""What happened and what ran, over HTTP; what is counted, for operators; and what the log of the service never says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from sandlot.model.access import OPERATOR
from tests.support.http import problem
from tests.support.service import Bench, client, tcp_client
from tests.support.until import until

EVENTS = {"Accept": "text/event-stream"}


async def lines(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            yield line


async def test_events_are_paged_and_followed_from_a_number(at: Bench, http: httpx.AsyncClient) -> None:
    sandboxes = [await at.sandbox() for _ in range(2)]
    await at.sandboxes.kill(OPERATOR, sandboxes[0].id)
    page = (await http.get("/v1/events", params={"limit": 2})).json()
    assert [(event["sequence"], event["type"]) for event in page["events"]] == [(1, "sandbox.created"), (2, "sandbox.created")]
    assert (page["next_cursor"], page["last"]) == ("2", 2)
    rest = (await http.get("/v1/events", params={"cursor": page["next_cursor"]})).json()
    assert [event["type"] for event in rest["events"]] == ["sandbox.ended"]
    assert rest["next_cursor"] is None
    assert rest["events"][0]["data"]["reason"] == "killed"
    one = (await http.get("/v1/events", params={"sandbox": sandboxes[1].id})).json()
    assert [event["sequence"] for event in one["events"]] == [2]
    for headers, first in (({}, 3), ({"Last-Event-ID": "1"}, 1)):
        async with http.stream("GET", "/v1/events", headers={**EVENTS, **headers}) as response:
            told = lines(response)
            assert response.headers["content-type"].startswith("text/event-stream")
            assert [await anext(told) for _ in range(3)] == [f"id: {first}", "event: position", f'data: {{"after":{first}}}']
            if first == 1:
                assert [await anext(told) for _ in range(2)] == ["id: 2", "event: sandbox.created"]
            else:
                waiting = asyncio.create_task(at.sandboxes.kill(OPERATOR, sandboxes[1].id))
                assert [await anext(told) for _ in range(2)] == ["id: 4", "event: sandbox.ended"]
                assert json.loads((await anext(told)).removeprefix("data: "))["sandbox"] == sandboxes[1].id
                await waiting
    for wrong in ({"after": "-1"}, {"after": "x"}, {"cursor": "x"}, {"limit": "0"}, {"limit": "1001"}, {"after": str(2**63)}):
        problem(await http.get("/v1/events", params=wrong), 400, "invalid_request")
    problem(await http.get("/v1/events", headers={**EVENTS, "Last-Event-ID": "x"}), 400, "invalid_request")


async def test_events_are_listed_newest_first(at: Bench, http: httpx.AsyncClient) -> None:
    sandboxes = [await at.sandbox() for _ in range(3)]
    for sandbox in sandboxes[:2]:
        await at.sandboxes.kill(OPERATOR, sandbox.id)
    found: list[int] = []
    cursor = ""
    for size in (2, 2, 1):
        page = (await http.get(f"/v1/events?order=desc&limit=2{cursor}")).json()
        assert len(page["events"]) == size
        assert page["last"] == page["events"][0]["sequence"]
        found += [event["sequence"] for event in page["events"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert (found, cursor) == ([5, 4, 3, 2, 1], "&cursor=None")
    one = (await http.get("/v1/events", params={"order": "desc", "sandbox": sandboxes[0].id})).json()
    assert [event["sequence"] for event in one["events"]] == [4, 1]
    none = (await http.get("/v1/events", params={"order": "desc", "cursor": "1"})).json()
    assert none == {"events": [], "next_cursor": None, "last": 0}
    for wrong in ({"order": "down"}, {"order": "desc", "after": "1"}, {"order": "desc", "cursor": "x"}):
        problem(await http.get("/v1/events", params=wrong), 400, "invalid_request")
    problem(await http.get("/v1/events", params={"order": "desc"}, headers=EVENTS), 400, "invalid_request")


async def test_whoever_follows_is_told_that_the_service_stops(at: Bench) -> None:
    told: list[str] = []
    async with client(at.service) as http, http.stream("GET", "/v1/events", headers=EVENTS) as response:
        at.service.stop.set()
        told += [line async for line in lines(response)]
    assert told[-2] == "event: failure"
    failure = json.loads(told[-1].removeprefix("data: "))
    assert (failure["code"], failure["retryable"], failure["fields"]["after"]) == ("service_unavailable", True, 0)


async def test_what_ran_is_paged_newest_first(http: httpx.AsyncClient, url: str) -> None:
    ran = [(await http.post(f"{url}/processes", json={"command": f"echo {number}"})).json()["id"] for number in range(3)]
    ran.append((await http.post(f"{url}/code", json={"code": "print('x')"})).json()["id"])
    page = (await http.get("/v1/executions", params={"limit": 3})).json()
    assert [run["id"] for run in page["executions"]] == ran[:0:-1]
    rest = (await http.get("/v1/executions", params={"limit": 3, "cursor": page["next_cursor"]})).json()
    assert ([run["id"] for run in rest["executions"]], rest["next_cursor"]) == ([ran[0]], None)
    assert (await http.get("/v1/executions", params={"sandbox": url.rpartition("/")[2]})).json()["executions"] == page["executions"] + rest[
        "executions"
    ]
    assert (await http.get("/v1/executions", params={"sandbox": "sb-aaaa-aaaaaaaaaaaaaaaa"})).json()["executions"] == []
    one = (await http.get(f"/v1/executions/{ran[0]}")).json()
    assert (one["argv"], one["stdout"], one["status"], one["exit_code"]) == (["/bin/bash", "-c", "echo 0"], "0\n", "exited", 0)
    problem(await http.get(f"/v1/executions/{'0' * 32}"), 404, "execution_not_found")
    problem(await http.get("/v1/executions", params={"cursor": "x"}), 400, "invalid_request")


async def test_metrics_are_for_operators_and_contain_no_name_of_a_client(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    await http.get(f"{url}/files", params={"path": "/secret-path"})
    await http.get("/v1/nothing/secret-route")
    await http.get("/agentsandbox/v1/files")
    told = await http.get("/metrics")
    assert (told.status_code, told.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    for line in (
        'sandlot_http_requests_total{method="GET",route="/v1/sandboxes/{sandbox}/files",status="404"} 1.0',
        'sandlot_http_requests_total{method="GET",route="unmatched",status="404"} 1.0',
        'sandlot_failures_total{code="path_not_found"} 1.0',
        'sandlot_failures_total{code="not_found"} 1.0',
        'sandlot_sandboxes{state="running"} 1.0',
        'sandlot_creates_total{isolation="gvisor",outcome="ok",source="template"} 1.0',
    ):
        assert line in told.text.splitlines(), told.text
    assert "agentsandbox/v1/files" in told.text
    for hidden in (url.rpartition("/")[2], "secret-path", "secret-route"):
        assert hidden not in told.text
    _, operator = await at.service.api_keys.create("op", operator=True)
    _, plain = await at.service.api_keys.create("plain")
    async with tcp_client(at.service) as tcp:
        assert (await tcp.get("/healthz")).status_code == 200
        problem(await tcp.get("/metrics"), 401, "unauthenticated")
        problem(await tcp.get("/metrics", headers={"X-API-Key": plain}), 403, "forbidden")
        assert (await tcp.get("/metrics", headers={"X-API-Key": operator})).status_code == 200


async def test_log_lines_of_a_request_have_its_id_and_no_secret(http: httpx.AsyncClient, url: str) -> None:
    secret = "hunter2-in-the-clear"  # noqa: S105 - what is looked for
    ids = [f"req-{number}" for number in range(10)]
    calls = [
        ("POST", "/v1/sandboxes", {"template": "base", "limits": {"pids": 32768}, "env": {"TOKEN": secret}, "metadata": {"k": secret}}),
        ("POST", "/v1/sandboxes", {"template": secret}),
        ("POST", f"{url}/code", {"code": f"print({secret!r}); raise ValueError({secret!r})", "env": {"A": secret}}),
        ("POST", f"{url}/code", {"code": secret, "language": secret}),
        ("POST", f"{url}/processes", {"command": f"echo {secret}; exit 1", "env": {"A": secret}, "stdin": secret}),
        ("POST", f"{url}/processes", {"argv": [secret]}),
        ("POST", f"{url}/processes", {"command": f"echo {secret}", "background": True}),
        ("GET", f"{url}/files/content?path=/{secret}", None),
        ("PUT", f"{url}/files/content?path=/tmp/x&user={secret}", None),
        ("POST", f"/v1/files?filename={secret}", {"content": secret}),
    ]
    with capture_logs(processors=[merge_contextvars]) as entries:
        for id_, (method, path, body) in zip(ids, calls, strict=True):
            headers = {"X-Request-ID": id_, "X-API-Key": secret, "Authorization": f"Bearer {secret}", "Cookie": secret}
            await http.request(method, path, json=body, headers=headers)
        await until(lambda: sum(entry["event"] == "request" for entry in entries) >= len(calls))
    assert [entry["request"] for entry in entries if entry["event"] == "request"] == ids
    assert [entry["request"] for entry in entries if entry["event"] == "sandbox.created"] == [ids[0]]
    assert secret not in json.dumps(entries, default=str)
    assert any(entry.get("code") == "template_not_found" for entry in entries)


async def test_log_is_read_and_followed_past_the_end_of_the_sandbox(http: httpx.AsyncClient, at: Bench) -> None:
    sandbox = await at.sandbox()

    async def run(command: str) -> None:
        await http.post(f"/v1/sandboxes/{sandbox.id}/processes", json={"command": command})

    await run("echo one; echo two >&2")
    url = f"/v1/sandboxes/{sandbox.id}/logs"
    told = (await http.get(url)).json()
    assert [(entry["stream"], entry["text"], entry["omitted_bytes"], entry["running"]) for entry in told["entries"]] == [
        ("stdout", "one\n", 0, False),
        ("stderr", "two\n", 0, False),
    ]
    assert told["more"] is False
    assert [entry["stream"] for entry in (await http.get(url, params={"stream": "stderr"})).json()["entries"]] == ["stderr"]
    assert (await http.get(url, params={"stream": "all"})).status_code == 400
    events = []
    async with http.stream("GET", url, headers={"Accept": "application/x-ndjson"}, timeout=30) as answer:
        lines = answer.aiter_lines()
        events += [json.loads(await anext(lines)) for _ in range(2)]
        await run("echo three")
        events += [json.loads(await anext(lines)) for _ in range(2)]
        await http.delete(f"/v1/sandboxes/{sandbox.id}")
        rest = [json.loads(line) async for line in lines]
        assert [event for event in rest if event["event"] != "keep-alive"] == [{"event": "ended", "data": {"sandbox": sandbox.id}}]
    assert [event["event"] for event in events] == ["entry", "entry", "output", "over"]
    assert events[2]["data"] == {"execution": events[3]["data"]["execution"], "stream": "stdout", "text": "three\n"}
    assert len((await http.get(url)).json()["entries"]) == 3
    async with http.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=30) as answer:
        assert (await answer.aread()).decode().count("event: entry") == 3
    assert (await http.get("/v1/sandboxes/sb-none/logs")).status_code == 404
