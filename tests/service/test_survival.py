"""SIGKILL of the service at any moment, and a new start: what a client was told of lives on, and once that is removed, nothing is left.

No process, mount, loop device, control group or folder: counted from outside, by ``tests/support/traces.py``, before and after. What lives
on, and that it is what it was, is tried in ``test_killed_service.py``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.localservice import TEMPLATE, LocalService
from tests.support.sweeping import sweep
from tests.support.traces import NOTHING, settle, traces

KEPT = {"files", "lock", "node", "sandboxes", "sandlot.db", "service.log", "signing.key", "store", "runtimes"}
"""What a state directory holds when no service runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a body of JSON, or for PUT one without end."""

    method: str
    path: str
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


CREATE = Request("POST", "/v1/sandboxes", {"template": TEMPLATE})


def moments(*milliseconds: int, soak: tuple[int, ...]) -> pytest.MarkDecorator:
    """When to kill; the soak run tries more of them."""
    more = [pytest.param(each, marks=pytest.mark.soak) for each in soak]
    return pytest.mark.parametrize("delay_ms", [*milliseconds, *more])


@pytest.fixture
def service() -> Iterator[LocalService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    made = LocalService(folder)
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)
        sweep(folder)
        shutil.rmtree(folder, ignore_errors=True)


@moments(0, 50, 200, soak=(5, 10, 15, 20, 30, 40, 65, 80, 100, 130, 170, 250, 300, 400, 600, 800))
def test_killed_while_sandboxes_are_created(service: LocalService, delay_ms: int) -> None:
    service.start()
    begin(service, CREATE, CREATE)
    time.sleep(delay_ms / 1000)
    nothing_is_left(service)


@moments(0, 100, soak=(1, 2, 5, 10, 20, 50, 300, 500, 1000, 1800))
def test_killed_while_a_sandbox_is_deleted(service: LocalService, delay_ms: int) -> None:
    service.start()
    url = create(service)
    begin(service, Request("DELETE", url))
    time.sleep(delay_ms / 1000)
    nothing_is_left(service)


@pytest.mark.parametrize(
    "work",
    [
        Request("POST", "/code", {"code": "while True: pass", "timeout": None}),
        pytest.param(Request("POST", "/code", {"code": "import subprocess; subprocess.run(['sleep', '1000'])"}), marks=pytest.mark.soak),
        pytest.param(Request("POST", "/processes", {"command": "yes", "timeout": None}, {"Accept": "text/event-stream"}), marks=pytest.mark.soak),
        Request("POST", "/processes", {"command": ":(){ :|:& };:; sleep 100"}),
        Request("PUT", "/files/content?path=/workspace/big", None),
        Request("POST", "/processes", {"command": "head -c 300000000 /dev/zero > a; sync; sleep 100"}),
        Request("POST", "/processes", {"command": "sleep 1000", "background": True}),
    ],
    ids=["a cell", "a cell with a child", "a flood that is read", "a fork bomb", "an upload", "a disk being filled", "in the background"],
)
def test_killed_while_something_runs(service: LocalService, work: Request) -> None:
    service.start()
    begin(service, *(replace(work, path=create(service) + work.path) for _ in range(2)))
    time.sleep(1)
    assert service.traces() != NOTHING
    nothing_is_left(service)


def test_killed_with_nothing_to_do(service: LocalService) -> None:
    service.start()
    nothing_is_left(service)


@moments(0, 100, soak=(5, 20, 50, 200, 500, 1000))
def test_killed_while_it_stops(service: LocalService, delay_ms: int) -> None:
    service.start()
    lives = {create(service) for _ in range(3)}
    begin(service, Request("POST", "/v1/service/stop"))
    time.sleep(delay_ms / 1000)
    nothing_is_left(service, lives)


@moments(400, 800, soak=(200, 600, 1000, 1500))
def test_killed_while_it_takes_over(service: LocalService, delay_ms: int) -> None:
    service.start()
    lives = {create(service) for _ in range(3)}
    service.end(signal.SIGKILL)
    second = threading.Thread(target=start_quietly, args=(service,), daemon=True)
    second.start()
    time.sleep(delay_ms / 1000)
    service.end(signal.SIGKILL)
    second.join()
    nothing_is_left(service, lives)


def test_killed_again_and_again(service: LocalService) -> None:
    for _ in range(3):
        service.start()
        begin(service, CREATE, CREATE, CREATE)
        time.sleep(0.3)
        service.end(signal.SIGKILL)
    nothing_is_left(service)


def nothing_is_left(service: LocalService, lives: Collection[str] = ()) -> None:
    """Kill the service, start it again, remove what lives, and look; it must work, too.

    Args:
        service: It.
        lives: Sandboxes that must be among what lives.
    """
    service.end(signal.SIGKILL)
    service.start()
    _, body = ask(service, Request("GET", "/v1/sandboxes"))
    found = {f"/v1/sandboxes/{box['id']}" for box in json.loads(body)["sandboxes"]}
    assert found >= set(lives)
    for url in found:
        status, body = ask(service, Request("DELETE", url))
        assert status == 204, body
    settle(service.traces, NOTHING)
    url = create(service)
    _, body = ask(service, Request("POST", url + "/processes", {"command": "echo fine"}))
    assert json.loads(body)["stdout"] == "fine\n"
    assert ask(service, Request("DELETE", url))[0] == 204
    assert service.end() == 0, service.log()
    settle(lambda: traces(service.data_dir), NOTHING)
    assert {path.name for path in service.data_dir.iterdir()} == KEPT
    assert "defect" not in service.log()


def start_quietly(service: LocalService) -> None:
    with contextlib.suppress(AssertionError):
        service.start()


def create(service: LocalService) -> str:
    """A sandbox's address."""
    status, body = ask(service, CREATE)
    assert status == 201, body
    return f"/v1/sandboxes/{json.loads(body)['id']}"


def begin(service: LocalService, *requests: Request) -> None:
    """Make requests in the background; the service's end is theirs."""

    def quietly(request: Request) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(service, request)

    for request in requests:
        threading.Thread(target=quietly, args=(request,), daemon=True).start()


def ask(service: LocalService, request: Request) -> tuple[int, bytes]:
    """Make a request and read all of its answer: status and body."""
    with contextlib.closing(Connection(service.data_dir / "sandlot.sock")) as connection:
        if request.method == "PUT":
            connection.request("PUT", request.path, body=endless(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        else:
            body = None if request.body is None else json.dumps(request.body)
            connection.request(request.method, request.path, body=body, headers={"Content-Type": "application/json", **request.headers})
        response = connection.getresponse()
        return response.status, response.read()


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 65536
        time.sleep(0.001)


class Connection(http.client.HTTPConnection):
    """HTTP on a unix socket, with nothing left open whenever the service dies."""

    def __init__(self, path: Path) -> None:
        super().__init__("sandlot", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
