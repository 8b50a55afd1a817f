"""E2B's control plane and code interpreter on a service in the test's process: what its clients never send, and what ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from sandlot.core.resources import drivers
from sandlot.model.access import OPERATOR
from sandlot.model.templates import BuildStatus
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/e2b"


def refused(response: httpx.Response, status: int) -> str:
    """The message of a failure, which must be one in the vendor's shape."""
    assert response.headers["content-type"] == "application/json"
    told = ok(response, status)
    assert set(told) == {"code", "message"}
    assert told["code"] == status
    return str(told["message"])


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    """What code gave; there is no line that is none."""
    assert response.status_code == 200, response.text
    assert response.content.endswith(b"\n")
    return [json.loads(line) for line in response.content.splitlines()]


@pytest.fixture
async def made(http: httpx.AsyncClient) -> dict[str, Any]:
    told: dict[str, Any] = ok(await http.post(f"{HERE}/v2/sandboxes", json={"templateID": "base", "metadata": {"a": "b"}}), 201)
    return told


@pytest.fixture
def inside(made: dict[str, Any]) -> dict[str, str]:
    return {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49999"}


async def test_sandboxes_of_other_apis_are_visible(http: httpx.AsyncClient, at: SharedBench) -> None:
    body = {"template": "base", "persistent": True, "on_timeout": "hibernate", "limits": {"pids": 32768}, "metadata": {"x": "y"}}
    id_ = ok(await http.post("/v1/sandboxes", json=body), 201)["id"]
    (listed,) = ok(await http.get(f"{HERE}/v2/sandboxes"))
    assert (listed["sandboxID"], listed["endAt"], listed["metadata"], listed["templateID"]) == (id_, "9999-12-31T00:00:00.000Z", {"x": "y"}, "base")
    assert ok(await http.get(f"{HERE}/sandboxes/{id_}"))["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
    assert ok(await http.post(f"{HERE}/v2/sandboxes/{id_}/connect", json={"timeout": 10}))["sandboxID"] == id_
    assert at.sandboxes.find(id_, OPERATOR).deadline.expires_at is None  # connecting shortens nothing


async def test_malformed_requests_are_refused_in_the_vendors_format(http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str]) -> None:
    here = f"{HERE}/sandboxes/{made['sandboxID']}"
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"templateID": 1}', b'"x"', b"[" * 5000):
        for path in (f"{HERE}/v2/sandboxes", f"{HERE}/sandboxes", f"{here}/timeout", f"{HERE}/execute"):
            refused(await http.post(path, content=content, headers={"Content-Type": "application/json", **inside}), 400)
    wrong: Sequence[dict[str, Any]] = (
        *({"timeout": -1}, {"timeout": 1e9}, {"timeout": "1"}, {"envVars": {"a=b": "c"}}, {"envVars": {"a": "\0"}}, {"metadata": {"sandlot.x": "y"}}),
        *({"metadata": {"a": "b" * 20000}}, {"surplus": 1}, {"network": {"surplus": 1}}, {"autoResume": {}}, {"volumeMounts": [{"name": "v"}]}),
    )
    for asked in wrong:
        refused(await http.post(f"{HERE}/v2/sandboxes", json={"templateID": "base", **asked}), 400)
    for path, body in (
        *(("timeout", {}), ("timeout", {"timeout": -1}), ("refreshes", {"duration": 3601}), ("fork", {"count": 0}), ("fork", {"count": 21})),
        *(("snapshots", {"name": "a/b:c"}), ("snapshots", {"x": 1}), ("connect", {}), ("connect", {"timeout": 1e9})),
    ):
        refused(await http.post(f"{here}/{path}", json=body), 400)
    for query in (
        "state=gone",
        "limit=0",
        "limit=1001",
        "nextToken=x",
        "order=up",
        "metadata=a",
        "startedAfter=x",
        "startedAfter=2026-01-01T00:00:00",
        "x=1",
    ):
        refused(await http.get(f"{HERE}/v2/sandboxes?{query}"), 400)
    for query in ("limit=0", "nextToken=x", "x=1"):
        refused(await http.get(f"{HERE}/snapshots?{query}"), 400)
    refused(await http.get(f"{HERE}/sandboxes/metrics"), 400)
    refused(await http.get(f"{HERE}/sandboxes/metrics?sandbox_ids={','.join(['x'] * 101)}"), 400)
    refused(await http.get(f"{here}/metrics?start=-1"), 400)
    refused(await http.get(f"{HERE}/v2/sandboxes/{made['sandboxID']}/logs?level=loud"), 400)
    refused(await http.patch(f"{HERE}/v2/sandboxes", json={}), 405)
    refused(await http.get(f"{HERE}/nothing"), 404)
    refused(await http.post(f"{HERE}/execute", json={"code": "1"}), 400)  # of which sandbox


async def test_paused_sandbox_refuses_code_and_is_not_resumed_by_a_new_timeout(
    http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str]
) -> None:
    here = f"{HERE}/sandboxes/{made['sandboxID']}"
    ok(await http.post(f"{here}/pause", json={}), 204)
    assert "was not found" in refused(await http.post(f"{HERE}/execute", json={"code": "1"}, headers=inside), 502)
    ok(await http.post(f"{here}/timeout", json={"timeout": 50}), 204)
    ok(await http.post(f"{here}/refreshes"), 204)
    assert [each["state"] for each in ok(await http.get(f"{HERE}/v2/sandboxes"))] == ["paused"]


async def test_failed_pause_leaves_the_sandbox_running(
    http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str], at: SharedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = at.sandboxes.find(made["sandboxID"], OPERATOR)
    monkeypatch.setattr(drivers, "STEP_TIMEOUT_S", 1.0)
    for asked, status in (({"requireHealthyGuest": True}, 503), ({}, 408)):
        assert sandbox.instance is not None
        await sandbox.instance.pause()  # behind the service's back: it answers nothing
        answer = await http.post(f"{HERE}/sandboxes/{sandbox.id}/pause", json=asked)
        refused(answer, status)
        assert ("retry-after" in answer.headers) == (status == 503)
        assert sandbox.state == "running"
        assert lines(await http.post(f"{HERE}/execute", json={"code": "1 + 1"}, headers=inside))[-1]["text"] == "2"


async def test_ended_sandbox_is_not_found(http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str]) -> None:
    here = f"{HERE}/sandboxes/{made['sandboxID']}"
    ok(await http.delete(here), 204)
    for method, path, body in (
        *(("DELETE", here, None), ("GET", here, None), ("POST", f"{here}/timeout", {"timeout": 5}), ("POST", f"{here}/pause", {})),
        *(
            ("POST", f"{here}/connect", {"timeout": 5}),
            ("POST", f"{here}/snapshots", {}),
            ("POST", f"{here}/fork", {}),
            ("GET", f"{here}/metrics", None),
        ),
        *(("POST", f"{here}/resume", {}), ("POST", f"{here}/refreshes", {}), ("PUT", f"{here}/network", {}), ("GET", f"{here}/logs", None)),
    ):
        refused(await http.request(method, path, json=body), 404)
    for method, path in (
        ("POST", "execute"),
        ("GET", "contexts"),
        ("POST", "contexts"),
        ("DELETE", "contexts/default"),
        ("POST", "contexts/x/restart"),
    ):
        assert "was not found" in refused(
            await http.request(method, f"{HERE}/{path}", json={"code": "1"} if path == "execute" else {}, headers=inside), 502
        )
    assert ok(await http.get(f"{HERE}/v2/sandboxes")) == []


async def test_no_character_is_a_line_break(http: httpx.AsyncClient, inside: dict[str, str]) -> None:
    text = "a\u2028b\x85c\u2029é"
    for code, kind, field, expected in (
        (f"print({text!a})", "stdout", "text", f"{text}\n"),
        (f"raise ValueError({text!a})", "error", "value", text),
        (f"{{{text!a}: 1}}", "result", "text", repr({text: 1})),
    ):
        answer = await http.post(f"{HERE}/execute", json={"code": code}, headers=inside)
        told = [json.loads(line) for line in answer.text.splitlines()]
        assert [each[field] for each in told if each["type"] == kind] == [expected]


async def test_disconnect_interrupts_the_code(http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str]) -> None:
    code = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)"
    async with http.stream("POST", f"{HERE}/execute", json={"code": code}, headers=inside) as answer:
        async for line in answer.aiter_lines():
            if json.loads(line)["type"] == "stdout":
                break

    async def idle() -> bool:
        found = ok(await http.get(f"/v1/sandboxes/{made['sandboxID']}/contexts"))["contexts"]
        return all(each["state"] == "idle" for each in found)

    await until(idle)


async def test_missing_default_context_is_created_and_its_code_runs_once(
    http: httpx.AsyncClient, made: dict[str, Any], inside: dict[str, str]
) -> None:
    for count in (1, 2):
        assert lines(await http.post(f"{HERE}/execute", json={"code": "1 + 1"}, headers=inside))[-1]["text"] == "2"
        assert len(ok(await http.get("/v1/executions", params={"sandbox": made["sandboxID"]}))["executions"]) == count
        ok(await http.delete(f"{HERE}/contexts/default", headers=inside), 204)
    assert "context" in refused(await http.post(f"{HERE}/execute", json={"code": "1", "context_id": "ctx-0000000000000001"}, headers=inside), 404)


async def test_token_opens_only_its_sandbox_if_headers_name_several(at: SharedBench) -> None:
    _, secret = await at.service.api_keys.create("owner")
    async with at.client() as http:
        key = {"X-API-KEY": secret}
        own, other = [ok(await http.post(f"{HERE}/v2/sandboxes", json={"templateID": "base"}, headers=key), 201) for _ in range(2)]
        context = ok(await http.post(f"{HERE}/contexts", json={}, headers={**key, "E2b-Sandbox-Id": own["sandboxID"]}))["id"]
        ids = [("E2b-Sandbox-Id", other["sandboxID"]), ("E2b-Sandbox-Id", own["sandboxID"])]
        for name in ("X-Access-Token", "E2B-Traffic-Access-Token"):
            for headers in (ids, ids[::-1]):
                answer = await http.get(f"{HERE}/contexts", headers=[*headers, (name, own["envdAccessToken"])])
                assert answer.status_code == 401 or answer.json()[-1]["id"] == context
            alone = await http.get(f"{HERE}/contexts", headers={name: own["envdAccessToken"]})
            assert alone.json()[-1]["id"] == context, "clients before 2.31 send nothing else after connecting"
            changed = own["envdAccessToken"].replace(own["sandboxID"], other["sandboxID"])
            refused(await http.get(f"{HERE}/contexts", headers={name: changed}), 401)
        ids_alone = {"E2b-Sandbox-Id": own["sandboxID"], "X-Access-Token": own["envdAccessToken"]}
        refused(await http.get(f"{HERE}/v2/sandboxes", headers=ids_alone), 401)
        refused(await http.delete(f"{HERE}/sandboxes/{own['sandboxID']}", headers=ids_alone), 401)
        await at.service.api_keys.revoke("owner")
        refused(await http.get(f"{HERE}/contexts", headers=ids_alone), 401)


async def test_network_update_opens_and_closes_ports_only_by_name(http: httpx.AsyncClient, made: dict[str, Any]) -> None:
    here, seen = f"{HERE}/sandboxes/{made['sandboxID']}", []
    for change in ({}, {"denyOut": ["0.0.0.0/0"]}, {"allowPublicTraffic": False, "maskRequestHost": "a"}, {}, {"allowPublicTraffic": True}):
        ok(await http.put(f"{here}/network", json=change), 204)
        shown = ok(await http.get(here))["network"]
        seen.append((shown["allowPublicTraffic"], shown.get("maskRequestHost")))
    assert seen == [(True, None), (True, None), (False, "a"), (False, "a"), (True, "a")]
    assert "example.com" in refused(await http.put(f"{here}/network", json={"maskRequestHost": "a b"}), 400)


@pytest.mark.parametrize("field", ["cpuCount", "memoryMB", "minFreeDiskMb"])
@pytest.mark.parametrize("number", [str(10**400), "9" * 4_299])  # no float, and too long for Python to print a product
async def test_huge_limits_of_a_build_are_refused(http: httpx.AsyncClient, field: str, number: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = await http.post("/e2b/v3/templates", content=f'{{"name": "a", "{field}": {number}}}', headers=headers)
    assert response.status_code == 400, response.text


async def test_build_with_an_invalid_step_has_failed(at: SharedBench, http: httpx.AsyncClient) -> None:
    asked = ok(await http.post("/e2b/v3/templates", json={"name": "invalid-step"}), 202)
    url = f"/e2b/v2/templates/{asked['templateID']}/builds/{asked['buildID']}"
    response = await http.post(url, json={"fromTemplate": "base", "steps": [{"type": "NONSENSE", "args": []}]})
    assert response.status_code == 400, response.text
    build = await at.service.node.template_builds.get_build(OPERATOR, asked["buildID"])
    assert (build.status, "NONSENSE" in build.error) == (BuildStatus.FAILED, True)
