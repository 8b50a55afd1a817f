"""Connections to the port of package indexes, against real sockets of this machine."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import cast

import pytest

from sandlot.guest.flow.loop import Loop
from sandlot.guest.main import Guest
from sandlot.guest.sockets.relay import Carried, Relay
from sandlot.protocol import events, schema
from sandlot.protocol.fast_imports import socket as lean

STREAM = 2
PATIENCE_S = 20.0
"""Limit of a read that only a defect keeps waiting."""


@pytest.mark.parametrize("by", ["the host", "the link"])
def test_connection_that_is_cut_off_is_reset(by: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    loop = Loop()
    connection = SimpleNamespace(reset=lambda *_: None, consumed=lambda *_: None, room=lambda _stream: 1, is_full=False)
    wire = SimpleNamespace(connection=connection, flush_soon=lambda: None)
    guest = cast("Guest", SimpleNamespace(loop=loop, wire=wire))
    relay = Relay(guest)
    carried = Carried(guest, relay, lean.socket(fileno=accepted.detach()))
    carried.stream = STREAM
    relay.by_stream[STREAM] = carried
    with client:
        carried.on_stream(events.Bytes(STREAM, schema.BODY, b"half", 4))
        loop.turn()
        assert client.recv(100) == b"half"

        if by == "the host":
            carried.on_stream(events.WasReset(STREAM, {"code": "internal", "message": "It failed."}))
        else:
            relay.drop_streams()

        with pytest.raises(ConnectionResetError):
            client.recv(100)


def test_request_waits_in_its_socket_while_all_streams_of_the_guest_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.guest.sockets.relay.PAUSE_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
        accepted, _ = listener.accept()
    loop = Loop()
    sent: list[bytes] = []
    connection = SimpleNamespace(
        is_full=True,
        asleep=False,
        room=lambda _stream: 1,
        open=lambda _head: STREAM,
        send_bytes=lambda _stream, _channel, data: sent.append(data),
        reset=lambda *_: None,
    )
    guest = cast("Guest", SimpleNamespace(loop=loop, wire=SimpleNamespace(connection=connection, flush_soon=lambda: None)))
    relay = Relay(guest)
    carried = Carried(guest, relay, lean.socket(fileno=accepted.detach()))
    relay.carried.add(carried)
    with client:
        client.sendall(b"GET /")
        for _ in range(3):
            loop.turn()
        assert (sent, carried.idle_since_s) == ([], float("inf"))

        connection.is_full = False
        while not sent:
            loop.turn()
        assert sent == [b"GET /"]
        carried.close()
