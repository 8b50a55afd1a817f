"""Sandbase's documentation against a real service: its programs, and the rest of its calls, with ``requests`` as it shows them.

The vendor publishes no client. Sandboxes are real, and reached over TCP with a key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.compat.sandbase import programs
from tests.support.tcpservice import TcpService


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(scope="module")
def base(service: TcpService) -> str:
    return f"{service.url}/sandbase"


class Api:
    """``requests`` with an address and a key, and nothing else."""

    def __init__(self, base: str, key: str) -> None:
        self.base = base
        self.headers = {"Authorization": f"Bearer {key}"}

    def __call__(self, method: str, path: str, status: int = 200, **more: Any) -> requests.Response:  # noqa: ANN401 - requests' own
        answer = requests.request(method, self.base + path, headers=self.headers, timeout=120, **more)
        assert answer.status_code == status, answer.text
        return answer


@pytest.fixture(scope="module")
def api(base: str, key: str) -> Api:
    return Api(base, key)


@pytest.fixture(scope="module")
def box(api: Api) -> str:
    """One sandbox that tests share."""
    made = api("POST", "/sandboxes", 201, json={"templateID": "code_interpreter", "metadata": {"for": "tests"}, "envVars": {"MY_VAR": "mine"}})
    return f"/sandboxes/{made.json()['sandboxID']}"


def program(text: str, base: str, key: str, folder: Path) -> list[str]:
    """What a program of the documentation prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"BASE, KEY = {base!r}, {key!r}\n{text}"], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_quick_start(base: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("item,units\nlamp,3\ndesk,1\nchair,4\n", encoding="utf-8")
    printed = program(programs.QUICK_START, base, key, tmp_path)
    assert printed[0][0].isdigit()
    assert "Rows: 3, Columns: ['item', 'units']" in printed
    assert any(line.split() == ["max", "4.000000"] for line in printed), printed


def test_sandbox_is_inspected_listed_and_prolonged(api: Api, box: str) -> None:
    told = api("GET", box).json()
    assert (told["templateID"], told["status"], told["metadata"]) == ("code_interpreter", "running", {"for": "tests"})
    assert told["sandboxID"] in [each["sandboxID"] for each in api("GET", "/sandboxes?status=running").json()]
    api("POST", f"{box}/timeout", 204, json={"timeout": 1200})
    assert 1140 < left_s(api("GET", box).json()) <= 1200
    api("POST", f"{box}/refreshes", 204, json={"duration": 2400})
    assert 2340 < left_s(api("GET", box).json()) <= 2400
    assert set(api("GET", "/templates/code_interpreter").json()) >= {"templateID", "name", "description", "defaultTimeout"}
    api("GET", f"{box}/health", 204)
    used = api("GET", f"{box}/metrics").json()
    assert 0 < used["mem_used"] < used["mem_total"]


@pytest.mark.smoke
def test_commands_have_environment_and_folder_but_no_shell(api: Api, box: str) -> None:
    def run(*argv: str, status: int = 200, **more: object) -> dict[str, Any]:
        told: dict[str, Any] = api("POST", f"{box}/processes", status, json={"cmd": argv[0], "args": list(argv[1:]), **more}).json()
        return told

    assert run("pwd")["stdout"] == "/workspace\n"
    assert run("pwd", cwd="/home/user")["stdout"] == "/home/user\n"
    assert run("echo", "$HOME")["stdout"] == "$HOME\n"
    told = run("sh", "-c", "echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID $MY_VAR $ONE; touch /workspace/w /home/user/w", envVars={"ONE": "1"})
    assert told["stdout"] == f"true {box.rpartition('/')[2]} code_interpreter mine 1\n"
    assert (told["stderr"], told["exitCode"]) == ("", 0)
    assert api("GET", f"{box}/envs").json()["MY_VAR"] == "mine"
    assert run("python3", "-c", "import numpy, matplotlib, sys; sys.exit(7)")["exitCode"] == 7
    assert "no-such" in run("no-such", status=502)["message"]
    assert "1 seconds" in run("sleep", "30", timeout=1, status=502)["message"]


@pytest.mark.smoke
def test_files_are_served_at_both_sets_of_paths(api: Api, box: str) -> None:
    content = bytes(range(256)) * 4000
    api("POST", f"{box}/files", data={"path": "/workspace/deep/data.bin"}, files={"file": ("data.bin", content)})
    assert api("GET", f"{box}/files", params={"path": "/workspace/deep/data.bin"}).content == content
    api("POST", f"{box}/filesystem/upload", files=[("file", ("x", b"later")), ("path", (None, "/workspace/deep/later"))])
    listed = api("GET", f"{box}/filesystem/list", params={"path": "/workspace/deep"}).json()
    assert [(each["name"], each["isDir"], each["size"]) for each in listed] == [("data.bin", False, len(content)), ("later", False, 5)]
    assert {"name": "deep", "path": "/workspace/deep", "isDir": True, "type": "dir", "size": 0} in api("GET", f"{box}/files").json()
    api("POST", f"{box}/filesystem", json={"path": "/home/user/main.py", "content": base64.b64encode(b"print(40 + 2)").decode()})
    assert api("GET", f"{box}/filesystem", params={"path": "/home/user/main.py"}).json()["content"] == base64.b64encode(b"print(40 + 2)").decode()
    assert api("POST", f"{box}/processes", json={"cmd": "python3", "args": ["/home/user/main.py"]}).json()["stdout"] == "42\n"
    down = api("GET", f"{box}/filesystem/download", params={"path": "/home/user/main.py"})
    assert (down.content, down.headers["Content-Type"]) == (b"print(40 + 2)", "application/octet-stream")
    assert api("POST", f"{box}/filesystem/mkdir", json={"path": "/workspace/a/b"}).json()["isDir"]
    moved = api("POST", f"{box}/filesystem/move", json={"source": "/home/user/main.py", "destination": "/workspace/a/main.py"}).json()
    assert moved["path"] == "/workspace/a/main.py"
    assert api("GET", f"{box}/filesystem/stat", params={"path": "/workspace/a/main.py"}).json()["size"] == 13
    api("DELETE", f"{box}/filesystem", 204, params={"path": "/workspace/a"})
    assert api("GET", f"{box}/files", 404, params={"path": "/workspace/a/main.py"}).json()["code"] == 404


def test_pause_keeps_memory_and_files(api: Api) -> None:
    made = f"/sandboxes/{api('POST', '/sandboxes', 201, json={'templateID': 'base'}).json()['sandboxID']}"
    code = "import time; number = 0\nwhile True: number += 1; open('/workspace/number', 'w').write(str(number)); time.sleep(0.05)"

    def written() -> int:
        """Return the last number that the program has written. The file is empty for a moment during each write."""
        while not (content := api("GET", f"{made}/files", params={"path": "/workspace/number"}).content):
            time.sleep(0.01)
        return int(content)

    start = f'nohup python3 -c "{code}" >/dev/null 2>&1 & until [ -e /workspace/number ]; do sleep 0.05; done'
    api("POST", f"{made}/processes", json={"cmd": "sh", "args": ["-c", start]})
    while (before := written()) < 3:
        time.sleep(0.1)
    api("POST", f"{made}/pause", 204)
    assert api("GET", made).json()["status"] == "paused"
    assert api("POST", f"{made}/processes", 409, json={"cmd": "true"}).json()["message"] == "sandbox is not active"
    for path, body in (("timeout", {"timeout": 60}), ("refreshes", {"duration": 60})):
        assert api("POST", f"{made}/{path}", 409, json=body).json()["message"] == "sandbox is not active"
    assert api("POST", f"{made}/resume").json()["status"] == "running"
    after = written()
    assert after >= before, "the program keeps its memory"
    while written() <= after:
        time.sleep(0.1)
    assert 0 < left_s(api("GET", made).json()) <= 300, "its timeout began anew"
    for path, seconds in (("resume", 1200), ("connect", 600)):
        told = api("POST", f"{made}/{path}", json={"timeout": seconds}).json()
        assert told["status"] == "running"
        assert seconds - 60 < left_s(told) <= seconds
    api("POST", f"{made}/shutdown", 204)
    assert api("POST", f"{made}/processes", 404, json={"cmd": "true"}).json()["message"] == "sandbox not found"
    assert api("GET", made, 404).json()["message"] == "sandbox not found"
    assert made.rpartition("/")[2] not in {each["sandboxID"] for each in api("GET", "/sandboxes?status=stopped").json()}


def left_s(box: dict[str, Any]) -> float:
    """Seconds until it times out."""
    return (datetime.fromisoformat(box["endAt"]) - datetime.now(UTC)).total_seconds()


def test_create_options_apply_and_timeout_ends_or_pauses(api: Api) -> None:
    asked: dict[str, Any] = {"templateID": "base", "timeout": 1800, "metadata": {"a": "b"}, "envVars": {"X": "1", "E2B_TEMPLATE_ID": "mine"}}
    told = api("POST", "/sandboxes", 201, json=asked).json()
    assert (told["templateID"], told["metadata"]) == ("base", {"a": "b"})
    assert 1740 < left_s(told) <= 1800
    run = f"/sandboxes/{told['sandboxID']}/processes"
    assert api("POST", run, json={"cmd": "sh", "args": ["-c", "echo $X $E2B_TEMPLATE_ID"]}).json()["stdout"] == "1 mine\n"
    assert api("POST", run, json={"cmd": "python3", "args": ["-c", "import pandas"]}).json()["exitCode"] == 1, "pandas is the other template's"
    made = {
        kept: api("POST", "/sandboxes", 201, json={"templateID": "base", "timeout": 1, "autoPause": kept}).json()["sandboxID"]
        for kept in (True, False)
    }

    def listed(status: str) -> set[str]:
        return {each["sandboxID"] for each in api("GET", "/sandboxes", params={"status": status}).json()}

    while not (made[True] in listed("paused") and made[False] in listed("stopped")):
        time.sleep(0.1)
    assert made[False] not in listed("paused") | listed("running")
    assert made[True] not in listed("stopped") | listed("running")
    assert told["sandboxID"] in listed("running")
    assert {each["status"] for each in api("GET", "/sandboxes").json()} <= {"running", "paused"}
    for one in (told["sandboxID"], made[True]):
        api("DELETE", f"/sandboxes/{one}", 204)


def test_network_can_be_closed(api: Api) -> None:
    made = f"/sandboxes/{api('POST', '/sandboxes', 201, json={'templateID': 'base', 'allowInternetAccess': False}).json()['sandboxID']}"
    other = f"/sandboxes/{api('POST', '/sandboxes', 201, json={'templateID': 'base'}).json()['sandboxID']}"
    asked = {"cmd": "pip", "args": ["download", "--no-deps", "-d", "/tmp/x", "six"], "timeout": 100}
    assert api("POST", f"{made}/processes", json=asked).json()["exitCode"] != 0
    assert api("POST", f"{other}/processes", json=asked).json()["exitCode"] == 0
    api("DELETE", other, 204)
    api("DELETE", made, 204)
    api("DELETE", made, 404)


def test_templates(api: Api) -> None:
    listed = {each["templateID"]: each["defaultTimeout"] for each in api("GET", "/templates").json()}
    assert (listed["code_interpreter"], listed["base"]) == (300, 300)
    assert api("GET", "/templates/base").json()["name"] == "Base"
    assert api("GET", "/templates/aliases/code_interpreter").json()["templateID"] == "code_interpreter"
    refused = api("POST", "/sandboxes", 400, json={"templateID": "opencode"}).json()
    assert refused["code"] == 400
    assert refused["message"].startswith("unknown template: opencode.")


class Receiver(BaseHTTPRequestHandler):
    """Refuses what comes first, and takes the rest."""

    got: list[tuple[str, str, bytes]]
    paths: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.append(self.path)
        self.got.append((self.headers["X-Event-ID"], self.headers["X-Signature"], body))
        self.send_response(200 if len(self.got) > 1 else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_events_and_webhooks(api: Api) -> None:
    Receiver.got, Receiver.paths = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = {
            "name": "Monitor",
            "url": f"http://127.0.0.1:{server.server_port}/hook",
            "events": ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"],
        }
        hook = api("POST", "/events/webhooks", 201, json=asked).json()
        made = api("POST", "/sandboxes", 201, json={"templateID": "base"}).json()["sandboxID"]
        api("DELETE", f"/sandboxes/{made}", 204)
        while len(Receiver.got) < 3:
            time.sleep(0.05)
        server.shutdown()
    assert Receiver.got[0] == Receiver.got[1], "it was refused, and came again as it was"
    told = [json.loads(body) for _, _, body in Receiver.got[1:]]
    assert [(each["type"], each["sandboxID"]) for each in told] == [("sandbox.lifecycle.created", made), ("sandbox.lifecycle.killed", made)]
    for event, signature, body in Receiver.got:
        assert signature == hmac.new(hook["signatureSecret"].encode(), body, hashlib.sha256).hexdigest()
        assert event == json.loads(body)["id"]
    listed = api("GET", f"/events/sandboxes/{made}").json()
    assert [each["id"] for each in reversed(listed)] == [each["id"] for each in told]
    assert listed == [each for each in api("GET", "/events/sandboxes", params={"limit": 50}).json() if each["sandboxID"] == made]
    for path in (f"/events/sandboxes/{made}", "/events/sandboxes"):
        assert api("GET", path, params={"limit": 1}).json() == listed[:1], "the newest"
    assert [each["id"] for each in api("GET", "/events/webhooks").json()] == [hook["id"]]
    assert "signatureSecret" not in api("GET", "/events/webhooks").json()[0]
    api("DELETE", f"/events/webhooks/{hook['id']}", 204)


def test_disabled_and_updated_webhook_loses_no_event(api: Api, service: TcpService) -> None:
    Receiver.got, Receiver.paths = [("", "", b"{}")], []

    def killed() -> str:
        made = str(api("POST", "/sandboxes", 201, json={"templateID": "base"}).json()["sandboxID"])
        api("DELETE", f"/sandboxes/{made}", 204)
        return made

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, secret = f"http://127.0.0.1:{server.server_port}", "whsec_of-my-own"
        asked = {"url": f"{url}/one", "enabled": False, "resourceType": "sandbox", "signatureSecret": secret, "events": ["sandbox.lifecycle.killed"]}
        hook = api("POST", "/events/webhooks", 201, json=asked).json()
        assert (hook["enabled"], hook["name"], hook["signatureSecret"]) == (False, "", secret)
        path, told = f"/events/webhooks/{hook['id']}", {**{name: value for name, value in hook.items() if name != "signatureSecret"}, "enabled": True}
        first = killed()
        assert Receiver.paths == []
        assert api("PATCH", path, json={"enabled": True}).json() == told
        while not requests.get(f"{service.url}/v1/webhooks/{hook['id']}", headers=api.headers, timeout=60).json()["delivered"]:
            time.sleep(0.05)
        assert api("PATCH", path, json={"enabled": False}).json()["enabled"] is False
        second = killed()
        changed = {"url": f"{url}/two", "name": "Moved", "events": ["sandbox.lifecycle.updated", "sandbox.lifecycle.killed"], "enabled": True}
        refused = api("PATCH", path, 400, json={**changed, "url": "http://10.0.0.1/"}).json()["message"]
        assert "is not a public address" in refused
        assert api("PATCH", path, json={**changed, "signatureSecret": f"{secret}-2"}).json() == {**told, **changed}
        while len(Receiver.paths) < 2:
            time.sleep(0.05)
        third = api("POST", "/sandboxes", 201, json={"templateID": "base"}).json()["sandboxID"]
        api("POST", f"/sandboxes/{third}/timeout", 204, json={"timeout": 60})
        while len(Receiver.paths) < 3:
            time.sleep(0.05)
        api("DELETE", path, 204)
        server.shutdown()
    assert Receiver.paths == ["/one", "/two", "/two"]
    sent = [(json.loads(body)["type"].rpartition(".")[2], json.loads(body)["sandboxID"]) for _, _, body in Receiver.got[1:]]
    assert sent == [("killed", first), ("killed", second), ("updated", third)]
    for (_, signature, body), key in zip(Receiver.got[1:], [secret, f"{secret}-2", f"{secret}-2"], strict=True):
        assert signature == hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
    api("DELETE", f"/sandboxes/{third}", 204)


def test_webhooks_to_private_addresses_are_refused(api: Api) -> None:
    for url in ("http://169.254.169.254/latest", "http://10.0.0.1/", "http://[::1]:8080/"):
        assert "is not a public address" in api("POST", "/events/webhooks", 400, json={"name": "x", "url": url}).json()["message"]


def test_sandbox_of_another_key_is_not_found(service: TcpService, base: str, key: str, box: str) -> None:
    stranger = Api(base, service.key("stranger"))
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/files"), ("GET", "/envs")):
        assert stranger(method, box + path, 404).json()["message"] == "sandbox not found"
    assert stranger("POST", f"{box}/files", 404, data={"path": "/x"}, files={"file": ("x", b"x")}).json()["code"] == 404
    assert Api(base, "wrong")("GET", box, 401).json()["code"] == 401
    theirs = {"x-api-key": stranger.headers["Authorization"][7:]}
    assert requests.get(f"{base}/sandboxes", headers=theirs, timeout=60).json() == []
    both = {"Authorization": f"Bearer {key}", **theirs}
    assert requests.get(f"{base}/sandboxes", headers=both, timeout=60).json() == [], "x-api-key is the one that counts"
