"""Promise: a policy changes while programs run, and no program hangs over a change, a snapshot, a fork, a hibernation or a killed service."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from sandlot import Network, Sandbox
from tests.network.conftest import COPIED
from tests.support.internet import Internet, Server, http_reply
from tests.support.localservice import LocalService
from tests.support.network_client import Client

ADDRESS, PATIENCE_S = "23.9.0.1", 60
ALLOWED = ["db.example.com:5432", "api.example.com"]
ON_GVISOR = pytest.mark.parametrize("isolation", ["gvisor", pytest.param(COPIED, marks=pytest.mark.soak)], indirect=True, scope="module")
"""For tests that save memory, which containers cannot."""
BLOCKED = """
import errno, socket, time
def tell(text):
    with open("/tmp/state", "a") as file:
        file.write(text + "\\n")
family, kind, _, _, address = socket.getaddrinfo("db.example.com", 5432, type=socket.SOCK_STREAM)[0]
def ask(connection):
    connection.sendall(b"query\\n")
    return connection.recv(100).decode().strip()
with socket.socket(family, kind) as connection:
    connection.connect(address)
    tell(ask(connection))
    try:
        tell(f"received {connection.recv(100)}")
    except OSError as error:
        tell(errno.errorcode[error.errno])
while True:
    with socket.socket(family, kind) as connection:
        try:
            connection.connect(address)
            tell(ask(connection))
        except ConnectionRefusedError:  # the sandbox is being saved
            time.sleep(0.02)
            continue
        except OSError as error:
            tell(errno.errorcode[error.errno])
        break
"""
"""A program that is blocked in a read, and connects to the same address again when the read ends."""


@pytest.fixture(scope="module", autouse=True)
def database(net: Internet) -> Server:
    net.names |= {"db.example.com": [ADDRESS], "api.example.com": [ADDRESS], "other.example.com": [ADDRESS]}
    net.serve((ADDRESS, 80), reply=http_reply)
    return net.serve((ADDRESS, 5432))


@pytest.fixture
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(network=Network("allowlist", allow=ALLOWED)) as made:
        yield made


def start_blocked(sandbox: Sandbox) -> None:
    """Start the program, and wait until it is blocked in a read."""
    sandbox.files.write("/tmp/state", "")
    sandbox.files.write("/tmp/blocked.py", BLOCKED)
    sandbox.commands.run(["python3", "/tmp/blocked.py"], background=True)
    assert wait_for_states(sandbox, 1) == ["echo query"]


def wait_for_states(sandbox: Sandbox, count: int) -> list[str]:
    """Wait until the program has told so many results, and return them."""
    return wait_until(lambda: sandbox.files.read("/tmp/state").splitlines(), lambda states: len(states) >= count)


def wait_until(read: Callable[[], list[str]], is_enough: Callable[[list[str]], bool]) -> list[str]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_enough(found := read()):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)
    return found


@pytest.mark.smoke
def test_change_closes_connections_that_are_no_longer_allowed(sandbox: Sandbox) -> None:
    client = Client(sandbox)
    start_blocked(sandbox)
    sandbox.update(network=["api.example.com", "other.example.com"])
    assert wait_for_states(sandbox, 3) == ["echo query", "ECONNRESET", "ECONNRESET"]
    assert client.get("other.example.com").status == 200
    sandbox.update(network="none")
    assert client.attempt("other.example.com", 80, b"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n").received[:12] in {b"", b"HTTP/1.1 403"}
    sandbox.update(network=ALLOWED)
    assert client.attempt("db.example.com", 5432, b"query\n", until="query").received == b"echo query\n"


def test_change_keeps_connections_that_are_still_allowed(sandbox: Sandbox) -> None:
    start_blocked(sandbox)
    sandbox.update(network=Network("allowlist", allow=["**.example.com:*"]))
    sandbox.update(network=Network("internet"))
    assert Client(sandbox).get("api.example.com").status == 200
    assert sandbox.files.read("/tmp/state").splitlines() == ["echo query"]


@ON_GVISOR
def test_snapshot_and_fork_reset_connections_in_source_and_copy(sandbox: Sandbox, service: LocalService) -> None:
    start_blocked(sandbox)
    snapshot = sandbox.create_snapshot()
    assert wait_for_states(sandbox, 3) == ["echo query", "ECONNRESET", "echo query"]
    with Sandbox.create(snapshot=snapshot.id, client=service.client) as copy:
        assert wait_for_states(copy, 3) == ["echo query", "ECONNRESET", "echo query"]
        assert Client(copy).get("api.example.com").status == 200
        assert Client(copy).get("other.example.com").status == 403
    start_blocked(sandbox)
    (fork,) = sandbox.fork()
    with fork:
        for each in (sandbox, fork):
            assert wait_for_states(each, 3) == ["echo query", "ECONNRESET", "echo query"]


@ON_GVISOR
def test_hibernated_sandbox_has_its_names_and_policy_when_it_wakes(sandbox: Sandbox) -> None:
    start_blocked(sandbox)
    sandbox.hibernate()
    sandbox.resume()
    assert wait_for_states(sandbox, 3) == ["echo query", "ECONNRESET", "echo query"]
    client = Client(sandbox)
    assert (client.get("api.example.com").status, client.get("other.example.com").status) == (200, 403)


def test_paused_sandbox_goes_on_with_its_connections(sandbox: Sandbox) -> None:
    start_blocked(sandbox)
    sandbox.pause()
    sandbox.resume()
    assert Client(sandbox).get("api.example.com").status == 200
    assert sandbox.files.read("/tmp/state").splitlines()[0] == "echo query"


def test_killed_service_resets_connections_and_the_next_one_has_the_policy(sandbox: Sandbox, service: LocalService) -> None:
    start_blocked(sandbox)
    service.end(signal.SIGKILL)
    service.start()
    assert wait_for_states(sandbox, 2)[:2] == ["echo query", "ECONNRESET"]
    client = Client(sandbox)
    assert (client.get("api.example.com").status, client.get("other.example.com").status) == (200, 403)
