"""The network namespace and the card of a sandbox, created in threads of this process."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from sandlot.host import network_card
from sandlot.host.blocking import call_in_own_thread
from sandlot.host.nat_table import nat_table
from sandlot.host.stage import network
from sandlot.protocol.schema import NETWORK_ADDRESS
from tests.support.netns import in_sandbox_network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may create a network namespace")

NAMESPACE = Path("/proc/thread-self/ns/net")


def names() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def test_card_is_in_a_new_namespace_and_the_host_is_unchanged() -> None:
    namespace, cards = NAMESPACE.readlink(), names()

    def inside() -> tuple[Path, list[str]]:
        network.private_network(())
        if (found := NAMESPACE.readlink()) != namespace:
            network.card("eth0", NETWORK_ADDRESS, nat_table())
        return found, names()

    found, created = call_in_own_thread(inside)
    assert found != namespace
    assert created == ["eth0", "lo"]
    assert (NAMESPACE.readlink(), names()) == (namespace, cards)


def test_settings_and_flags_of_the_card() -> None:
    def work() -> None:
        assert Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text() == "0\n"
        assert Path("/proc/sys/net/ipv4/tcp_max_tw_buckets").read_text() == "4096\n"
        (route,) = [line.split() for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]]
        assert (route[0], route[1], route[2], route[7]) == ("eth0", "00000000", "00000000", "00000000")
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client, pytest.raises(OSError, match="unreachable"):
            client.connect(("2001:db8::1", 9))
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server, socket.create_connection(server.getsockname()[:2]):
            server.accept()[0].close()

    in_sandbox_network(work)


def test_copied_card_is_an_address_of_the_loopback_device_without_a_route() -> None:
    def work() -> tuple[list[str], list[str], int]:
        network.private_network(())
        network.loopback_card(NETWORK_ADDRESS, nat_table())
        with socket.create_server((NETWORK_ADDRESS, 0)) as server, socket.create_connection(server.getsockname()):
            server.accept()[0].close()
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            unreachable = client.connect_ex(("198.18.0.1", 53))
        return names(), Path("/proc/thread-self/net/route").read_text().splitlines()[1:], unreachable

    assert call_in_own_thread(work) == (["lo"], [], errno.ENETUNREACH)


@pytest.mark.parametrize("is_copied", [False, True])
def test_host_that_cannot_create_a_card_is_told_the_reason(is_copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    assert network_card.find_card_problem(is_copied=is_copied) == ""

    def refuse(_descriptor: int, _table: bytes) -> None:
        raise OSError(92, "Protocol not available")

    monkeypatch.setattr(network, "replace_ip_table", refuse)
    problem = network_card.find_card_problem(is_copied=is_copied)
    assert "iptable_nat" in problem
    assert "Protocol not available" in problem
