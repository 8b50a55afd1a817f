"""The service as a process, with real sandboxes: how it starts, how it ends, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
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

from sandlot.server.keys import with_keys
from sandlot.server.settings import Settings
from tests.support.localservice import TEMPLATE, LocalService, local_service
from tests.support.traces import NOTHING, descriptors, settle

CREATE = {"template": TEMPLATE}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    made = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def http(service: LocalService) -> Iterator[httpx.Client]:
    with client(service) as made:
        yield made


def test_nobody_but_its_owner_reaches_it(service: LocalService) -> None:
    path = service.data_dir / "sandlot.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.data_dir.stat().st_mode) == 0o700
    for name in ("lock", "sandlot.sock"):
        assert stat.S_IMODE((service.data_dir / name).stat().st_mode) == 0o600
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    tried = subprocess.run([sys.executable, "-c", reach], user=1000, group=1000, capture_output=True, text=True, check=False)
    assert "PermissionError" in tried.stderr


def test_a_second_service_names_the_first(service: LocalService) -> None:
    second = run(service.data_dir, "--local")
    assert second.returncode == 3
    assert f"process {service.pid}" in second.stderr
    assert service.client.version()


def test_a_setting_that_makes_no_sense_is_named(folder: Path) -> None:
    refused = run(folder, "--local", SANDLOT_MAX_SANDBOXES="many")
    assert refused.returncode == 2
    assert "SANDLOT_MAX_SANDBOXES is 'many'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(folder.iterdir()) == []


def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(folder, "--host", "127.0.0.1", "--port", str(port))
    assert refused.returncode == 1
    assert f"127.0.0.1 port {port}" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_without_its_sandboxes_and_tells_those_who_wait(number: signal.Signals) -> None:
    with local_service() as service:
        url = create(service)
        answers: list[httpx.Response] = []
        waiting = [
            threading.Thread(target=lambda path=path, body=body: answers.append(post(service, url + path, body)))
            for path, body in (
                ("/processes", {"command": "sleep 1; echo on > /workspace/proof"}),
                ("/code", {"code": "import time; time.sleep(100)"}),
            )
        ]
        for thread in waiting:
            thread.start()
        time.sleep(0.5)
        assert service.end(number) == 0, service.log()
        for thread in waiting:
            thread.join()
        told = [(each.status_code, each.json()["code"], each.json()["retryable"]) for each in answers]
        assert told == [(503, "service_stopping", False)] * 2
        assert not (service.data_dir / "sandlot.sock").exists()
        service.start()
        command = {"command": "until grep -s on /workspace/proof; do sleep 0.1; done"}
        assert post(service, url + "/processes", command).json()["stdout"] == "on\n", "what was begun went on"


def test_a_second_signal_ends_it_at_once_and_the_next_one_takes_over() -> None:
    with local_service() as service:
        urls = {create(service) for _ in range(3)}
        os.kill(service.pid, signal.SIGTERM)
        # Which of two that come at once is the second is not said.
        assert service.end(signal.SIGINT) in {0, 128 + signal.SIGINT, 128 + signal.SIGTERM}, service.log()
        service.start()
        assert {f"/v1/sandboxes/{box.id}" for box in service.client.sandboxes()} == urls


def test_a_local_service_leaves_when_nothing_lived_for_a_while(folder: Path) -> None:
    service = LocalService(folder, {"SANDLOT_IDLE_EXIT_S": "2"})
    try:
        service.start()
        url = create(service)
        time.sleep(4)
        assert service.is_alive(), "a sandbox keeps it"
        with client(service) as http:
            assert http.delete(url).status_code == 204
        settle(service.is_alive, expected=False)
        assert service.end() == 0, service.log()
        assert not (folder / "sandlot.sock").exists()
    finally:
        service.end(signal.SIGKILL)


def test_its_log_tells_what_happened_and_none_of_what_was_in_it(service: LocalService, http: httpx.Client) -> None:
    word = "highly-confidential"
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


def test_many_are_created_at_once(service: LocalService) -> None:
    with ThreadPoolExecutor(8) as pool:
        urls = list(pool.map(lambda _: create(service), range(8)))
        outputs = list(pool.map(lambda url: post(service, url + "/code", {"code": f"print({url!r})"}).json()["stdout"], urls))
        assert outputs == [f"{url}\n" for url in urls]
        with client(service) as http:
            listed = [each["id"] for each in http.get("/v1/sandboxes").json()["sandboxes"]]
        assert len(set(listed)) == 8
        assert set(pool.map(lambda url: delete(service, url), urls)) == {204}
    settle(service.traces, NOTHING)


def test_a_full_service_says_when_to_come_back() -> None:
    with local_service({"SANDLOT_MAX_SANDBOXES": "1"}) as service:
        url = create(service)
        response = post(service, "/v1/sandboxes", CREATE)
        assert (response.status_code, response.json()["code"]) == (503, "busy")
        assert int(response.headers["retry-after"]) > 0
        assert delete(service, url) == 204
        settle(service.traces, NOTHING)
        create(service)


def test_killed_by_several_at_once_and_while_it_is_created(service: LocalService) -> None:
    url = create(service)
    with ThreadPoolExecutor(5) as pool:
        assert set(pool.map(lambda _: delete(service, url), range(5))) == {204}
        creating = pool.submit(post, service, "/v1/sandboxes", CREATE)
        with client(service) as http:
            while not (listed := http.get("/v1/sandboxes").json()["sandboxes"]):
                assert not creating.done()
            assert listed[0]["state"] == "creating"
            assert http.delete(f"/v1/sandboxes/{listed[0]['id']}").status_code == 204
            assert http.get(f"/v1/sandboxes/{listed[0]['id']}").json()["state"] == "stopped"
        assert creating.result().status_code == 410
    settle(service.traces, NOTHING)


# No later: a create takes 0.25 s at least, and one whose answer was sent before its client went away is that client's sandbox.
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.1])
def test_a_creator_that_goes_away_leaves_nothing(service: LocalService, delay_s: float) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(service.data_dir / "sandlot.sock"))
        body = json.dumps(CREATE).encode()
        raw.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(delay_s)
    settle(service.traces, NOTHING)


def test_a_sandbox_that_outgrows_its_memory_says_so_and_is_gone(service: LocalService) -> None:
    made = post(service, "/v1/sandboxes", {**CREATE, "limits": {"memory_bytes": 200 << 20}}).json()
    url = f"/v1/sandboxes/{made['id']}"
    response = post(service, url + "/processes", {"argv": ["python3", "-c", "x = bytearray(10**9)\nfor i in range(0, len(x), 4096): x[i] = 1"]})
    assert response.status_code == 410, response.text
    assert response.json()["fields"]["reason"] == "oom"
    with client(service) as http:
        ended = http.get(url).json()
    assert (ended["state"], ended["exit"]["reason"]) == ("failed", "oom")
    settle(service.traces, NOTHING)


def test_a_sandbox_ends_when_its_time_is_over(service: LocalService) -> None:
    url = f"/v1/sandboxes/{post(service, '/v1/sandboxes', {**CREATE, 'timeout': 1}).json()['id']}"
    with client(service) as http:
        settle(lambda: http.get(url).json()["state"], "stopped")
        assert http.get(url).json()["exit"] == {"reason": "killed", "detail": "its timeout passed"}
    settle(service.traces, NOTHING)


def test_large_files_pass_through_without_staying(service: LocalService, http: httpx.Client) -> None:
    url = create(service)
    before = peak_bytes(service.pid)
    piece = os.urandom(1 << 20)
    http.put(url + "/files/content", params={"path": "/workspace/a"}, content=(piece for _ in range(90))).raise_for_status()
    for number in range(3):
        query = {"path": "/workspace/b", "append": "true"}
        http.put(url + "/files/content", params=query, content=(piece for _ in range(90))).raise_for_status()
        assert http.get(url + "/files/stat", params={"path": "/workspace/b"}).json()["size"] == (number + 1) * 90 << 20
    with http.stream("GET", url + "/files/content", params={"path": "/workspace/a"}) as response:
        assert sum(len(each) for each in response.iter_bytes()) == 90 << 20
    assert peak_bytes(service.pid) - before < 32 << 20
    http.delete(url)


def test_what_was_used_is_given_back(service: LocalService) -> None:
    def rounds(count: int) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: use(service), range(count)))
        settle(service.traces, NOTHING)

    rounds(4)  # threads, modules and pools that stay are there after the first round
    before, threads = descriptors(service.pid), threads_of(service.pid)
    rounds(8)
    # No more than then: a connection of the first round may still have been closing.
    settle(lambda: descriptors(service.pid) - before, Counter[str]())
    assert threads_of(service.pid) <= threads + 2


def test_on_tcp_a_key_opens_it(folder: Path) -> None:
    _, secret = asyncio.run(with_keys(Settings(data_dir=folder), lambda keys: keys.create("test")))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "sandlot.server", "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "SANDLOT_DATA_DIR": str(folder)},
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            settle(lambda: answers(http), expected=True)
            assert http.get("/v1/sandboxes").status_code == 401
            http.headers["Authorization"] = f"Bearer {secret}"
            made = http.post("/v1/sandboxes", json=CREATE).json()
            done = http.post(f"/v1/sandboxes/{made['id']}/code", json={"code": "print(6 * 7)"}).json()
            assert done["stdout"] == "42\n"
            assert http.delete(f"/v1/sandboxes/{made['id']}").status_code == 204
            assert http.post("/v1/service/stop").status_code == 403
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def use(service: LocalService) -> None:
    """A sandbox with everything in it, left in the middle of some."""
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


def run(data_dir: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A service that is expected not to start."""
    return subprocess.run(
        [sys.executable, "-m", "sandlot.server", *arguments],
        env={**os.environ, "SANDLOT_DATA_DIR": str(data_dir), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def create(service: LocalService) -> str:
    """A sandbox's address."""
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


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(kilobytes) * 1024
