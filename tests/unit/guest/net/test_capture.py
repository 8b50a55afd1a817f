"""Captured connections: real sockets and the real NAT table in a network namespace, and a host without I/O."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import pytest

from sandlot.guest.net import capture
from sandlot.guest.net.capture import CaptureListener
from sandlot.guest.net.dns import NameTable
from sandlot.guest.net.socket_stream import send_reset_at_close
from sandlot.protocol import events, schema, stream_table
from tests.support.guest import JoinedLinkWithLoop
from tests.support.netns import in_sandbox_network

PATIENCE_S = 20.0
"""Limit of a wait that only a defect keeps."""
ADDRESS = ("8.8.4.4", 443)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may create a network namespace")


class Inside(JoinedLinkWithLoop):
    """A guest that captures connections, its host, and the clients of a test."""

    def __init__(self, clients: contextlib.ExitStack) -> None:
        super().__init__()
        self.table = NameTable()
        self.capture = CaptureListener(self.loop, self.router, self.table)
        self.clients = clients
        clients.callback(self.close)

    def close(self) -> None:
        self.capture.suspend()
        listener = self.capture._listener  # noqa: SLF001 - a guest never closes its port
        if listener is not None:
            listener.close()

    def connect(self, address: tuple[str, int] = ADDRESS) -> socket.socket:
        return self.clients.enter_context(socket.create_connection(address, timeout=PATIENCE_S))

    def captured(self, address: tuple[str, int] = ADDRESS) -> tuple[socket.socket, int]:
        """Connect to an address; return the client and the stream that the host gets."""
        before = len(self.opened)
        client = self.connect(address)
        self.until(lambda: len(self.opened) > before)
        return client, self.opened[-1].stream


def inside(work: Callable[[Inside], None]) -> None:
    """Run a test in a network namespace."""

    def run() -> None:
        with contextlib.ExitStack() as clients:
            made = Inside(clients)
            made.capture.open()
            work(made)

    in_sandbox_network(run)


def assert_reset(client: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_host_gets_the_name_of_a_synthetic_address_and_other_addresses_as_they_are() -> None:
    def work(made: Inside) -> None:
        address = made.table.add("git.example.com")
        assert address is not None
        for host, port in ((socket.inet_ntoa(address), 22), ("8.8.4.4", 443), ("10.1.2.3", 5432), ("198.18.7.7", 80), ("169.254.169.254", 80)):
            made.captured((host, port))

        assert [event.head for event in made.opened] == [
            {"service": schema.CONNECT, "args": {"host": host, "port": port}}
            for host, port in (("git.example.com", 22), ("8.8.4.4", 443), ("10.1.2.3", 5432), ("198.18.7.7", 80), ("169.254.169.254", 80))
        ]

    inside(work)


def test_bytes_and_ends_are_copied_in_both_directions() -> None:
    def work(made: Inside) -> None:
        client, stream = made.captured()
        made.host.send_bytes(stream, schema.BODY, b"220 ready")
        made.turn()
        made.turn()
        assert client.recv(100) == b"220 ready"

        client.sendall(b"HELO")
        client.shutdown(socket.SHUT_WR)
        made.until(lambda: any(isinstance(event, events.Ended) for event in made.received))
        assert b"".join(event.data for event in made.received if isinstance(event, events.Bytes)) == b"HELO"

        made.host.send_bytes(stream, schema.BODY, b"250 hello")
        made.host.end(stream)
        made.until(lambda: not len(made.capture))
        assert client.recv(100) == b"250 hello"
        assert client.recv(100) == b""
        assert len(made.router) == 0

    inside(work)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_large_transfers_arrive_complete(size: int) -> None:
    def work(made: Inside) -> None:
        client, stream = made.captured()
        client.setblocking(False)
        sent, received = 0, 0

        def pump() -> bool:
            nonlocal sent, received
            if sent < size and (room := made.host.room(stream)):
                sent += (piece := min(room, size - sent, 4000))
                made.host.send_bytes(stream, schema.BODY, b"x" * piece)
            with contextlib.suppress(BlockingIOError):
                received += len(client.recv(1 << 20))
            return received == size

        made.until(pump)

    inside(work)


@pytest.mark.parametrize("by", ["the host", "the link"])
def test_refused_connection_is_reset(by: str) -> None:
    def work(made: Inside) -> None:
        client, stream = made.captured()
        if by == "the host":
            made.host.reset(stream, "permission_denied", "host_not_allowed")
            made.move()
        else:
            made.greet()

        assert_reset(client)
        assert (len(made.capture), len(made.router)) == (0, 0)

    inside(work)


def test_connection_that_the_program_resets_is_reset_for_the_host() -> None:
    def work(made: Inside) -> None:
        client, stream = made.captured()
        client.sendall(b"half")
        made.turn()
        send_reset_at_close(client)
        client.close()
        made.until(lambda: any(isinstance(event, events.WasReset) and event.stream == stream for event in made.received))
        assert (len(made.capture), len(made.router)) == (0, 0)

    inside(work)


def test_program_that_connects_to_the_port_of_the_guest_is_reset() -> None:
    def work(made: Inside) -> None:
        client = made.connect(("127.0.0.1", schema.CAPTURE_PORT))
        made.turn()
        assert_reset(client)
        assert made.opened == []

    inside(work)


def test_connection_is_reset_while_the_guest_is_asleep() -> None:
    def work(made: Inside) -> None:
        made.protocol.asleep = True
        client = made.connect()
        made.turn()
        assert_reset(client)

    inside(work)


def test_connections_beyond_the_limit_are_reset_and_the_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_CONNECTIONS", 2)

    def work(made: Inside) -> None:
        (first, stream), (second, _) = made.captured(), made.captured()
        third = made.connect()
        made.turn()
        assert_reset(third)

        made.host.send_bytes(stream, schema.BODY, b"a")
        made.turn()
        made.turn()
        assert first.recv(1) == b"a"
        second.close()
        made.until(lambda: any(isinstance(event, events.Ended) for event in made.received))
        made.host.end(made.opened[1].stream)
        made.until(lambda: len(made.capture) == 1)
        made.captured()

    inside(work)


def test_connections_beyond_the_streams_of_the_link_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_table, "GUEST_STREAMS_MAX", 64)

    def work(made: Inside) -> None:
        clients = [made.connect() for _ in range(stream_table.GUEST_STREAMS_MAX)]
        made.until(lambda: len(made.opened) == len(clients))
        further = made.connect()
        made.turn()
        assert_reset(further)
        assert len(made.opened) == len(clients)

    inside(work)


def test_1024_connections_are_open_at_once_and_are_reset_together() -> None:
    def work(made: Inside) -> None:
        clients = []
        for _ in range(1024):
            clients.append(made.connect())
            if len(clients) % 100 == 0:  # fewer than the accept queue holds
                made.until(lambda: len(made.opened) == len(clients))
        made.until(lambda: len(made.opened) == len(clients))
        further = made.connect()
        made.turn()
        assert_reset(further)

        for event in made.opened:
            made.host.send_bytes(event.stream, schema.BODY, b"%d" % event.stream)
        made.move()
        made.turn()
        assert [client.recv(10) for client in clients] == [b"%d" % event.stream for event in made.opened]

        made.capture.suspend()
        for client in clients:
            assert_reset(client)

    inside(work)


def test_suspension_resets_open_and_waiting_connections_and_refuses_further_ones() -> None:
    def work(made: Inside) -> None:
        opened, _ = made.captured()
        waiting = made.connect()

        made.capture.suspend()
        made.capture.suspend()

        assert_reset(opened)
        assert_reset(waiting)
        with pytest.raises(ConnectionRefusedError):
            made.connect()
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", schema.CAPTURE_PORT))
        made.turn()
        assert (len(made.capture), len(made.router)) == (0, 0)

        made.capture.open()
        made.capture.open()
        made.captured()

    inside(work)


def test_suspension_before_the_first_open_has_no_effect() -> None:
    def run() -> None:
        with contextlib.ExitStack() as clients:
            made = Inside(clients)
            made.capture.suspend()
            made.capture.open()
            made.captured()

    in_sandbox_network(run)


def test_port_that_is_taken_leaves_the_guest_running() -> None:
    def run() -> None:
        with contextlib.ExitStack() as clients, socket.create_server(("127.0.0.1", schema.CAPTURE_PORT)) as thief:
            made = Inside(clients)
            made.capture.open()
            made.capture.suspend()
            thief.close()
            made.capture.open()
            made.captured()

    in_sandbox_network(run)
