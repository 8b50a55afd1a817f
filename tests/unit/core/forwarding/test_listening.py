"""Listening ports, read from the kernel's tables, also from damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.core.forwarding.listening import parse_address, parse_table
from sandlot.model.sandboxes import ListeningPort

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
REST = "00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000 100 0 0 10 0"
TABLE = [
    HEAD,
    f"   0: 00000000:1F40 00000000:0000 0A {REST}",
    f"   1: 0100007F:0016 00000000:0000 0A {REST}",
    f"   2: 0100007F:C350 0100007F:1F40 01 {REST}",
]


def test_only_listening_sockets_are_listed() -> None:
    assert parse_table(TABLE) == [ListeningPort(8000, "0.0.0.0"), ListeningPort(22, "127.0.0.1")]  # noqa: S104 - an expected value, nothing is bound


@pytest.mark.parametrize(
    "digits, address",
    [
        ("0100007F", "127.0.0.1"),
        ("0100A8C0", "192.168.0.1"),
        ("00000000000000000000000000000000", "::"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_address_has_its_usual_form(digits: str, address: str) -> None:
    assert parse_address(digits) == address


@pytest.mark.parametrize(
    "line", ["", "0:", "0: zz:1F40 x 0A", "0: 00000000:xx x 0A", "0: 000000:1F40 x 0A", "0: 00000000 x 0A", "0: 00000000:0000 x 0A"]
)
def test_invalid_line_is_skipped(line: str) -> None:
    assert parse_table([HEAD, line, TABLE[1]]) == [ListeningPort(8000, "0.0.0.0")]  # noqa: S104 - an expected value, nothing is bound


@settings(max_examples=40)
@given(st.lists(st.text(max_size=200) | st.from_regex(r"0: [0-9A-Fa-f]{0,40}:[0-9A-Fa-f]{0,6} x 0A.*", fullmatch=True), max_size=10))
def test_any_table_gives_valid_ports(lines: list[str]) -> None:
    assert all(0 < each.port < 1 << 16 for each in parse_table(lines))
