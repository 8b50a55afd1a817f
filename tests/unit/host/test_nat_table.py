"""The NAT table: its bytes, decoded again, and its effect in a network namespace of the kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

import pytest

from sandlot.host.nat_table import CLOSED_PORT, nat_table
from sandlot.protocol.schema import CAPTURE_PORT, DNS_PORT, NETWORK_ADDRESS
from tests.support.netns import in_sandbox_network

PATIENCE_S = 20.0
"""Limit of a wait that only a defect keeps."""
SO_ORIGINAL_DST = 80

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may create a network namespace")


@dataclass
class Entry:
    """One entry of a decoded table."""

    offset: int
    destination: str
    protocol: int
    udp_ports: tuple[int, ...]
    target: str
    data: bytes


def decode(table: bytes) -> tuple[list[int], list[int], list[Entry]]:
    """Return the offsets of the hooks' first entries and of their policies, and all entries."""
    name, valid, count, size, *rest = struct.unpack_from("=32sIII5I5I", table)
    assert (name.rstrip(b"\0"), valid, len(table)) == (b"nat", 0b11011, 96 + size)
    entries, at = [], 0
    while at < size:
        entry = table[96 + at : 96 + size]
        source, destination, source_mask, mask = (IPv4Address(entry[4 * n : 4 * n + 4]) for n in range(4))
        assert (int(source), int(source_mask), entry[16:80].strip(b"\0")) == (0, 0, b"")
        protocol, flags, inverted = struct.unpack_from("=HBB", entry, 80)
        target_at, next_at = struct.unpack_from("=HH", entry, 88)
        assert (flags, inverted, entry[92:112].strip(b"\0")) == (0, 0, b"")
        assert target_at % 8 == next_at % 8 == 0
        ports: tuple[int, ...] = ()
        if target_at > 112:
            match_size, match = struct.unpack_from("=H29s", entry, 112)
            assert (112 + match_size, match.rstrip(b"\0")) == (target_at, b"udp")
            ports = struct.unpack_from("=4H", entry, 144)
        target_size, target, revision = struct.unpack_from("=H29sB", entry, target_at)
        assert (target_at + target_size, revision) == (next_at, 0)
        prefix = int(mask).bit_count()
        entries.append(Entry(at, f"{destination}/{prefix}", protocol, ports, target.rstrip(b"\0").decode(), entry[target_at + 32 : next_at]))
        at += next_at
    assert (at, len(entries)) == (size, count)
    return list(rest[:5]), list(rest[5:10]), entries


def test_table_has_the_documented_rules_in_order() -> None:
    first, policy, entries = decode(nat_table())

    def is_accept(entry: Entry) -> bool:
        return (entry.target, entry.data) == ("", struct.pack("=i4x", -2))

    redirected = {entry.offset: struct.unpack_from("=II8s2H", entry.data) for entry in entries if entry.target == "REDIRECT"}
    rules = [
        (entry.destination, entry.protocol, entry.udp_ports, socket.ntohs(redirected[entry.offset][3]) if entry.offset in redirected else None)
        for entry in entries
        if first[3] <= entry.offset < policy[3]
    ]
    assert rules == [
        ("127.0.0.0/8", 0, (), None),
        (f"{NETWORK_ADDRESS}/32", 0, (), None),
        ("0.0.0.0/0", socket.IPPROTO_TCP, (), CAPTURE_PORT),
        ("0.0.0.0/0", socket.IPPROTO_UDP, (0, 65535, 53, 53), DNS_PORT),
        ("0.0.0.0/0", socket.IPPROTO_UDP, (), CLOSED_PORT),
    ]
    assert all((ranges, flags, addresses, low) == (1, 2, bytes(8), high) for ranges, flags, addresses, low, high in redirected.values())
    by_offset = {entry.offset: entry for entry in entries}
    for hook in (0, 1, 3, 4):
        assert is_accept(by_offset[policy[hook]])
        assert by_offset[policy[hook]].destination == "0.0.0.0/0"
        assert first[hook] == policy[hook] or hook == 3
    assert (entries[-1].target, entries[-1].data.rstrip(b"\0")) == ("ERROR", b"ERROR")
    assert [is_accept(entry) for entry in entries] == [entry.target == "" for entry in entries]


def original_destination(connection: socket.socket) -> tuple[str, int]:
    port, address = struct.unpack_from("!2xH4s", connection.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, 16))
    return socket.inet_ntoa(address), port


def connect(address: str, port: int, listener: socket.socket) -> tuple[str, int]:
    """Connect to a destination; return the destination that the listener is told."""
    with socket.create_connection((address, port), timeout=PATIENCE_S) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert client.getpeername() == (address, port)
            return original_destination(accepted)


@needs_root
def test_tcp_to_other_hosts_is_redirected_with_its_original_destination() -> None:
    def work() -> None:
        with socket.create_server(("127.0.0.1", CAPTURE_PORT)) as listener:
            listener.settimeout(PATIENCE_S)
            for destination in (("198.18.0.1", 443), ("8.8.4.4", 80), ("10.1.2.3", 5432), ("8.8.8.8", 53), ("192.0.2.1", 1), ("1.1.1.1", 65535)):
                assert connect(*destination, listener) == destination

    in_sandbox_network(work)


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "127.5.5.5", NETWORK_ADDRESS])
def test_tcp_to_the_sandbox_itself_is_not_redirected(address: str) -> None:
    def work() -> None:
        with socket.create_server(("0.0.0.0", 8000)) as server, socket.create_server(("127.0.0.1", CAPTURE_PORT)) as listener:  # noqa: S104 - in the namespace
            server.settimeout(PATIENCE_S)
            listener.setblocking(False)
            with socket.create_connection((address, 8000), timeout=PATIENCE_S), server.accept()[0] as accepted:
                assert accepted.getsockname() == (address, 8000)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, 8001), timeout=PATIENCE_S)
            with pytest.raises(BlockingIOError):
                listener.accept()

    in_sandbox_network(work)


@needs_root
def test_dns_to_any_server_is_redirected_and_answered_from_its_address() -> None:
    def work() -> None:
        with contextlib.ExitStack() as stack:
            server, client = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
            server.bind(("127.0.0.1", DNS_PORT))
            for each in (server, client):
                each.settimeout(PATIENCE_S)
            for address in ("192.0.2.1", "8.8.8.8"):
                client.sendto(b"query", (address, 53))
                message, program = server.recvfrom(100)
                server.sendto(message[::-1], program)
                assert client.recvfrom(100) == (b"yreuq", (address, 53))

    in_sandbox_network(work)


@needs_root
@pytest.mark.parametrize("port", [443, 123, 54])
def test_other_udp_fails_at_once(port: int) -> None:
    def work() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(PATIENCE_S)
            client.connect(("8.8.8.8", port))
            client.send(b"hello")
            with pytest.raises(ConnectionRefusedError):
                client.recv(100)

    in_sandbox_network(work)


@needs_root
def test_card_gives_connections_the_address_of_the_sandbox() -> None:
    def work() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("8.8.8.8", 9))
            assert client.getsockname()[0] == NETWORK_ADDRESS

    in_sandbox_network(work)
