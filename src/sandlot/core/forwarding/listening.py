"""What listens inside a sandbox, as its kernel tells it (``/proc/net/tcp``, ``/proc/net/tcp6``; proc_net(5)).

Laws:
- No program is run for it: the guest reads two files.
- They are a guest's word: bounded, and what is no line of them is passed over.
- The service's own listener inside is not told.
"""

from __future__ import annotations

import binascii
import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from sandlot.core.files import files
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import NotFoundError
from sandlot.model.specs import MIB, User
from sandlot.protocol.schema import PACKAGES_PORT

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
MOST_BYTES = 1 * MIB
"""Of one table; a line has 150."""

_LISTEN = "0A"
"""TCP_LISTEN of the kernel's include/net/tcp_states.h."""
_FIELDS = 4
_V4, _V6 = 8, 32
"""Hexadecimal digits of an address."""
_OWN = ("127.0.0.1", PACKAGES_PORT)


@dataclass(frozen=True, slots=True, order=True)
class Listening:
    """One listening TCP socket.

    Args:
        port: Its port.
        address: What it is bound to; ``0.0.0.0`` and ``::`` are every address.
    """

    port: int
    address: str


async def ports(sandbox: Sandbox) -> list[Listening]:
    """The TCP ports on which something listens inside a sandbox, by number.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    found: set[Listening] = set()
    for table in TABLES:
        try:
            reading = await files.read(sandbox, table, user=User.ROOT, length=MOST_BYTES)
        except NotFoundError:  # a kernel without IPv6
            continue
        try:
            content = b"".join([piece async for piece in reading])
        finally:
            await reading.aclose()
        found |= set(parsed(content.decode("ascii", "replace").splitlines()))
    return sorted(each for each in found if (each.address, each.port) != _OWN)


def parsed(lines: Iterable[str]) -> list[Listening]:
    """The sockets of a table that listen. Pure.

    Args:
        lines: Of the table, its head included.
    """
    found = []
    for line in lines:
        fields = line.split(None, _FIELDS)
        if len(fields) < _FIELDS or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        try:
            listening = Listening(int(port, 16), address_of(address))
        except ValueError:
            continue
        if 0 < listening.port < 1 << 16:
            found.append(listening)
    return found


def address_of(digits: str) -> str:
    """An address of such a table: 32-bit words, each in the byte order of the machine. Pure.

    Raises:
        ValueError: It is none.
    """
    if len(digits) not in {_V4, _V6}:
        raise ValueError(digits[:_V6])
    words = [struct.unpack(">I", binascii.unhexlify(digits[at : at + _V4]))[0] for at in range(0, len(digits), _V4)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
