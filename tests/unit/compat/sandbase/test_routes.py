"""Sandbase's routes on a service in the test's process: every field, what its callers never send, whose sandboxes are whose, and what ends."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from sandlot.compat import common
from sandlot.compat.sandbase import translate
from sandlot.model.access import OPERATOR, Quota
from tests.support.cases import cases
from tests.support.until import until
from tests.unit.compat.shared import SharedBench, ok

HERE = "/sandbase"


@pytest.fixture
async def box(at: SharedBench) -> str:
    """One that was made elsewhere: what the guest of the driver without isolation needs is said there."""
    return str((await at.sandbox()).id)


def refused(response: httpx.Response, status: int) -> str:
    assert response.headers["content-type"] == "application/json"
    told = ok(response, status)
    assert set(told) == {"code", "message", "error"}
    assert told["code"] == status
    return str(told["message"])


def gone(response: httpx.Response) -> None:
    assert refused(response, 404) == "sandbox not found"


async def run(http: httpx.AsyncClient, box: str, *argv: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    done: dict[str, Any] = ok(await http.post(f"{HERE}/sandboxes/{box}/processes", json={"cmd": argv[0], "args": list(argv[1:]), **more}))
    return done


@cases(
    "body",
    [
        *(
            {},
            {"templateID": 1},
            {"templateID": "base", "timeout": "1"},
            {"templateID": "base", "timeout": 3601},
            {"templateID": "base", "timeout": 0},
        ),
        *({"templateID": "base", "surplus": 1}, {"templateID": "base", "metadata": {"a": 1}}, {"templateID": "base", "envVars": {"A=B": "x"}}),
        *({"templateID": "base", "metadata": {"sandlot.api": "x"}}, [], None, "x", {"templateID": "\ud800"}, {"templateID": "base", "envVars": [1]}),
    ],
)
async def test_invalid_create_requests_create_nothing(http: httpx.AsyncClient, at: SharedBench, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    refused(await http.post(f"{HERE}/sandboxes", content=json.dumps(body), headers=headers), 400)
    assert at.sandboxes.held == 0


async def test_unenforced_options_are_refused_with_the_reason(http: httpx.AsyncClient) -> None:
    assert "unknown template: opencode." in refused(await http.post(f"{HERE}/sandboxes", json={"templateID": "opencode"}), 400)


async def test_command_that_cannot_start_or_times_out_responds_502(http: httpx.AsyncClient, box: str) -> None:
    url = f"{HERE}/sandboxes/{box}/processes"
    for asked in ({"cmd": "no-such-program"}, {"cmd": "/etc/passwd"}, {"cmd": "true", "cwd": "/no/such/folder"}):
        refused(await http.post(url, json=asked), 502)
    late = ok(await http.post(url, json={"cmd": "sh", "args": ["-c", "echo a; sleep 60"], "timeout": 1}), 502)
    assert (late["code"], late["stdout"]) == (502, "a\n")
    assert "1 seconds" in late["message"]
    for wrong in (
        {},
        {"cmd": ""},
        {"cmd": "true", "timeout": 0},
        {"cmd": "true", "timeout": 3601},
        {"cmd": "a\0"},
        {"cmd": "true", "cwd": "a\0b"},
    ):
        refused(await http.post(url, json=wrong), 400)


async def test_disconnect_kills_the_command(http: httpx.AsyncClient, box: str) -> None:
    asked = {"cmd": "sleep", "args": ["1000"]}
    with pytest.raises(httpx.ReadTimeout):
        await http.post(f"{HERE}/sandboxes/{box}/processes", json=asked, timeout=1)

    async def none_left() -> bool:
        listed = (await http.get(f"/v1/sandboxes/{box}/processes")).json()["processes"]
        return not any(each["running"] for each in listed)

    await until(none_left)


async def beside(http: httpx.AsyncClient, box: str) -> list[str]:
    """What uploads have left."""
    listed = ok(await http.get(f"{HERE}/sandboxes/{box}/files", params={"path": "/tmp"}))
    return [each["name"] for each in listed if each["name"].startswith((".sandlot-upload", "never"))]


FORM = {"Content-Type": "multipart/form-data; boundary=bound"}


def form(*parts: tuple[str, str | None, bytes]) -> bytes:
    made = b""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        made += f'--bound\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return made + b"--bound--\r\n"


@cases(
    "content",
    [
        form(("file", "x", b"x")),
        form(("file", "x", b"x"), ("path", None, b"a\0b")),
        form(("path", None, b"/tmp/never"), ("other", "x", b"x")),
        form(("path", None, b"/" + b"x" * 10_000), ("file", "x", b"x")),
        form(("path", None, b"\xff"), ("file", "x", b"x")),
        form(("path", "named", b"/tmp/never"), ("file", "x", b"x")),
        form(("path", None, b"/tmp/never"), ("file", "x", b"x"))[:-4],
        b"",
        b"nonsense",
    ],
)
async def test_malformed_upload_leaves_no_file(http: httpx.AsyncClient, box: str, content: bytes) -> None:
    refused(await http.post(f"{HERE}/sandboxes/{box}/files", content=content, headers=FORM), 400)
    assert await beside(http, box) == []


async def test_file_in_json_counts_against_the_quota_for_uploads(at: SharedBench) -> None:
    _, secret = await at.service.api_keys.create("small", quota=Quota(upload_bytes=8))
    async with at.client(secret) as http:
        box = (await http.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})).json()["id"]
        file = {"path": "/workspace/x", "content": base64.b64encode(b"123456789").decode()}
        refused(await http.post(f"{HERE}/sandboxes/{box}/filesystem", json=file), 429)


async def test_folder_listing_is_complete_up_to_a_limit(at: SharedBench, http: httpx.AsyncClient, box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = at.driver.guest(at.sandboxes.find(box, OPERATOR).ref)
    for number in range(1200):
        guest.files.write(f"/workspace/many/{number:04}", b"", 1000)
    url, where = f"{HERE}/sandboxes/{box}/filesystem/list", {"path": "/workspace/many"}
    assert [each["name"] for each in ok(await http.get(url, params=where))] == [f"{number:04}" for number in range(1200)]
    monkeypatch.setattr(common, "MAX_ENTRIES", 1000)
    refused(await http.get(url, params=where), 413)


async def test_invalid_file_timeout_and_template_requests_are_refused(http: httpx.AsyncClient, box: str) -> None:
    url = f"{HERE}/sandboxes/{box}"
    assert (await run(http, box, "truncate", "-s", str(translate.INLINE_BYTES + 1), "large"))["exitCode"] == 0
    assert "download" in refused(await http.get(f"{url}/filesystem", params={"path": "/workspace/large"}), 400)
    refused(await http.post(f"{url}/filesystem", json={"path": "/workspace/x", "content": "no base64"}), 400)
    refused(await http.post(f"{url}/filesystem/move", json={"source": "/workspace/none", "destination": "/workspace/c"}), 404)
    refused(await http.delete(f"{url}/filesystem", params={"path": "/workspace/none"}), 404)
    for path in ("", "/stat", "/download"):
        refused(await http.get(f"{url}/filesystem{path}"), 400)
    for path, status in (("/no/such", 404), ("a\0b", 400)):
        refused(await http.get(f"{url}/files", params={"path": path}), status)
    for path, body in (("timeout", {"timeout": 3601}), ("timeout", {}), ("refreshes", {"duration": 0}), ("refreshes", {"timeout": 5})):
        refused(await http.post(f"{url}/{path}", json=body), 400)
    assert "unknown template: opencode." in refused(await http.get(f"{HERE}/templates/opencode"), 404)
    refused(await http.get(f"{HERE}/templates/aliases/opencode"), 404)


async def test_downloads_are_attachments_with_their_name(http: httpx.AsyncClient, box: str) -> None:
    url, file = f"{HERE}/sandboxes/{box}/filesystem", "/workspace/new/a ü.txt"
    assert (await http.post(url, json={"path": file, "content": base64.b64encode(b"hi\xff").decode()})).status_code == 200
    down = await http.get(f"{url}/download", params={"path": file})
    assert (down.content, down.headers["content-disposition"]) == (b"hi\xff", "attachment; filename*=UTF-8''a%20%C3%BC.txt")


async def test_paused_sandbox_is_not_active_until_resumed(http: httpx.AsyncClient) -> None:
    made = ok(await http.post(f"{HERE}/sandboxes", json={"templateID": "base"}), 201)["sandboxID"]
    url = f"{HERE}/sandboxes/{made}"
    for _ in range(2):
        assert (await http.post(f"{url}/pause")).status_code == 204
    assert ok(await http.get(url))["status"] == "paused"
    assert refused(await http.post(f"{url}/processes", json={"cmd": "true"}), 409) == "sandbox is not active"
    assert refused(await http.get(f"{url}/health"), 409) == "sandbox is not active"
    assert refused(await http.post(f"{url}/files", data={"path": "/tmp/x"}, files={"file": ("x", b"x")}), 409) == "sandbox is not active"
    for path, body in (("resume", None), ("connect", {"timeout": 900}), ("resume", {})):
        assert ok(await http.post(f"{url}/{path}", json=body) if body is not None else await http.post(f"{url}/{path}"))["status"] == "running"
    assert (await http.get(f"{url}/health")).status_code == 204
    refused(await http.post(f"{url}/resume", json={"timeout": 9999}), 400)


async def test_metrics_have_every_field(http: httpx.AsyncClient, box: str) -> None:
    told = ok(await http.get(f"{HERE}/sandboxes/{box}/metrics"))
    assert set(told) == {
        *("ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_total", "disk_used")
    }
    assert told["mem_total_mib"] == told["mem_total"] >> 20 == 1024


async def test_metrics_of_an_interval_need_the_e2b_client(http: httpx.AsyncClient, box: str) -> None:
    url, by_e2b = f"{HERE}/sandboxes/{box}/metrics", {"User-Agent": "e2b-js-sdk/2.30.0"}
    (told,) = ok(await http.get(url, headers=by_e2b))
    assert set(told) == {
        *("timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal", "memCache", "diskUsed", "diskTotal"),
    }
    assert ok(await http.get(url, headers=by_e2b, params={"end": 1})) == []
    for asked in ({"start": 1}, {"end": 1}, {"surplus": 1}):
        refused(await http.get(url, params=asked), 400)
    refused(await http.get(url, params={"start": "x"}, headers=by_e2b), 400)


async def test_e2b_client_lists_running_and_paused_sandboxes(http: httpx.AsyncClient, box: str) -> None:
    by_e2b = {"User-Agent": "e2b-python-sdk/2.63.0"}
    asked = {"templateID": "base", "metadata": {"a": "b&c"}, "allow_internet_access": False}
    other = ok(await http.post(f"{HERE}/v2/sandboxes", json=asked), 201)["sandboxID"]
    for body in ({**asked, "allowInternetAccess": True}, {**asked, "network": {}}, {**asked, "autoPauseMemory": False}):
        assert (await http.post(f"{HERE}/v2/sandboxes", json=body)).status_code in {400, 501}
    pages = [await http.get(f"{HERE}/v2/sandboxes", params={"limit": 1})]
    pages.append(await http.get(f"{HERE}/v2/sandboxes", params={"limit": 1, "nextToken": pages[0].headers["x-next-token"]}))
    assert [[each["sandboxID"] for each in ok(page)] for page in pages] == [[other], [box]]
    assert "x-next-token" not in pages[1].headers
    for wrong in ({"state": "stopped"}, {"metadata": "x"}, {"limit": 0}, {"nextToken": "x"}, {"order": "asc"}):
        refused(await http.get(f"{HERE}/v2/sandboxes", params=wrong), 400)
    url = f"{HERE}/sandboxes/{other}"
    refused(await http.post(f"{url}/pause", json={"memory": False}), 400)
    assert (await http.post(f"{url}/pause", json={"memory": True}, headers=by_e2b)).status_code == 204
    assert (await http.post(f"{url}/pause")).status_code == 204
    refused(await http.post(f"{url}/pause", headers=by_e2b), 409)
    assert ok(await http.post(f"{HERE}/v2/sandboxes/{other}/connect"), 201)["status"] == "running"
    assert ok(await http.post(f"{HERE}/v2/sandboxes/{other}/connect", json={"timeout": 1}))["endAt"] > ok(await http.get(url))["startedAt"]
    refused(await http.post(f"{HERE}/v2/sandboxes/{other}/connect", json={"memory": False}), 400)
    assert (await http.delete(url)).status_code == 204
    gone(await http.get(url))
    assert other not in [each["sandboxID"] for each in ok(await http.get(f"{HERE}/sandboxes", params={"status": "stopped"}))]
    gone(await http.get(url, headers=by_e2b))
    assert [each["sandboxID"] for each in ok(await http.get(f"{HERE}/v2/sandboxes", params={"state": "running,paused"}))] == [box]


async def test_invalid_webhooks_are_refused(http: httpx.AsyncClient) -> None:
    url = "https://example.com/"
    for body in (
        {},
        {"url": "http://127.0.0.1/"},
        {"url": "http://localhost:8080/"},
        {"url": "http://169.254.169.254/"},
        {"url": "http://[::ffff:10.0.0.1]/"},
        {"url": "ftp://example.com/"},
        {"url": url, "events": ["session.error"]},
        {"url": url, "resourceType": "session"},
        {"url": url, "enabled": "no"},
        {"url": url, "signatureSecret": "short"},
    ):
        refused(await http.post(f"{HERE}/events/webhooks", json=body), 400)
    native = ok(await http.post("/v1/webhooks", json={"url": url}), 201)
    assert ok(await http.get(f"{HERE}/events/webhooks")) == []
    refused(await http.delete(f"{HERE}/events/webhooks/{native['id']}"), 404)
    refused(await http.patch(f"{HERE}/events/webhooks/{native['id']}", json={"enabled": False}), 404)
    every = ok(await http.post(f"{HERE}/events/webhooks", json={"url": url, "name": "n", "events": []}), 201)
    assert every["events"] == []
    where = f"{HERE}/events/webhooks/{every['id']}"
    wrong: list[dict[str, object]] = [
        {"url": "http://10.0.0.1/"},
        {"events": ["session.error"]},
        {"resourceType": "session"},
        {"enabled": 0},
        {"signatureSecret": "short"},
        {"name": ""},
        {"surplus": 1},
    ]
    for change in wrong:
        refused(await http.patch(where, json=change), 400)
    told = {name: value for name, value in every.items() if name != "signatureSecret"}
    assert ok(await http.patch(where, json={"resourceType": "sandbox"})) == told
    asked = {"url": f"{url}2", "name": "m", "events": ["sandbox.lifecycle.paused"], "enabled": False}
    assert ok(await http.patch(where, json=asked)) == {**told, **asked}
    assert ok(await http.get(f"{HERE}/events/webhooks")) == [{**told, **asked}]
    assert ok(await http.post(f"{HERE}/events/webhooks", json={"url": url, "enabled": False}), 201)["enabled"] is False


@cases(
    "method, path",
    [
        ("POST", "/default/v1/environments"),
        *(("POST", f"/v1/{path}") for path in ("environments", "chat/completions", "messages", "embeddings")),
        *(("GET", "/v1/models"), ("POST", "/templates"), ("POST", "/v3/templates")),
        *(("POST", "/sandboxes/x/fork"), ("POST", "/sandboxes/x/snapshots"), ("PUT", "/sandboxes/x/network")),
    ],
)
async def test_unsupported_calls_are_refused_in_the_vendors_format(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert "Sandlot does not have" in refused(await http.request(method, HERE + path, json={}), 501)


async def test_resources_of_another_key_are_not_found(at: SharedBench) -> None:
    secrets = [(await at.service.api_keys.create(name))[1] for name in ("one", "other")]
    async with at.client(secrets[0]) as mine, at.client(secrets[1]) as theirs:
        made = ok(await mine.post(f"{HERE}/sandboxes", json={"templateID": "base"}), 201)["sandboxID"]
        hook = ok(await mine.post(f"{HERE}/events/webhooks", json={"url": "https://example.com/"}), 201)["id"]
        url = f"{HERE}/sandboxes/{made}"
        where = {"path": "/workspace"}
        for path in ("", "/health", "/metrics", "/envs", "/files", "/filesystem/list"):
            gone(await theirs.get(url + path))
        for path in ("/filesystem", "/filesystem/stat", "/filesystem/download"):
            gone(await theirs.get(url + path, params=where))
        for path, body in (
            *(("/pause", {}), ("/resume", {}), ("/connect", {}), ("/shutdown", {}), ("/timeout", {"timeout": 5}), ("/refreshes", {"duration": 5})),
            *(("/processes", {"cmd": "true"}), ("/filesystem/mkdir", where), ("/filesystem", {**where, "content": ""})),
            ("/filesystem/move", {"source": "/a", "destination": "/b"}),
        ):
            gone(await theirs.post(url + path, json=body))
        for path in ("/files", "/filesystem/upload"):
            gone(await theirs.post(url + path, data=where, files={"file": ("x", b"x")}))
        gone(await theirs.delete(url))
        gone(await theirs.delete(f"{url}/filesystem", params=where))
        gone(await theirs.get(f"{HERE}/events/sandboxes/{made}"))
        for path in ("/sandboxes", "/sandboxes?status=stopped", "/events/sandboxes", "/events/webhooks"):
            assert ok(await theirs.get(HERE + path)) == []
        refused(await theirs.delete(f"{HERE}/events/webhooks/{hook}"), 404)
        refused(await theirs.patch(f"{HERE}/events/webhooks/{hook}", json={"enabled": False}), 404)
        gone(await theirs.post(f"{HERE}/v2/sandboxes/{made}/connect"))
        assert ok(await theirs.get(f"{HERE}/v2/sandboxes")) == []
        assert ok(await mine.get(url))["status"] == "running"
