"""Tunnels of the guest to real sockets of this machine: addresses, ends of each direction, and resets."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.net import tunnels
from sandlot.guest.net.socket_stream import MAX_PIECES
from sandlot.guest.net.tunnels import MAX_TUNNELS, TunnelService
from sandlot.guest.process.accounts import lookup_account
from sandlot.protocol import events, schema
from sandlot.protocol.fast_imports import socket as lean
from tests.support.guest import JoinedLink

HERE = "127.0.0.1"
PATIENCE_S = 20.0
"""Of a program's end: only what is broken takes so long."""


class Inside(JoinedLink):
    """A guest that serves only tunnels, and its host. The programs are sockets of the test."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.tunnels = TunnelService(self.loop)
        self.said: dict[int, list[object]] = {}
        """By stream: bytes, events and the result, or the code that it was refused with."""
        super().__init__()
        self.rpc.serve({"port.connect": self.tunnels.connect})

    def connect(self, port: int) -> int:
        stream = self.open("port.connect", {"port": port})
        self.said[stream] = []
        self.move()
        return stream

    def send(self, stream: int, *pieces: bytes) -> None:
        """Send each piece as a separate frame."""
        for piece in pieces:
            self.host.send_bytes(stream, schema.BODY, piece)
            self.move()

    def end(self, stream: int) -> None:
        self.host.end(stream)
        self.move()

    def cut(self, stream: int) -> None:
        self.host.reset(stream, "cancelled", "The client went away.")
        self.move()

    def turn(self) -> None:
        self.loop.call_later(0.01, lambda: None)  # maximum time of a turn
        self.loop.turn()
        self.move()

    def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            self.turn()

    def connected(self, stream: int) -> None:
        self.until(lambda: self.said[stream])
        assert self.said[stream] == [{"event": "connected", "address": HERE}]

    def answer(self, stream: int) -> object:
        """Return the result or the error code of the tunnel."""
        self.until(lambda: self.said[stream] and (isinstance(self.said[stream][-1], str) or self.said[stream][-1] == {"result": {}}))
        return self.said[stream][-1]

    def move(self) -> list[events.Event]:
        received = super().move()
        for event in received:
            self._hear(event)
        return received

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Bytes():
                self.said[event.stream].append(event.data)
                self.host.consumed(event.stream, event.credit)
            case events.Received():
                self.said[event.stream].append(event.message)
                self.host.consumed(event.stream, event.credit)
            case events.WasReset():
                self.said[event.stream].append(event.reason["code"])
            case _:
                pass


class Selfish(lean.socket):
    """A socket whose own port is the port that it connects to."""

    results: list[int] = []  # noqa: RUF012 - of the one test that has it

    def connect_ex(self, address: Any) -> int:  # noqa: ANN401 - any family's
        try:
            self.bind(address)
        except OSError as error:  # a machine without ::1
            return error.errno or errno.EIO
        self.results.append(super().connect_ex(address))
        return self.results[-1]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Generator[Inside]:
    monkeypatch.setattr(tunnels, "lookup_account", lambda _name: lookup_account("root"))  # sockets as the user of the test
    made = Inside()
    yield made
    for tunnel in list(made.tunnels.open):
        tunnel.cut()


@pytest.fixture
def listener() -> Generator[socket.socket]:
    with socket.create_server((HERE, 0), backlog=2 * MAX_TUNNELS) as made:
        made.settimeout(PATIENCE_S)
        yield made


def met(inside: Inside, listener: socket.socket) -> tuple[int, socket.socket]:
    """Return a connected tunnel and the program's end of it."""
    stream = inside.connect(listener.getsockname()[1])
    program, _ = listener.accept()
    program.settimeout(PATIENCE_S)
    inside.connected(stream)
    return stream, program


def port_of_nobody() -> int:
    with socket.create_server((HERE, 0)) as made:
        return int(made.getsockname()[1])


def test_tunnel_that_connected_to_itself_is_refused(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "socket", SimpleNamespace(**{**vars(lean), "socket": Selfish}))
    monkeypatch.setattr(Selfish, "results", [])
    alone = Selfish(lean.AF_INET, lean.SOCK_STREAM)
    try:
        assert alone.connect_ex((HERE, port_of_nobody())) == 0
        assert alone.getpeername() == alone.getsockname(), "this kernel lets a socket connect to itself"
    finally:
        alone.close()
    stream = inside.connect(port_of_nobody())
    assert inside.answer(stream) == "port_not_found"
    assert inside.said[stream] == ["port_not_found"], "it was never connected"
    assert Selfish.results[1] in {0, errno.EINPROGRESS}, "it would have been"
    assert not inside.tunnels.open


def test_port_without_a_listener_is_refused(inside: Inside) -> None:
    for port in (port_of_nobody(), *schema.GUEST_PORTS):
        assert inside.answer(inside.connect(port)) == "port_not_found"
    assert not inside.tunnels.open


def test_port_of_the_guest_itself_is_refused_although_it_is_open(inside: Inside, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "GUEST_PORTS", (listener.getsockname()[1],))
    assert inside.answer(inside.connect(listener.getsockname()[1])) == "port_not_found"


@pytest.mark.parametrize("port", [-1, 0, schema.MOST_PORT + 1, 1 << 40])
def test_invalid_port_is_refused(inside: Inside, port: int) -> None:
    assert inside.answer(inside.connect(port)) == "invalid_request"


@pytest.mark.parametrize("cut", ["the client", "the link"])
def test_connection_that_is_cut_off_is_reset(inside: Inside, listener: socket.socket, cut: str) -> None:
    stream, program = met(inside, listener)
    with program:
        inside.send(stream, b"half")
        inside.turn()
        assert program.recv(100) == b"half"
        if cut == "the client":
            inside.cut(stream)
        else:
            inside.greet()
        with pytest.raises(ConnectionResetError):
            program.recv(100)
    assert not inside.tunnels.open


def test_output_of_a_program_that_reads_nothing_is_read_to_its_end(inside: Inside, listener: socket.socket) -> None:
    stream = inside.connect(listener.getsockname()[1])
    program, _ = listener.accept()
    program.sendall(b"last words")
    program.close()
    inside.send(stream, *[b"x"] * (MAX_PIECES + 1))  # two writes in one turn; the second fails before the socket is read
    assert inside.answer(stream) == {"result": {}}
    assert inside.said[stream][1:] == [b"last words", {"event": "end"}, {"result": {}}]
    assert not inside.tunnels.open
