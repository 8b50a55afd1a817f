"""Shares of connections, on a scripted clock."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from sandlot.model.access import OwnerId
from sandlot.model.errors import UnavailableError
from sandlot.web.connections import GRACE_S, Connection, ConnectionShares, address_holder, forwarded_address

PROXY = "10.0.0.1"
PROXIES = (ip_network("10.0.0.0/24"), ip_network("fd00::/8"))
KEY, OTHER = OwnerId("0123456789ab"), OwnerId("ba9876543210")


class Table:
    """Shares of eight connections, two for each address and key.

    Args:
        shared: As for :class:`ConnectionShares`.
    """

    def __init__(self, *, shared: bool = True) -> None:
        self.time_s = 0.0
        self.shares = ConnectionShares(8, lambda: self.time_s, shared=shared, trusted_proxies=PROXIES)
        self.closed: list[str] = []

    def open(self, name: str, address: str = "192.0.2.1", *, owner: OwnerId | None = None, in_use: bool = False) -> Connection:
        connection = self.shares.open(address, lambda: self.closed.append(name))
        self.time_s += GRACE_S
        if owner is not None:
            connection.count_for_key(owner)
        if in_use:
            connection.begin_request()
        return connection


def test_idle_connection_without_a_key_is_closed_for_a_new_one_of_its_address() -> None:
    table = Table()
    table.open("a", in_use=True)
    table.open("b")
    table.open("c")
    table.open("elsewhere", "192.0.2.2")
    assert table.closed == ["b"]
    assert table.shares.count() == 3


def test_burst_of_an_address_is_refused_and_not_closed() -> None:
    table = Table()
    for _ in range(2):
        table.shares.open("192.0.2.1", lambda: table.closed.append("burst"))
    with pytest.raises(UnavailableError, match="This address"):
        table.open("c")
    assert table.closed == []


def test_burst_of_many_addresses_closes_no_connection_with_a_key() -> None:
    table = Table()
    table.open("idle with a key", owner=KEY)
    for number in range(7):
        table.shares.open(f"192.0.2.{number}", lambda: table.closed.append("burst"))
    with pytest.raises(UnavailableError, match="All 8 connections"):
        table.shares.open("192.0.2.99", lambda: None)
    assert table.closed == []


def test_connections_with_a_key_do_not_count_for_their_address() -> None:
    table = Table()
    for name, owner in (("a", KEY), ("b", KEY), ("c", OTHER), ("d", OTHER)):
        table.open(name, owner=owner, in_use=True)
    table.open("e")
    assert table.closed == []
    assert table.shares.count_of_key(KEY) == 2


def test_key_beyond_its_share_is_refused_while_its_connections_are_in_use() -> None:
    table = Table()
    first, _ = (table.open(name, owner=KEY, in_use=True) for name in "ab")
    third = table.open("c")
    with pytest.raises(UnavailableError, match="This API key"):
        third.count_for_key(KEY)
    third.count_for_key(OTHER)
    first.end_request()
    table.open("d").count_for_key(KEY)
    assert table.closed == ["a"], "its idle connection makes room"
    assert table.shares.count_of_key(KEY) == 2


def test_refused_connections_take_no_share_and_are_closed_first() -> None:
    table = Table()
    table.open("a", owner=KEY, in_use=True)
    table.open("b", owner=KEY, in_use=True)
    refused = []
    for number in range(5):
        refused.append(table.open(f"refused {number}", in_use=True))
        with pytest.raises(UnavailableError, match="This API key"):
            refused[-1].count_for_key(KEY)
    table.open("idle")
    assert table.closed == []
    table.open("c", "192.0.2.2", owner=OTHER, in_use=True)
    assert table.closed == ["refused 0"]
    refused[-1].count_for_key(OTHER)
    assert table.shares.count_of_key(OTHER) == 2
    table.open("d", "192.0.2.3")
    assert table.closed == ["refused 0", "refused 1"]


def test_full_table_closes_connections_without_a_key_first_and_none_that_is_in_use_with_a_key() -> None:
    table = Table()
    for number in range(3):
        table.open(f"used {number}", owner=OwnerId(f"{number}"), in_use=True)
    idle = table.open("idle with a key", owner=KEY)
    slow = table.open("slow", "192.0.2.1", in_use=True)
    for number in range(3):
        table.open(f"idle {number}", f"192.0.2.{10 + number}")
    for number in range(5):
        table.open(f"new {number}", f"192.0.2.{20 + number}", owner=OwnerId(f"new {number}"), in_use=True)
    assert table.closed == ["idle 0", "idle 1", "idle 2", "slow", "idle with a key"]
    with pytest.raises(UnavailableError, match="All 8 connections"):
        table.open("refused", "192.0.2.99")
    for closed in (idle, slow):  # what happens to them afterwards changes nothing
        closed.end_request()
        closed.count_for_key(OTHER)
        closed.lost()
    assert (table.shares.count(), table.shares.count_of_key(OTHER)) == (8, 0)


def test_lost_connection_gives_its_place_back() -> None:
    table = Table()
    made = [table.open(name, owner=KEY, in_use=True) for name in "ab"]
    for each in made:
        each.lost()
    assert (table.shares.count(), table.shares.count_of_key(KEY)) == (0, 0)


def test_one_user_may_have_all_connections() -> None:
    table = Table(shared=False)
    for number in range(8):
        table.open(str(number), "", owner=KEY, in_use=True)
    with pytest.raises(UnavailableError):
        table.open("more", "")


def test_proxys_requests_count_for_their_clients() -> None:
    table = Table()
    proxied = [table.open(str(number), PROXY) for number in range(5)]
    for each in proxied[:2]:
        each.begin_request()
        each.count_for_address([(b"x-forwarded-for", b"198.51.100.7")])
    proxied[2].begin_request()
    with pytest.raises(UnavailableError, match="This address"):
        proxied[2].count_for_address([(b"x-forwarded-for", b"198.51.100.7")])
    proxied[2].count_for_address([(b"x-forwarded-for", b"198.51.100.8")])
    proxied[0].end_request()
    proxied[3].count_for_address([(b"x-forwarded-for", b"198.51.100.7")])
    assert table.closed == []


def test_header_of_anybody_else_changes_nothing() -> None:
    table = Table()
    for name in "ab":
        table.open(name, in_use=True).count_for_address([(b"x-forwarded-for", b"198.51.100.7")])
    table.open("c")
    assert table.closed == ["a"], "all three count for the address of their peer"


@pytest.mark.parametrize(
    "values,found",
    [
        ([], PROXY),
        ([b"198.51.100.7"], "198.51.100.7"),
        ([b"203.0.113.5, 198.51.100.7"], "198.51.100.7"),
        ([b"203.0.113.5", b"198.51.100.7"], "198.51.100.7"),
        ([b"203.0.113.5, 198.51.100.7, 10.0.0.2,10.0.0.3"], "198.51.100.7"),
        ([b"2001:db8::1, fd00::2"], "2001:db8::1"),
        ([b"::ffff:198.51.100.7"], "198.51.100.7"),
        ([b"198.51.100.7, unknown"], PROXY),
        ([b"198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
        ([b"198.51.100.7:1234"], PROXY),
        ([b"198.51.100.7,"], PROXY),
        ([b"10.0.0.4, 10.0.0.5"], "10.0.0.4"),
        ([b"198.51.100.7" + b", 10.0.0.2" * 10_000], "10.0.0.2"),
        ([b"\xff, \xff"], PROXY),
    ],
)
def test_forwarded_address_is_the_rightmost_one_that_is_no_proxy(values: list[bytes], found: str) -> None:
    assert forwarded_address(PROXY, values, PROXIES) == found


def test_addresses_of_one_ipv6_network_have_one_share() -> None:
    assert address_holder("2001:db8:1:2:3::4") == address_holder("2001:db8:1:2:ffff::") != address_holder("2001:db8:1:3::")
    assert address_holder("::ffff:192.0.2.1") == address_holder("192.0.2.1")
