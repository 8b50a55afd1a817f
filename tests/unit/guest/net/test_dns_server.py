"""The DNS server of the sandbox: real sockets and the real NAT table in a network namespace, and a host without I/O."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable

import pytest

from sandlot.guest.net import dns_server
from sandlot.guest.net.dns import MX, NO_ERROR, QUERY_BYTES, REFUSED, SERVER_FAILURE, NameTable
from sandlot.guest.net.dns_server import DnsServer
from sandlot.protocol import events, schema
from tests.support.guest import JoinedLinkWithLoop
from tests.support.netns import in_sandbox_network

PATIENCE_S = 20.0
"""Limit of a wait that only a defect keeps."""
NAME = b"\x07example\x03com\0"
DATA = b"\x00\x0a\x04mail\xc0\x0c"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may create a network namespace")


def query(type_: int, id_: int = 7) -> bytes:
    return struct.pack("!6H", id_, 0x0100, 1, 0, 0, 0) + NAME + struct.pack("!2H", type_, 1)


RESPONSE = struct.pack("!6H", 0, 0x8180, 1, 1, 0, 0) + query(MX)[12:] + struct.pack("!3HIH", 0xC00C, MX, 1, 300, len(DATA)) + DATA
"""Response of a host to a query of type MX."""


class Inside(JoinedLinkWithLoop):
    """A guest with a DNS server, its host, and one program.

    Attributes:
        program: Socket of the program.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = NameTable()
        self.server = DnsServer(self.loop, self.router, self.table)
        self.server.open()
        self.program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.program.connect((schema.NAMESERVER, 53))
        self.program.setblocking(False)

    def close(self) -> None:
        self.program.close()
        listener = self.server._socket  # noqa: SLF001 - a guest never closes its port
        if listener is not None:
            listener.close()

    def response(self) -> bytes:
        """Wait for the next response of the server."""
        while True:
            with contextlib.suppress(BlockingIOError):
                return self.program.recv(65535)
            self.turn()

    def lookup(self, id_: int = 7) -> int:
        """Send a query that the host must answer; return the stream that the host gets."""
        before = len(self.opened)
        self.program.send(query(MX, id_))
        self.until(lambda: len(self.opened) > before)
        return self.opened[-1].stream


def inside(work: Callable[[Inside], None]) -> None:
    """Run a test in a network namespace."""

    def run() -> None:
        with contextlib.closing(Inside()) as made:
            work(made)

    in_sandbox_network(run)


def code_of(response: bytes) -> int:
    return response[3] & 0xF


def test_address_is_answered_without_the_host() -> None:
    def work(made: Inside) -> None:
        made.program.send(query(1))
        response = made.response()
        assert (response[:2], code_of(response), made.table.find(response[-4:])) == (b"\0\x07", NO_ERROR, "example.com")
        assert made.received == []

    inside(work)


def test_other_record_is_answered_by_the_host() -> None:
    def work(made: Inside) -> None:
        stream = made.lookup()
        assert made.opened[0].head == {"service": schema.DNS, "args": {"name": "example.com", "type": "MX"}}
        for piece in (RESPONSE[:20], RESPONSE[20:]):
            made.host.send_bytes(stream, schema.BODY, piece)
        made.host.end(stream)
        made.move()

        assert made.response() == b"\0\x07" + RESPONSE[2:]
        assert len(made.router) == 0

    inside(work)


def test_record_that_the_host_refuses_is_refused() -> None:
    def work(made: Inside) -> None:
        made.host.reset(made.lookup(), "permission_denied", "host_not_allowed")
        made.move()
        assert code_of(made.response()) == REFUSED

    inside(work)


@pytest.mark.parametrize("response", [b"", b"x", bytes(70_000)])
def test_response_of_the_host_without_sense_is_a_server_failure(response: bytes) -> None:
    def work(made: Inside) -> None:
        stream = made.lookup()
        made.host.send_bytes(stream, schema.BODY, response)
        made.host.end(stream)
        made.move()
        assert code_of(made.response()) == SERVER_FAILURE
        made.until(lambda: not len(made.router))

    inside(work)


def test_host_that_does_not_answer_is_a_server_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_server, "LOOKUP_S", 0.01)

    def work(made: Inside) -> None:
        stream = made.lookup()
        assert code_of(made.response()) == SERVER_FAILURE
        made.until(lambda: any(isinstance(event, events.WasReset) and event.stream == stream for event in made.received))

    inside(work)


def test_query_while_no_stream_can_be_opened_is_a_server_failure() -> None:
    def work(made: Inside) -> None:
        made.protocol.asleep = True
        made.program.send(query(MX))
        assert code_of(made.response()) == SERVER_FAILURE

    inside(work)


def test_16_queries_wait_for_the_host_and_further_ones_fail() -> None:
    def work(made: Inside) -> None:
        streams = [made.lookup(id_) for id_ in range(dns_server.MAX_LOOKUPS)]
        made.program.send(query(MX, 99))
        failed = made.response()
        assert (failed[1], code_of(failed)) == (99, SERVER_FAILURE)

        made.host.reset(streams[0], "permission_denied", "host_not_allowed")
        made.move()
        refused = made.response()
        assert (refused[1], code_of(refused)) == (0, REFUSED)
        made.lookup(100)

    inside(work)


def test_flood_of_malformed_queries_is_answered_and_the_server_continues() -> None:
    def work(made: Inside) -> None:
        for message in (b"", b"x", b"x" * 11, os.urandom(QUERY_BYTES + 10), query(1)[:20], bytes(12)):
            made.program.send(message)
            made.turn()
        made.program.send(query(1, 8))
        while (response := made.response())[:2] != b"\0\x08":
            assert response[2] & 0x80
        assert code_of(response) == NO_ERROR

    inside(work)


def test_response_to_a_program_that_has_ended_is_dropped() -> None:
    def work(made: Inside) -> None:
        made.program.send(query(1))
        made.program.close()
        made.turn()
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as made.program:
            made.program.connect(("8.8.8.8", 53))
            made.program.setblocking(False)
            made.program.send(query(1, 9))
            assert made.response()[:2] == b"\0\x09"

    inside(work)


def test_open_server_stays_open() -> None:
    def work(made: Inside) -> None:
        made.server.open()
        made.program.send(query(1))
        assert code_of(made.response()) == NO_ERROR

    inside(work)
