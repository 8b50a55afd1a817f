"""Listening ports, read from the kernel's tables, also from damaged ones."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.core.files import files
from sandlot.core.forwarding.listening import parse_address, parse_table, ports
from sandlot.core.sandbox import Sandbox
from sandlot.model.sandboxes import ListeningPort
from sandlot.protocol import schema

EVERY = "0.0.0.0"  # noqa: S104 - an expected value, nothing is bound
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
REST = "00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000 100 0 0 10 0"
TABLE = [
    HEAD,
    f"   0: 00000000:1F40 00000000:0000 0A {REST}",
    f"   1: 0100007F:0016 00000000:0000 0A {REST}",
    f"   2: 0100007F:C350 0100007F:1F40 01 {REST}",
]


async def test_ports_of_the_guest_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [f"   {number}: 0100007F:{port:04X} 00000000:0000 0A {REST}" for number, port in enumerate(schema.GUEST_PORTS)]
    others = [f"   9: 00000000:{schema.CAPTURE_PORT:04X} 00000000:0000 0A {REST}"]

    async def read(_sandbox: object, table: str, **_options: object) -> Download:
        return Download("\n".join([*TABLE, *own, *others] if table == "/proc/net/tcp" else [HEAD]).encode())

    monkeypatch.setattr(files, "read", read)
    found = await ports(cast("Sandbox", None))
    assert [(each.address, each.port) for each in found] == [("127.0.0.1", 22), (EVERY, schema.CAPTURE_PORT), (EVERY, 8000)]


class Download:
    """Content of a file, in one piece."""

    def __init__(self, content: bytes) -> None:
        self._pieces = [content]

    def __aiter__(self) -> Download:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()

    async def aclose(self) -> None:
        """Do nothing."""


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
