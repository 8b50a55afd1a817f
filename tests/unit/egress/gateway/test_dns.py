"""Lookups of records at a name server on loopback, and what of its response a program gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.rrset
import pytest

from sandlot.egress.gateway.dns import look_up
from sandlot.egress.gateway.gateway import LOOKUPS_BURST
from tests.unit.egress.gateway.world import allowing, sandbox

Answer = Callable[[dns.message.Message], object]


class NameServer(asyncio.DatagramProtocol):
    """A name server that lets a function complete each response."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        self.asked.append(query.question[0].to_text())
        response = dns.message.make_response(query)
        self.answer(response)
        self.transport.sendto(response.to_wire(), address)  # type: ignore[attr-defined]

    def resolver(self) -> dns.asyncresolver.Resolver:
        """Return a resolver that asks this server."""
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = self.port
        return resolver


@contextlib.asynccontextmanager
async def name_server(answer: Answer) -> AsyncIterator[NameServer]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(lambda: NameServer(answer), local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()


def mail(response: dns.message.Message) -> None:
    response.answer.append(dns.rrset.from_text("a.test.", 60, "IN", "MX", "10 mail.a.test."))
    response.answer.append(dns.rrset.from_text("mail.a.test.", 60, "IN", "A", "10.0.0.1"))
    response.additional.append(dns.rrset.from_text("mail.a.test.", 60, "IN", "A", "10.0.0.1"))


def nothing(response: dns.message.Message) -> None:
    response.set_rcode(dns.rcode.NXDOMAIN)


def fail(response: dns.message.Message) -> None:
    response.set_rcode(dns.rcode.SERVFAIL)


async def test_response_has_records_of_the_type_only() -> None:
    async with name_server(mail) as server:
        response = dns.message.from_wire(await look_up("a.test", "MX", server.resolver))
        assert [records.to_text() for records in response.answer] == ["a.test. 60 IN MX 10 mail.a.test."]
        assert response.additional == response.authority == []
        assert [question.to_text() for question in response.question] == ["a.test. IN MX"]
        assert response.edns == -1


@pytest.mark.parametrize("answer, code", [(nothing, dns.rcode.NXDOMAIN), (fail, dns.rcode.SERVFAIL)])
async def test_failure_is_a_response(answer: Answer, code: dns.rcode.Rcode) -> None:
    async with name_server(answer) as server:
        assert dns.message.from_wire(await look_up("a.test", "TXT", server.resolver)).rcode() == code


async def test_only_allowed_names_are_looked_up() -> None:
    async with name_server(mail) as server, sandbox(allowing("a.test:25", "**.b.test"), make_resolver=server.resolver) as world:
        for name, type_ in (
            ("other.test", "MX"),
            ("a.test", "A"),
            ("a.test", "ANY"),
            ("x" * 500, "MX"),
            ("127.0.0.1", "MX"),
            (7, "MX"),
            ("a.test", 7),
        ):
            refused = world.look_up(name, type_)
            assert await refused.read_all() == b""
            assert refused.was_reset
        assert server.asked == []
        allowed = world.look_up("a.test", "MX")
        assert dns.message.from_wire(await allowed.read_all()).answer
        assert not allowed.was_reset
        await world.look_up("x.b.test", "TXT").read_all()
        assert server.asked == ["a.test. IN MX", "x.b.test. IN TXT"]


async def test_lookups_of_a_sandbox_are_limited() -> None:
    async with name_server(nothing) as server, sandbox(allowing("**.a.test"), make_resolver=server.resolver) as world:
        lookups = 1
        while await world.look_up(f"{lookups}.a.test", "TXT").read_all():
            lookups += 1
        assert lookups > LOOKUPS_BURST
        assert len(server.asked) == lookups - 1
