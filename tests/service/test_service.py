"""The service as a process, with real sandboxes: how it starts and ends, what it logs, and what it gives back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.localservice import TEMPLATE, LocalService
from tests.support.traces import NOTHING, descriptors, settle

CREATE = {"template": TEMPLATE}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    made = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_only_the_owner_of_the_data_directory_reaches_the_socket(service: LocalService) -> None:
    path = service.data_dir / "sandlot.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.data_dir.stat().st_mode) == 0o700
    for name in ("lock", "sandlot.sock"):
        assert stat.S_IMODE((service.data_dir / name).stat().st_mode) == 0o600
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    tried = subprocess.run([sys.executable, "-c", reach], user=1000, group=1000, capture_output=True, text=True, check=False)
    assert "PermissionError" in tried.stderr


def test_second_service_of_a_data_directory_names_the_first(service: LocalService) -> None:
    env = {**os.environ, "SANDLOT_DATA_DIR": str(service.data_dir)}
    command = [sys.executable, "-m", "sandlot.server", "--local"]
    second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert second.returncode == 3
    assert f"Process {service.pid} already" in second.stderr
    assert service.client.service.version().version


def test_signal_ends_the_service_answers_waiting_requests_and_leaves_sandboxes_running(service: LocalService) -> None:
    url = create(service)
    responses: list[httpx.Response] = []
    requests = {
        "/processes": {"command": "touch /tmp/1; until test -e /tmp/go; do sleep 0.1; done; echo on > /workspace/proof"},
        "/code": {"code": "open('/tmp/2', 'w').close(); import time; time.sleep(100)"},
    }
    waiting = [
        threading.Thread(target=lambda path=path, body=body: responses.append(post(service, url + path, body))) for path, body in requests.items()
    ]
    for thread in waiting:
        thread.start()
    post(service, url + "/processes", {"command": "until test -e /tmp/1 && test -e /tmp/2; do sleep 0.1; done"})
    assert service.end(signal.SIGTERM) == 0, service.log()
    for thread in waiting:
        thread.join()
    told = [(each.status_code, each.json()["code"], each.json()["retryable"]) for each in responses]
    assert told == [(503, "service_stopping", False)] * 2
    assert not (service.data_dir / "sandlot.sock").exists()
    service.start()
    command = {"command": "touch /tmp/go; until grep -s on /workspace/proof; do sleep 0.1; done"}
    assert post(service, url + "/processes", command).json()["stdout"] == "on\n", "the command went on"
    assert delete(service, url) == 204


@pytest.mark.slow
def test_every_signal_and_a_second_one_end_the_service_and_the_next_one_takes_over(service: LocalService) -> None:
    url = create(service)
    for first, second in ((None, signal.SIGINT), (signal.SIGTERM, signal.SIGHUP)):
        if first is not None:
            os.kill(service.pid, first)
        # Either of two signals that come at once may be the second.
        statuses = {0} if first is None else {0, 128 + signal.SIGHUP, 128 + signal.SIGTERM}
        assert service.end(second) in statuses, service.log()
        service.start()
        assert [f"/v1/sandboxes/{sandbox.id}" for sandbox in service.client.sandboxes.list()] == [url]
    assert delete(service, url) == 204


@pytest.mark.slow
def test_local_service_exits_when_it_had_no_sandbox_for_a_while(folder: Path) -> None:
    service = LocalService(folder, {"SANDLOT_IDLE_EXIT_S": "4"})  # longer than a busy machine takes from the start to the create
    try:
        service.start()
        url = create(service)
        time.sleep(6)  # longer than the time after which it would exit
        assert service.is_alive(), "a sandbox keeps it"
        with client(service) as http:
            assert http.delete(url).status_code == 204
        settle(service.is_alive, expected=False)
        assert service.end() == 0, service.log()
        assert not (folder / "sandlot.sock").exists()
    finally:
        service.end(signal.SIGKILL)


def test_log_has_events_and_no_content_of_requests(service: LocalService) -> None:
    word = "highly-confidential"
    with client(service) as http:
        made = http.post("/v1/sandboxes", json={**CREATE, "env": {"TOKEN": word}, "metadata": {"m": word}}).json()
        url = f"/v1/sandboxes/{made['id']}"
        http.post(url + "/code", json={"code": f"print('{word}')", "env": {"E": word}})
        http.post(url + "/code", json={"code": f"{word}("})
        http.post(url + "/processes", json={"command": f"echo {word}; exit 1", "stdin": word})
        http.put(url + "/files/content", params={"path": f"/workspace/{word}"}, content=word.encode())
        http.post(url + "/code", json={"code": word, "unknown": word})
        http.post("/v1/sandboxes", json={**CREATE, "env": {word: 5}})
        http.get("/v1/sandboxes", headers={"Authorization": f"Bearer {word}"}, params={"cursor": word})
        http.delete(url)
    assert word not in (service.data_dir / "service.log").read_text()
    events = [record for record in service.records() if made["id"] in json.dumps(record)]
    assert {"sandbox.created", "sandbox.ended", "request"} <= {str(record["event"]) for record in events}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(record["timestamp"])) for record in events)


@pytest.mark.slow
def test_descriptors_and_threads_are_given_back(service: LocalService) -> None:
    def rounds(count: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: use(service), range(count)))
        settle(service.traces, NOTHING)

    rounds(2)  # threads, modules and pools that stay are there after the first round
    before, threads = descriptors(service.pid), threads_of(service.pid)
    rounds(2)
    # No more than then: a connection of the first round may still have been closing.
    settle(lambda: descriptors(service.pid) - before, Counter[str]())
    assert threads_of(service.pid) <= threads + 2


def use(service: LocalService) -> None:
    """Create a sandbox, use every kind of request, leave two streams half read, and delete it."""
    url = create(service)
    with client(service) as http:
        http.post(url + "/code", json={"code": "print(1)"}).raise_for_status()
        http.put(url + "/files/content", params={"path": "/workspace/a"}, content=b"x" * 1_000_000).raise_for_status()
        http.post(url + "/processes", json={"command": "sleep 1000", "background": True}).raise_for_status()
        for request in (
            http.build_request("POST", url + "/processes", json={"command": "yes"}, headers={"Accept": "text/event-stream"}),
            http.build_request("GET", url + "/files/content", params={"path": "/workspace/a"}),
        ):
            response = http.send(request, stream=True)
            next(response.iter_raw())
            response.close()
        assert http.delete(url).status_code == 204


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def create(service: LocalService) -> str:
    """Create a sandbox and return its URL."""
    response = post(service, "/v1/sandboxes", CREATE)
    assert response.status_code == 201, response.text
    return f"/v1/sandboxes/{response.json()['id']}"


def post(service: LocalService, url: str, body: object) -> httpx.Response:
    with client(service) as http:
        return http.post(url, json=body)


def delete(service: LocalService, url: str) -> int:
    with client(service) as http:
        return http.delete(url).status_code


def client(service: LocalService) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), base_url="http://sandlot", timeout=120)
