"""Promise: a preview leads to its own port of its own sandbox, and clients of previews cannot hold up the API or each other."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from sandlot import Network, Sandbox
from sandlot.protocol.schema import GUEST_PORTS
from tests.support.localservice import LocalService
from tests.support.traces import settle

PORT = 8000
SERVER = f"""
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(self.path == "/slow")
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"inside")
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
Server(("127.0.0.1", {PORT}), Handler).serve_forever()
"""


class Address:
    """The address of a preview, and requests to it."""

    def __init__(self, sandbox: Sandbox, port: int = PORT) -> None:
        parts = urlsplit(sandbox.get_url(port))
        assert parts.port is not None
        self.port, self.host = parts.port, parts.netloc
        self.token = parts.query.partition("=")[2]

    def get(self, host: str | None = None, token: str | None = None, source: str = "127.0.0.1") -> httpx.Response:
        """Send a request over a new connection."""
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=60) as client:
            headers = {"Host": host or self.host, "X-Sandlot-Preview-Token": token or self.token}
            return client.get(f"http://127.0.0.1:{self.port}/", headers=headers)


@pytest.fixture(scope="module")
def serving(service: LocalService) -> Iterator[Sandbox]:
    """A sandbox with a server."""
    with service.create(network=Network("none"), timeout=1200) as made:
        serve(made)
        yield made


def serve(sandbox: Sandbox) -> None:
    """Start the server, and wait until it listens."""
    sandbox.files.write("/tmp/server.py", SERVER)
    sandbox.commands.run(["python3", "/tmp/server.py"], background=True)
    settle(lambda: any(each.port == PORT for each in sandbox.ports()), True)


def test_a_token_opens_neither_another_sandbox_nor_another_port_nor_the_guest(service: LocalService, serving: Sandbox) -> None:
    address = Address(serving)
    assert address.get().text == "inside"
    with service.create(network=Network("none")) as other:
        serve(other)
        assert address.get(host=Address(other).host).status_code == 401
        assert address.get(host=address.host.replace(f"{PORT}-", "8001-")).status_code == 401
    for port in GUEST_PORTS:
        guest = Address(serving, port)
        assert guest.get().status_code == 502


def test_a_preview_does_not_reach_the_host(serving: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as on_the_host:
        on_the_host.setblocking(False)
        assert Address(serving, on_the_host.getsockname()[1]).get().status_code == 502
        with pytest.raises(BlockingIOError):
            on_the_host.accept()


def test_a_thousand_connections_hold_up_neither_other_clients_nor_the_api(service: LocalService, serving: Sandbox) -> None:
    address = Address(serving)
    opened = service.descriptors()
    with ExitStack() as clients:
        for number in range(1000):
            client = clients.enter_context(
                socket.create_connection(("127.0.0.1", address.port), timeout=60, source_address=(f"127.0.1.{number % 4}", 0))
            )
            client.sendall(b"GET / HTTP/1.1\r\nHost: slow")  # a head that never ends
        settle(lambda: address.get(source="127.0.2.1").text, "inside")  # 503 while all connections are younger than a tenth of a second
        assert [address.get(source="127.0.2.1").text for _ in range(10)] == ["inside"] * 10
        assert serving.commands.run(["echo", "there"]).stdout == "there\n"
    settle(lambda: service.descriptors() - opened, Counter[str]())


def test_two_hundred_requests_at_once_wait_for_their_turn(serving: Sandbox) -> None:
    address = Address(serving)
    head = f"GET /slow HTTP/1.1\r\nHost: {address.host}\r\nX-Sandlot-Preview-Token: {address.token}\r\nConnection: close\r\n\r\n".encode()
    with ExitStack() as clients:
        opened = [clients.enter_context(socket.create_connection(("127.0.0.1", address.port), timeout=60)) for _ in range(200)]
        for client in opened:
            client.sendall(head)
        responses = [b"".join(iter(lambda client=client: client.recv(4096), b"")) for client in opened]  # type: ignore[misc]
    assert Counter(response[:12] + response[-6:] for response in responses) == {b"HTTP/1.1 200inside": 200}
    with serving.forward(PORT) as forward:  # previews leave room for tunnels
        assert httpx.get(f"http://127.0.0.1:{forward.local_port}/").text == "inside"


def test_fifty_requests_resume_a_sandbox_once(service: LocalService, serving: Sandbox) -> None:
    address = Address(serving)
    suspend, event = (serving.hibernate, "sandbox.woken") if service.isolation == "gvisor" else (serving.pause, "sandbox.resumed")
    before = count_events(service, serving, event)
    suspend()
    with ThreadPoolExecutor(50) as threads:
        responses = list(threads.map(lambda _: address.get(), range(50)))
    assert {(response.status_code, response.text) for response in responses} == {(200, "inside")}
    assert count_events(service, serving, event) == before + 1


def count_events(service: LocalService, sandbox: Sandbox, kind: str) -> int:
    """Return the number of events of a type that a sandbox has."""
    return sum(event.type == kind for event in service.client.events.iter(sandbox=sandbox.id))
