"""Find the ports on which programs inside a sandbox listen.

The ports are in the tables of the sandbox's kernel: ``/proc/net/tcp`` and ``/proc/net/tcp6`` (proc_net(5)).

Invariants:
- No program is started inside the sandbox: the guest reads the two files.
- A sandbox can forge its tables, so at most 1 MiB of each table is read, and invalid lines are skipped.
- Ports of the guest itself are not listed.
"""

from __future__ import annotations

import binascii
import ipaddress
import struct
from collections.abc import Iterable

from sandlot.core.files import files
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import NotFoundError
from sandlot.model.sandboxes import ListeningPort
from sandlot.model.specs import MIB, User
from sandlot.protocol.schema import GUEST_PORTS, LOOPBACK

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
MAX_BYTES = 1 * MIB
"""Maximum number of bytes that are read of one table. Each line has 150 bytes."""

_LISTEN = "0A"
"""State TCP_LISTEN (include/net/tcp_states.h of Linux)."""
_FIELDS = 4
"""Number of fields that are read of a line. The fourth field is the state of the socket."""
_V4_DIGITS, _V6_DIGITS = 8, 32
"""Hexadecimal digits of an IPv4 address and of an IPv6 address."""
_GUEST_LISTENERS = frozenset((LOOPBACK[0], port) for port in GUEST_PORTS)


async def ports(sandbox: Sandbox) -> list[ListeningPort]:
    """Return the listening TCP sockets of a sandbox, sorted by port."""
    found: set[ListeningPort] = set()
    for table in TABLES:
        try:
            download = await files.read(sandbox, table, user=User.ROOT, length=MAX_BYTES)
        except NotFoundError:  # a kernel without IPv6 has no table for IPv6
            continue
        try:
            content = b"".join([piece async for piece in download])
        finally:
            await download.aclose()
        found |= set(parse_table(content.decode("ascii", "replace").splitlines()))
    return sorted(each for each in found if (each.address, each.port) not in _GUEST_LISTENERS)


def parse_table(lines: Iterable[str]) -> list[ListeningPort]:
    """Return the listening sockets of a table. Invalid lines are skipped.

    Args:
        lines: Lines of the table, with or without the heading.
    """
    found = []
    for line in lines:
        fields = line.split(None, _FIELDS)
        if len(fields) < _FIELDS or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        try:
            listening = ListeningPort(int(port, 16), parse_address(address))
        except ValueError:
            continue
        if 0 < listening.port < 1 << 16:
            found.append(listening)
    return found


def parse_address(digits: str) -> str:
    """Parse an address of a table: hexadecimal 32-bit words in the byte order of the machine.

    Raises:
        ValueError: The digits are not an address.
    """
    if len(digits) not in {_V4_DIGITS, _V6_DIGITS}:
        raise ValueError(digits[:_V6_DIGITS])
    words = [struct.unpack(">I", binascii.unhexlify(digits[at : at + _V4_DIGITS]))[0] for at in range(0, len(digits), _V4_DIGITS)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
