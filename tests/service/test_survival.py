"""After SIGKILL of the service at any moment, the next service finds every sandbox that a client was told of, and removing these leaves nothing.

No process, mount, loop device, control group or folder: ``tests/support/traces.py`` counts them from outside. One state directory goes through
all kills of all tests; the soak run tries more moments. ``test_killed_service.py`` checks that a sandbox is still what it was.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.localservice import TEMPLATE, LocalService
from tests.support.sweeping import sweep
from tests.support.traces import NOTHING, settle, traces

KEPT = {"builds", "files", "format", "lock", "node", "sandboxes", "sandlot.db", "service.log", "signing.key", "store", "runtimes"}
"""What a state directory holds when no service runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a body of JSON, or for PUT one without end."""

    method: str
    path: str
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


CREATE = Request("POST", "/v1/sandboxes", {"template": TEMPLATE, "limits": {"disk_bytes": 64 << 20, "pids": 64}})


def moments(*milliseconds: int, soak: tuple[int, ...]) -> pytest.MarkDecorator:
    """Parametrise a test with delays before the kill, in milliseconds: one list for each run, and one for the soak run."""
    return pytest.mark.parametrize("delays_ms", [pytest.param(milliseconds, id="few"), pytest.param(soak, id="many", marks=pytest.mark.soak)])


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    made = LocalService(folder)
    try:
        made.start()
        yield made
        url = create(made)
        _, body = ask(made, Request("POST", url + "/processes", {"command": "echo fine"}))
        assert json.loads(body)["stdout"] == "fine\n"
        assert ask(made, Request("DELETE", url))[0] == 204
        assert made.end() == 0, made.log()
        settle(lambda: traces(folder), NOTHING)
        assert {path.name for path in folder.iterdir()} == KEPT
        assert "defect" not in made.log()
    finally:
        made.end(signal.SIGKILL)
        sweep(folder)
        shutil.rmtree(folder, ignore_errors=True)


@moments(0, 300, soak=(5, 10, 15, 20, 30, 40, 50, 65, 80, 100, 130, 170, 200, 250, 400, 600, 800))
def test_service_killed_during_creates_leaves_nothing(service: LocalService, delays_ms: Sequence[int]) -> None:
    """What two services in a row left is removed by the third."""
    for number, delay_ms in enumerate(delays_ms):
        begin(service, CREATE, CREATE)
        time.sleep(delay_ms / 1000)
        service.end(signal.SIGKILL)
        service.start()
        if number % 2:
            clean_up(service)
    clean_up(service)


@pytest.mark.slow
@moments(50, soak=(0, 1, 2, 5, 10, 20, 100, 300, 500, 1000, 1800))
def test_service_killed_during_a_delete_leaves_nothing(service: LocalService, delays_ms: Sequence[int]) -> None:
    for delay_ms in delays_ms:
        begin(service, Request("DELETE", create(service)))
        time.sleep(delay_ms / 1000)
        kill_and_clean_up(service)


WORK = (
    {
        "a cell": Request("POST", "/code", {"code": "import subprocess; subprocess.run(['sleep', '1000'])", "timeout": None}),
        "output that is streamed": Request("POST", "/processes", {"command": "yes", "timeout": None}, {"Accept": "text/event-stream"}),
        "an upload": Request("PUT", "/files/content?path=/workspace/big", None),
        "a background process": Request("POST", "/processes", {"command": "sleep 1000", "background": True}),
        "a disk that fills": Request("POST", "/processes", {"command": "head -c 100000000 /dev/zero > a; sync; sleep 100"}),
    },
    {"a fork bomb": Request("POST", "/processes", {"command": ":(){ :|:& };:; sleep 100"})},
)
"""Work of each sandbox: what is done in it -> request."""


@pytest.mark.slow
def test_service_killed_during_a_command_leaves_nothing(service: LocalService) -> None:
    urls = [create(service) for _ in WORK]
    begin(service, *(replace(work, path=url + work.path) for url, works in zip(urls, WORK, strict=True) for work in works.values()))
    time.sleep(1)  # the kill hits all of them wherever they are by then
    assert service.traces() != NOTHING
    kill_and_clean_up(service, urls)


@pytest.mark.slow
@moments(50, soak=(0, 5, 20, 100, 200, 500, 1000))
def test_service_killed_during_its_stop_leaves_nothing(service: LocalService, delays_ms: Sequence[int]) -> None:
    for delay_ms in delays_ms:
        lives = {create(service) for _ in range(2)}
        begin(service, Request("POST", "/v1/service/stop"))
        time.sleep(delay_ms / 1000)
        kill_and_clean_up(service, lives)


@pytest.mark.slow
@moments(600, soak=(200, 400, 800, 1000, 1500))
def test_service_killed_during_recovery_leaves_nothing(service: LocalService, delays_ms: Sequence[int]) -> None:
    lives = {create(service) for _ in range(2)}
    for delay_ms in delays_ms:
        service.end(signal.SIGKILL)
        service.launch()
        time.sleep(delay_ms / 1000)
        service.end(signal.SIGKILL)
        service.start()
    clean_up(service, lives)


def kill_and_clean_up(service: LocalService, lives: Collection[str] = ()) -> None:
    service.end(signal.SIGKILL)
    service.start()
    clean_up(service, lives)


def clean_up(service: LocalService, lives: Collection[str] = ()) -> None:
    """Remove the sandboxes that a killed service left: nothing may be left on the host.

    Args:
        service: The service that was started after the kill.
        lives: URLs of sandboxes that must live on.
    """
    _, body = ask(service, Request("GET", "/v1/sandboxes"))
    found = {f"/v1/sandboxes/{sandbox['id']}" for sandbox in json.loads(body)["sandboxes"]}
    assert found >= set(lives)
    for url in found:
        status, body = ask(service, Request("DELETE", url))
        assert status == 204, body
    settle(service.traces, NOTHING)


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
