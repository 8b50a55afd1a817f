"""Connections to the port of the package index, against real sockets of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.net import package_proxy
from sandlot.guest.net.package_proxy import PackageProxy, ProxiedConnection
from sandlot.protocol import events, schema
from sandlot.protocol.fast_imports import socket as fast_socket
from tests.support.guest import JoinedLink

PATIENCE_S = 20.0
"""Limit of a read that only a defect keeps waiting."""


class Inside(JoinedLink):
    """A guest with the package proxy and one client that has connected to it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.proxy = PackageProxy(self.loop, self.router)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
            accepted, _ = listener.accept()
        accepted.setblocking(False)
        self.connection: ProxiedConnection = self.proxy.add(fast_socket.socket(fileno=accepted.detach()))

    def turn(self) -> list[events.Event]:
        """Run a turn of the guest, and return the events of the host."""
        self.loop.call_later(0.01, lambda: None)
        self.loop.turn()
        return self.move()

    def request(self) -> int:
        """Let the client send a request, and return the stream that the host gets."""
        self.client.sendall(b"GET /")
        opened: list[int] = []
        while not opened:
            opened += [event.stream for event in self.turn() if isinstance(event, events.Opened)]
        return opened[0]


@pytest.fixture
def inside() -> Generator[Inside]:
    made = Inside()
    with made.client:
        yield made
    made.connection.close()


@pytest.mark.parametrize("by", ["the host", "the link"])
def test_connection_that_is_cut_off_is_reset(inside: Inside, by: str) -> None:
    stream = inside.request()
    inside.host.send_bytes(stream, schema.BODY, b"half")
    inside.move()
    inside.turn()
    assert inside.client.recv(100) == b"half"

    if by == "the host":
        inside.host.reset(stream, "internal", "It failed.")
        inside.move()
    else:
        inside.greet()

    with pytest.raises(ConnectionResetError):
        inside.client.recv(100)


def test_request_and_response_are_forwarded_completely(inside: Inside) -> None:
    stream = inside.request()
    inside.client.shutdown(socket.SHUT_WR)
    received: list[events.Event] = []
    while not any(isinstance(event, events.Ended) for event in received):
        received += inside.turn()

    inside.host.send_bytes(stream, schema.BODY, b"whole")
    inside.host.end(stream)
    inside.move()
    inside.turn()

    assert inside.client.recv(100) == b"whole"
    assert inside.client.recv(100) == b""
    assert len(inside.router) == 0


def test_request_is_reset_while_the_guest_is_asleep(inside: Inside) -> None:
    inside.protocol.asleep = True
    inside.client.sendall(b"GET /")
    inside.turn()

    with pytest.raises(ConnectionResetError):
        inside.client.recv(100)


def test_request_waits_in_its_socket_while_all_streams_of_the_guest_are_open(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_proxy, "PAUSE_S", 0.001)
    streams = []
    while not inside.router.is_full:
        streams.append(inside.protocol.open({"service": "other", "id": os.urandom(1)}))
    inside.move()
    inside.client.sendall(b"GET /")
    for _ in range(3):
        inside.turn()
    assert inside.connection.idle_since_s == float("inf")
    assert len(inside.router) == 0

    inside.protocol.reset(streams[0], "conflict", "It is over.")
    inside.move()

    received: list[events.Event] = []
    while not any(isinstance(event, events.Bytes) for event in received):
        received += inside.turn()
    assert [event.data for event in received if isinstance(event, events.Bytes)] == [b"GET /"]


def test_48_connections_are_served_at_once_and_others_wait(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_proxy, "PAUSE_S", 0.001)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        server.setblocking(False)
        listener = fast_socket.socket(fileno=os.dup(server.fileno()))
        stack.callback(listener.close)
        monkeypatch.setattr(package_proxy, "_open_listener", lambda: listener)
        inside.proxy.listen()
        clients = [inside.client, *(stack.enter_context(socket.create_connection(server.getsockname())) for _ in range(60))]
        for client in clients:
            client.sendall(b"GET /")
        opened: list[int] = []

        def turn() -> None:
            opened.extend(event.stream for event in inside.turn() if isinstance(event, events.Opened))

        while len(opened) < 48:
            turn()
        for _ in range(20):
            turn()
        assert len(opened) == 48

        # Each connection that ends lets one of the others in.
        for number in range(len(clients)):
            while len(opened) <= number:
                turn()
            inside.host.reset(opened[number], "internal", "It failed.")
        inside.turn()
