"""Destinations of connections, as programs name them, in their canonical form. Pure.

Invariants:
- Names are in lower case, in ASCII and without a trailing dot. Rules and destinations therefore compare as texts.
- A host that ends in a number is an address. ``localhost`` and its subdomains are the loopback address (RFC 6761, 6.3), whatever a name server says.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from typing import Final

from sandlot.egress.policy.addresses import Address
from sandlot.model.network import MAX_NAME_CHARS, ends_in_number, is_host_name, numeric_address

_LOOPBACK: Final = IPv4Address("127.0.0.1")
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Destination:
    """Host and port of a connection.

    Args:
        host: Name in canonical form, or address.
    """

    host: str | Address
    port: int

    def __str__(self) -> str:
        """Return the host and the port, for logs. An IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in str(self.host) else f"{self.host}:{self.port}"


def parse_host(text: str) -> str | Address:
    """Return the canonical form of a host: a name, or an address without brackets.

    Raises:
        ValueError: The text is neither an address nor a name that the DNS can contain.
    """
    if not text.isascii() or len(text) > MAX_NAME_CHARS + 1:
        raise ValueError("the host is not in ASCII or has more than 253 characters")
    host = text.lower().removesuffix(".")
    if ":" in host:
        return ip_address(host)
    if ends_in_number(host):
        return numeric_address(host)
    if not is_host_name(host):
        raise ValueError("the host has characters or labels that no host name has")
    return _LOOPBACK if host == "localhost" or host.endswith(".localhost") else host


def parse_destination(host: str, port: int) -> Destination:
    """Return the destination of a connection.

    Args:
        host: Name or address, as a program named it. It may come from a hostile guest.
        port: TCP port, not checked.

    Raises:
        ValueError: The host is malformed (see :func:`parse_host`), or the port is not between 1 and 65535.
    """
    if not 1 <= port <= _MAX_PORT:
        raise ValueError("the port is not between 1 and 65535")
    return Destination(parse_host(host), port)
