"""Hosts as programs write them: names, and addresses in disguise."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandlot.egress.policy.destinations import Destination, parse_destination, parse_host


@pytest.mark.parametrize(
    "text, host",
    [
        ("example.com", "example.com"),
        ("EXAMPLE.com.", "example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_service.example.com", "_service.example.com"),
        ("router", "router"),
        (".".join(["a" * 61] * 4), ".".join(["a" * 61] * 4)),
    ],
)
def test_name_has_one_form(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text, address",
    [
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3.", "10.1.2.3"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0X7F.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("10.0x10203", "10.1.2.3"),
        ("169.254.43518", "169.254.169.254"),
        ("0", "0.0.0.0"),  # noqa: S104 - nothing is bound
        ("0x", "0.0.0.0"),  # noqa: S104 - nothing is bound
        ("::1", "::1"),
        ("::FFFF:127.0.0.1", "::ffff:127.0.0.1"),
        ("64:ff9b::7f00:1", "64:ff9b::7f00:1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("localhost", "127.0.0.1"),
        ("a.b.LOCALHOST.", "127.0.0.1"),
    ],
)
def test_host_that_programs_read_as_an_address_is_an_address(text: str, address: str) -> None:
    assert parse_host(text) == ip_address(address)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", ".a", "a.b..", "-a.b", "a-.b", "a b", "a\0.b", "a.b\n", "user@a.b", "a.b:80", "a.b/x", "bücher.example"),
        "\N{KELVIN SIGN}.example",
        *("a.1", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "1.256.1", "4294967296", "08.1", "0x100000000", "1..2"),
        *("[::1]", "::1::", ":", "::ffff:1.2.3", "1:2", f"{'a' * 64}.b", "a." * 127 + "ab", "x" * 65536, "1" * 65536, ":" * 65536, "\ud800.b"),
    ],
)
def test_malformed_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_host(text)


@pytest.mark.parametrize("port", [-1, 0, 65536, 70000, 1 << 64])
def test_malformed_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        parse_destination("example.com", port)


def test_text_of_a_destination_keeps_host_and_port_apart() -> None:
    assert str(parse_destination("Example.com.", 443)) == "example.com:443"
    assert str(parse_destination("10.1", 1)) == "10.0.0.1:1"
    assert str(parse_destination("2606::1", 65535)) == "[2606::1]:65535"


@given(st.text(max_size=300), st.integers(1, 65535))
@example("0x7f.1", 1)
@example("a.b.", 1)
def test_any_host_is_parsed_to_its_canonical_form_or_refused(text: str, port: int) -> None:
    try:
        destination = parse_destination(text, port)
    except ValueError:
        return
    assert parse_destination(str(destination.host), port) == destination == Destination(destination.host, port)
