"""Tensorlake's routes on a service in the test's process: what its client never sends, whose sandboxes are whose, and what ends meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.builds import uploads
from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.templates import BuiltRoot, TemplateSettings
from tests.support.cases import cases
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/tensorlake"
NAMED = f"{HERE}/v1/namespaces/default"
_LONG_NAME = tarfile.TarInfo("long name of the next entry")
_LONG_NAME.type, _LONG_NAME.size = tarfile.GNUTYPE_LONGNAME, 2
RESOURCES = {"cpus": 1.0, "memory_mb": 512}


@pytest.fixture
async def box(at: SharedBench) -> str:
    return str((await at.sandbox()).id)


def refused(response: httpx.Response, status: int) -> str:
    """The message of a failure, which must be one in the vendor's shape."""
    assert response.headers["content-type"] == "application/json"
    told = ok(response, status)
    assert set(told) == {"error", "code", "request_id"}
    assert told["code"] == told["code"].upper()
    return str(told["error"])


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events; each must have its end."""
    assert text.endswith("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def test_unsupported_calls_are_refused_in_the_vendors_format(http: httpx.AsyncClient) -> None:
    for path in ("/v1/namespaces/default/applications", "/v1/namespaces/default/secrets"):
        for method in ("GET", "POST"):
            refused(await http.request(method, HERE + path, json={}), 501)
    for path in ("/platform/v1/sandbox-templates", "/platform/v1/sandbox-template-builds"):
        refused(await http.post(HERE + path, json={}), 501)
    for path in ("/v1/cron", "//v1/namespaces/default/sandboxes", "/sbx", "/documents"):
        refused(await http.get(HERE + path), 404)
    refused(await http.put(f"{NAMED}/sandboxes", json={}), 405)


async def test_default_namespace_has_both_addresses(http: httpx.AsyncClient, box: str) -> None:
    assert "'default'" in refused(await http.get(f"{HERE}/v1/namespaces/other/sandboxes"), 400)
    told = [ok(await http.get(f"{way}/sandboxes/{box}")) for way in (NAMED, HERE)]
    assert told[0] == told[1]
    assert [each["id"] for each in ok(await http.get(f"{HERE}/sandboxes"))["sandboxes"]] == [box]


@cases("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"nonsense": 1}', b'"x"', b"[" * 5000, b'{"timeout_secs": -1}', b"1"])
async def test_invalid_create_requests_respond_400(http: httpx.AsyncClient, content: bytes) -> None:
    for path in ("/sandboxes", "/sandbox-pools"):
        refused(await http.post(NAMED + path, content=content, headers={"Content-Type": "application/json"}), 400)
    assert ok(await http.get(f"{NAMED}/sandboxes")) == {"sandboxes": []}


async def test_runtime_is_at_the_root_if_a_header_names_the_sandbox(http: httpx.AsyncClient, box: str) -> None:
    headers = {"X-Tensorlake-Sandbox-Id": box}
    done = await http.post("/api/v1/processes/run", json={"command": "echo", "args": ["x"]}, headers=headers)
    assert [event for event in events(done.text) if "exit_code" in event] == [{"exit_code": 0, "reason": "exited"}]
    content = b"x" * (9 << 20)
    assert (await http.put("/api/v1/files", params={"path": "/tmp/tensorlake-root"}, content=content, headers=headers)).status_code == 204
    read = await http.get("/api/v1/files", params={"path": "/tmp/tensorlake-root"}, headers=headers)
    assert read.content == content
    assert (await http.delete("/api/v1/files", params={"path": "/tmp/tensorlake-root"}, headers=headers)).status_code == 204
    assert "X-Tensorlake-Sandbox-Id" in refused(await http.get("/api/v1/processes"), 400)
    refused(await http.get("/api/v1/processes/7", headers={"X-Tensorlake-Sandbox-Id": "sb-aaaa-aaaaaaaaaaaaaaaa"}), 404)
    refused(await http.get("/api/v1/processes/7", headers=headers), 404)
    assert (await http.get("/api/v1/nothing", headers=headers)).headers["content-type"] == "application/problem+json"


async def test_run_events_have_timestamped_lines_and_an_exit(http: httpx.AsyncClient, box: str) -> None:
    url = f"{HERE}/sbx/{box}/api/v1/processes/run"
    done = await http.post(url, json={"command": "sh", "args": ["-c", "printf 'a\\n\\nb'; echo e >&2"], "env": {}, "timeout": 9.5})
    assert done.headers["content-type"].startswith("text/event-stream")
    told = events(done.text)
    lines = [event for event in told if "line" in event]
    assert sorted((event["stream"], event["line"]) for event in lines) == [("stderr", "e"), ("stdout", ""), ("stdout", "a"), ("stdout", "b")]
    assert all(isinstance(event["timestamp"], float) for event in lines)
    assert told[-1] == {"exit_code": 0, "reason": "exited"}
    for body in ({"command": ""}, {"command": "x", "args": "y"}, {"command": "x", "timeout": 0}, {"command": "x", "user": 5}, {"command": "a\0"}, {}):
        refused(await http.post(url, json=body), 400)


async def test_disconnect_ends_the_process(http: httpx.AsyncClient, box: str) -> None:
    inside = f"{HERE}/sbx/{box}/api/v1"
    async with http.stream("POST", f"{inside}/processes/run", json={"command": "sleep", "args": ["1000"]}) as response:
        await anext(response.aiter_lines())

    async def is_dead() -> bool:
        return [each["status"] for each in ok(await http.get(f"{inside}/processes"))["processes"]] == ["signaled"]

    await until(is_dead)


@cases("reason", [ExitReason.OOM, ExitReason.KILLED])
async def test_end_of_the_sandbox_ends_the_run(http: httpx.AsyncClient, at: SharedBench, reason: ExitReason) -> None:
    sandbox = await at.sandbox()
    url = f"{HERE}/sbx/{sandbox.id}/api/v1/processes/run"
    async with http.stream("POST", url, json={"command": "sh", "args": ["-c", "echo there; printf cut; sleep 1000"]}) as response:
        lines = response.aiter_lines()
        while "there" not in await anext(lines):
            pass
        sandbox.request_end(Exit(reason))
        rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")]
    ends = [event for event in rest if "exit_code" in event or "signal" in event]
    assert ends == ([{"signal": 9, "reason": "oom_killed", "oom_killed": True}] if reason is ExitReason.OOM else [])
    refused(await http.post(url, json={"command": "true"}), 404)
    assert ok(await http.get(f"{NAMED}/sandboxes/{sandbox.id}"))["status"] == "terminated"


async def test_process_name_refers_to_the_running_process(http: httpx.AsyncClient, box: str) -> None:
    inside = f"{HERE}/sbx/{box}/api/v1"
    first = ok(await http.post(f"{inside}/processes", json={"command": "sleep", "args": ["1000"], "name": "one"}), 201)
    second = ok(await http.post(f"{inside}/processes", json={"command": "true", "name": "one"}), 201)
    await until_ended(http, inside, second["pid"])
    assert ok(await http.get(f"{inside}/processes/one"))["pid"] == first["pid"]
    assert (await http.delete(f"{inside}/processes/one")).status_code == 204
    await until_ended(http, inside, first["pid"])
    refused(await http.post(f"{inside}/processes/one/stdin", content=b"x"), 409)
    refused(await http.post(f"{inside}/processes/one/signal", json={"signal": 65}), 400)
    for word in ("two", "0", "999999999999999999999", "%2e%2e", "a" * 300):
        refused(await http.get(f"{inside}/processes/{word}"), 404)


async def until_ended(http: httpx.AsyncClient, inside: str, pid: int) -> None:
    async def has_ended() -> bool:
        return bool(ok(await http.get(f"{inside}/processes/{pid}"))["status"] != "running")

    await until(has_ended)


async def test_terminal_token_opens_only_its_terminal(at: SharedBench) -> None:
    _, secret = await at.service.api_keys.create("somebody")
    async with at.client(secret) as http:
        box, other = [ok(await http.post(f"{NAMED}/sandboxes", json={"image": "base"}))["sandbox_id"] for _ in range(2)]
        made = ok(await http.post(f"{HERE}/sbx/{box}/api/v1/pty", json={"command": "cat"}), 201)
        port = http.base_url.port
        way = f"/api/v1/pty/{made['session_id']}/ws"
        token, root = {"X-PTY-Token": made["token"]}, {"X-Tensorlake-Sandbox-Id": box}
        for path, headers in (
            (f"{HERE}/sbx/{box}{way}", token),
            (f"{HERE}/sbx/{box}{way}?token={made['token']}", {}),
            (way, {**token, **root}),
        ):
            async with connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers) as socket:
                await socket.send(b"\x02")
                await socket.send(b"\x00hello\n")
                shown = b""
                while b"hello" not in shown:
                    shown += (await socket.recv(decode=False))[1:]
        for path, headers, status in (
            (f"{HERE}/sbx/{box}{way}", {}, 401),
            (f"{HERE}/sbx/{box}{way}", {"X-PTY-Token": made["token"] + "x"}, 401),
            (f"{HERE}/sbx/{other}{way}", token, 401),
            (f"{HERE}/sbx/{box}/api/v1/tunnels/tcp", token, 401),
            (way, token, 401),
        ):
            with pytest.raises(InvalidStatus) as told:
                async with connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers):
                    pass
            assert told.value.response.status_code == status, path
        refused(await http.get(f"{HERE}/sbx/{box}/api/v1/processes", headers={**token, "Authorization": "Bearer none"}), 401)
        e2b = {"E2b-Sandbox-Id": box, "X-Access-Token": made["token"]}
        inside = await http.get("/e2b/files", params={"path": "/etc/passwd"}, headers={**e2b, "Authorization": "Bearer none"})
        assert inside.status_code == 401
        async with connect(f"ws://127.0.0.1:{port}{HERE}/sbx/{box}{way}", additional_headers=token) as socket:
            await socket.send(b"\x07nonsense")
            with suppress(ConnectionClosed):
                async for _ in socket:
                    pass
            assert socket.close_code == 1008


async def test_sandboxes_of_another_owner_are_not_found(at: SharedBench) -> None:
    _, owner = await at.service.api_keys.create("owner")
    _, other = await at.service.api_keys.create("other")
    async with at.client(other) as stranger:
        asked = {"image": "base", "name": "mine"}
        made = ok(await stranger.post(f"{NAMED}/sandboxes", json=asked, headers={"Authorization": f"Bearer {owner}"}))["sandbox_id"]
        for word in (made, "mine"):
            refused(await stranger.get(f"{NAMED}/sandboxes/{word}"), 404)
            refused(await stranger.delete(f"{HERE}/sandboxes/{word}"), 404)
            refused(await stranger.get(f"{HERE}/sbx/{word}/api/v1/health"), 404)
            refused(await stranger.get("/api/v1/health", headers={"X-Tensorlake-Sandbox-Id": word}), 404)
        pools, kind = f"{NAMED}/sandbox-pools", {"image": "base", "resources": RESOURCES, "warm_containers": 0}
        pool = ok(await stranger.post(pools, json=kind, headers={"Authorization": f"Bearer {owner}"}))["pool_id"]
        assert ok(await stranger.get(pools)) == {"pools": []}
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/sandboxes")):
            refused(await stranger.request(method, f"{pools}/{pool}{path}"), 404)


async def built(at: SharedBench, principal: Principal, name: str) -> None:
    """Give a key an image of its own."""
    records = at.node.template_builds
    _, build = await records.request(principal, name)
    begun = await records.begin(build)
    assert begun is not None
    await records.finish(begun, BuiltRoot((), 1, "", "base"), TemplateSettings())


async def test_pool_keeps_its_image_under_each_name(at: SharedBench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def digest(*_: object) -> str:
        return "0" * 64

    monkeypatch.setattr(MergedRootImages, "digest", digest)
    for image in ("first", "second"):
        await built(at, OPERATOR, image)
    body = {"image": "first:default", "resources": RESOURCES, "warm_containers": 0}
    pool = f"{NAMED}/sandbox-pools/" + ok(await http.post(f"{NAMED}/sandbox-pools", json=body))["pool_id"]
    for image in ("first:default", "first"):
        ok(await http.put(pool, json={**body, "image": image}))
    assert "image" in refused(await http.put(pool, json={**body, "image": "second"}), 400)
    for image in ("first", "second"):
        await at.node.template_builds.delete(OPERATOR, image)


async def test_claim_never_starts_another_image_of_the_same_name(at: SharedBench) -> None:
    record, key = await at.service.api_keys.create("renamed")
    async with at.client(key) as client:
        body = {"image": "base", "resources": RESOURCES, "warm_containers": 0}
        pool = f"{NAMED}/sandbox-pools/" + ok(await client.post(f"{NAMED}/sandbox-pools", json=body))["pool_id"]
        ok(await client.post(f"{pool}/sandboxes"))
        await built(at, Principal(record.id, "renamed"), "base")
        assert "is not that of pool" in refused(await client.post(f"{pool}/sandboxes"), 409)


async def test_invalid_pools_are_refused(http: httpx.AsyncClient) -> None:
    body = {"image": "base", "resources": RESOURCES, "warm_containers": 0}
    for wrong in ({"image": "nope", "resources": {}}, {"resources": {}, "warm_containers": 3, "max_containers": 2}):
        refused(await http.post(f"{NAMED}/sandbox-pools", json={**body, **wrong}), 400)


async def test_name_is_free_after_a_failed_create_and_after_an_end(http: httpx.AsyncClient) -> None:
    body = {"image": "base", "name": "one"}
    refused(await http.post(f"{NAMED}/sandboxes", json={**body, "resources": {"memory_mb": 1 << 30}}), 400)
    made = await asyncio.gather(*(http.post(f"{NAMED}/sandboxes", json=body) for _ in range(3)))
    assert sorted(each.status_code for each in made) == [200, 409, 409]
    assert (await http.delete(f"{NAMED}/sandboxes/one")).status_code == 204
    assert ok(await http.post(f"{NAMED}/sandboxes", json={**body, "wait": False}), 202)["name"] == "one"


async def test_quota_decides_about_unauthenticated_access(at: SharedBench, http: httpx.AsyncClient, box: str) -> None:
    public = {"allow_unauthenticated_access": True}
    _, secret = await at.service.api_keys.create("private")
    async with at.client(secret) as client:
        message = refused(await client.post(f"{NAMED}/sandboxes", json={"resources": RESOURCES, **public}), 403)
        assert "allow_unauthenticated_access" in message
        assert "`public_ports`" in message
        assert ok(await client.get(f"{NAMED}/sandboxes")) == {"sandboxes": []}
    shown = ok(await http.patch(f"{NAMED}/sandboxes/{box}", json={**public, "exposed_ports": [81, 80]}))
    assert (shown["allow_unauthenticated_access"], shown["exposed_ports"]) == (True, [81, 80])


@pytest.mark.parametrize("field", ["memory_mb", "disk_mb"])
async def test_huge_limits_are_refused(http: httpx.AsyncClient, field: str) -> None:
    content = f'{{"image": "base", "resources": {{"{field}": {"9" * 4_299}}}}}'
    assert "resources" in refused(await http.post(f"{NAMED}/sandboxes", content=content, headers={"Content-Type": "application/json"}), 400)


async def admitted(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """Admit a build."""
    build: dict[str, Any] = ok(await http.post(f"{HERE}/images/v4/builds", json={"kind": "dockerfile", "name": name, "build_args": {"A": "b"}}), 201)
    return build


async def test_values_of_a_build_cannot_be_replaced_by_an_upload(http: httpx.AsyncClient) -> None:
    build = (await admitted(http, "replaced"))["build_id"]
    for value in (b"[[]]", b"[" * 100_000):
        (await http.put(f"/v1/build-contexts/build-{build}", content=value)).raise_for_status()
        assert ok(await http.get(f"{HERE}/images/v4/builds/{build}"))["kind"] == "dockerfile"
    assert (await http.put(f"/v1/build-contexts/.value-build-{build}", content=b"[]")).status_code == 400


async def test_build_whose_values_cannot_be_stored_blocks_nothing(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(uploads, "MIN_FREE_BYTES", 1 << 60)
        refused(await http.post(f"{HERE}/images/v4/builds", json={"kind": "dockerfile", "name": "full"}), 507)
    await admitted(http, "full")


async def test_concurrent_admissions_of_an_image_make_one_build(http: httpx.AsyncClient) -> None:
    body = {"kind": "dockerfile", "name": "twice"}
    asked = await asyncio.gather(*(http.post(f"{HERE}/images/v4/builds", json=body, headers={"Idempotency-Key": "twice"}) for _ in range(4)))
    ids = {each.json().get("build_id") or each.json()["active_build_id"] for each in asked}
    assert (len(ids), {each.status_code for each in asked} <= {201, 409}) == (1, True)


@cases("content", [bytes(10_240), (_LONG_NAME.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 2_000 + bytes(1024)])
async def test_build_whose_context_has_no_dockerfile_has_failed(http: httpx.AsyncClient, content: bytes) -> None:
    build = await admitted(http, "no-dockerfile")
    link = build["context_upload"]["url"]
    (await http.put(link[link.index(HERE) :], content=content)).raise_for_status()
    digest = hashlib.sha256(content).hexdigest()
    refused(await http.post(f"{HERE}/images/v4/builds/{build['build_id']}/context/seal", json={"digest": digest}), 400)
    assert ok(await http.get(f"{HERE}/images/v4/builds/{build['build_id']}"))["status"] == "failed"
    another = await admitted(http, "no-dockerfile")
    ok(await http.post(f"{HERE}/images/v4/builds/cancel", json={"build_id": another["build_id"]}))
