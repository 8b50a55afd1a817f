"""Addresses: those for special purposes and those of this host are refused in every notation."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from sandlot.egress.policy.addresses import is_allowed, is_public, is_reachable, is_reachable_network

SPECIAL = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1"),  # noqa: S104 - nothing is bound
    *("172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1"),
    *("2001::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0"),
    *("fec0::1", "ff02::1", "ff0e::1", "4000::1", "2606:4700::1111%eth0"),
)
PUBLIC = ("8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.1", "192.169.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::200e")


@pytest.mark.parametrize("address", SPECIAL)
def test_special_purpose_address_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize("address", PUBLIC)
def test_global_unicast_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_network_of_the_operator_overrides_the_policy() -> None:
    networks = [ip_network("10.1.2.0/24"), ip_network("fd00::/8")]
    assert is_allowed(ip_address("10.1.2.3"), networks)
    assert is_allowed(ip_address("fd00::1"), networks)
    assert not is_allowed(ip_address("10.1.3.3"), networks)
    assert not is_allowed(ip_address("::ffff:10.1.2.3"), networks)


@pytest.mark.parametrize(
    "address, private, is_reached",
    [
        ("8.8.8.8", (), False),
        ("8.8.8.8", ("8.8.8.0/24",), False),
        ("8.8.8.8", ("0.0.0.0/0", "::/0"), False),
        ("8.8.8.8", ("8.8.8.8",), True),
        ("10.1.2.3", ("10.0.0.0/8",), False),
        ("10.1.2.3", ("10.0.0.0/8", "10.1.2.3"), True),
        ("fd00::1", ("fd00::1/128",), True),
        ("::ffff:10.1.2.3", ("10.1.2.3",), False),
    ],
)
def test_own_address_is_reached_only_if_it_is_listed_alone(address: str, private: tuple[str, ...], is_reached: bool) -> None:  # noqa: FBT001 - a row
    networks = [ip_network(network) for network in private]
    assert is_reachable(ip_address(address), networks, is_own=lambda _: True) is is_reached
    assert is_reachable(ip_address(address), networks, is_own=lambda _: False) is is_allowed(ip_address(address), networks)


@pytest.mark.parametrize(
    "network, is_reached",
    [
        ("8.8.8.0/24", True),
        ("2606:4700::/32", True),
        ("10.0.0.0/8", False),
        ("10.1.0.0/16", True),
        ("8.0.0.0/5", False),
        ("0.0.0.0/0", False),
        ("192.0.2.0/24", False),
        ("fd00::/8", False),
        ("::/0", False),
        ("8.8.8.8", True),
        ("9.9.9.9", False),
    ],
)
def test_network_is_reached_if_it_is_public_or_listed(network: str, is_reached: bool) -> None:  # noqa: FBT001 - a row
    assert is_reachable_network(ip_network(network), [ip_network("10.1.0.0/16")], is_own=lambda address: str(address) == "9.9.9.9") is is_reached
