"""The NAT table of a sandbox's network, in the form in which Linux and gVisor take it: ``struct ipt_replace`` of the table ``nat``. Pure.

The table redirects all connections that programs in the sandbox open to the ports of the guest, in the sandbox's own network stack. Linux takes the
table by ``setsockopt`` on a raw socket (``host/stage/network.py``), gVisor takes the table on its control socket.

Rules for outgoing packets, in this order; all other packets are accepted:

1. Packets to 127.0.0.0/8 and to the sandbox's own address are accepted, so that programs in the sandbox reach each other.
2. TCP is redirected to the port on which the guest accepts captured connections.
3. UDP to port 53 is redirected to the guest's DNS responder, whatever server the program asks.
4. Other UDP is redirected to a closed port, so that programs get an error at once.

Source: linux/netfilter_ipv4/ip_tables.h, linux/netfilter/x_tables.h, linux/netfilter/nf_nat.h, for 64-bit processors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from sandlot.protocol.schema import CAPTURE_PORT, DNS_PORT, NETWORK_ADDRESS

CLOSED_PORT: Final = 1
"""Port to which UDP is redirected. Only root can open this port, and nobody does."""

_TCP, _UDP = 6, 17
_HOOKS: Final = {"PREROUTING": 0, "INPUT": 1, "OUTPUT": 3, "POSTROUTING": 4}
"""Hooks of the table ``nat``, with their numbers. Linux requires a policy for each of them."""
_COUNTERS: Final = 5
"""Number of rules of the table that is replaced: the four policies and the end of a table without rules."""
_ACCEPT: Final = -2
"""Verdict of a standard target: -NF_ACCEPT - 1."""
_PROTOCOL_SPECIFIED: Final = 2
"""Flag NF_NAT_RANGE_PROTO_SPECIFIED: the range is one of ports."""
_ANY_PORT: Final = (0, 65535)

_REPLACE: Final = struct.Struct("=32sIII5I5IIQ")
_ENTRY: Final = struct.Struct("=4s4s4s4s16s16s16s16sHBBIHHIQQ")
_EXTENSION: Final = struct.Struct("=H29sB")
"""Head of a match or target: size, name, revision."""
_VERDICT: Final = struct.Struct("=i4x")
_ERROR_NAME: Final = struct.Struct("=30s2x")
_UDP_PORTS: Final = struct.Struct("=4HB7x")
"""First and last source port, first and last destination port, inversion."""


_ANYWHERE: Final = IPv4Network("0.0.0.0/0")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for outgoing packets.

    Args:
        destination: Destination of the packets.
        protocol: Protocol of the packets; 0: all protocols.
        udp_port: Destination port of the packets; None: all ports.
        redirect_port: Port of 127.0.0.1 to which the packets are redirected; None: the packets are accepted.
    """

    destination: IPv4Network = _ANYWHERE
    protocol: int = 0
    udp_port: int | None = None
    redirect_port: int | None = None


OUTPUT_RULES: Final = (
    Rule(destination=IPv4Network("127.0.0.0/8")),
    Rule(destination=IPv4Network(NETWORK_ADDRESS)),
    Rule(protocol=_TCP, redirect_port=CAPTURE_PORT),
    Rule(protocol=_UDP, udp_port=53, redirect_port=DNS_PORT),
    Rule(protocol=_UDP, redirect_port=CLOSED_PORT),
)


def nat_table() -> bytes:
    """Return the table. The address of the memory to which Linux writes the counters of the former table is 0; gVisor ignores this field."""
    accept = _entry(Rule())
    entries, first, policy = b"", [0] * 5, [0] * 5
    for name, number in _HOOKS.items():
        first[number] = len(entries)
        if name == "OUTPUT":
            entries += b"".join(map(_entry, OUTPUT_RULES))
        policy[number] = len(entries)
        entries += accept
    entries += _encode_entry(Rule(), b"", _extension("ERROR", _ERROR_NAME.pack(b"ERROR")))
    count = len(_HOOKS) + len(OUTPUT_RULES) + 1
    hooks = sum(1 << number for number in _HOOKS.values())
    return _REPLACE.pack(b"nat", hooks, count, len(entries), *first, *policy, _COUNTERS, 0) + entries


def _entry(rule: Rule) -> bytes:
    match = b"" if rule.udp_port is None else _extension("udp", _UDP_PORTS.pack(*_ANY_PORT, rule.udp_port, rule.udp_port, 0))
    if rule.redirect_port is None:
        return _encode_entry(rule, match, _extension("", _VERDICT.pack(_ACCEPT)))
    port = rule.redirect_port.to_bytes(2, "big")
    return _encode_entry(rule, match, _extension("REDIRECT", struct.pack("=II8s2s2s4x", 1, _PROTOCOL_SPECIFIED, b"", port, port)))


def _encode_entry(rule: Rule, match: bytes, target: bytes) -> bytes:
    destination, mask = rule.destination.network_address.packed, rule.destination.netmask.packed
    addresses = (bytes(4), destination, bytes(4), mask)
    target_at = _ENTRY.size + len(match)
    return _ENTRY.pack(*addresses, b"", b"", b"", b"", rule.protocol, 0, 0, 0, target_at, target_at + len(target), 0, 0, 0) + match + target


def _extension(name: str, data: bytes) -> bytes:
    return _EXTENSION.pack(_EXTENSION.size + len(data), name.encode(), 0) + data
