"""Operations of a plan that set up the network of a sandbox: a network namespace, and a card that leads nowhere.

The card is a persistent tap device without a process that holds it, so it has no carrier: the kernel drops every packet that reaches the card. The
kernel removes the device, the routes and the NAT table with the namespace, when the last process of the namespace has ended.
"""

from __future__ import annotations

import os
from fcntl import ioctl

# Imports are relative, because the stage runs without the package sandlot.
from .syscalls import CLONE_NEWNET, replace_ip_table, unshare

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
else:
    import _socket as socket  # importing socket would also import enum and selectors

# Constants of linux/sockios.h, linux/if.h, linux/if_tun.h, linux/rtnetlink.h and linux/netlink.h.
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP, IFF_NOARP = 0x8913, 0x8914, 1, 0x80
TUNSETIFF, TUNSETPERSIST, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x400454CB, 2, 0x1000
IFREQ_NAME_BYTES, IFREQ_BYTES = 16, 40
RTM_NEWADDR, RTM_NEWROUTE = 20, 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 1, 4, 0x400
NETLINK_HEADER_BYTES = 16
IFA_ADDRESS, IFA_LOCAL, RTA_OIF = 1, 2, 4
RT_TABLE_MAIN, RTPROT_BOOT, RT_SCOPE_LINK, RTN_UNICAST = 254, 3, 253, 1
ADDRESS_BITS = 32


def private_network(settings: tuple[tuple[str, str], ...]) -> None:
    """Enter a new network namespace, in which only an active loopback device exists.

    Args:
        settings: Names below ``/proc/sys/net`` and values. A setting that this kernel does not have is skipped.
    """
    unshare(CLONE_NEWNET)
    _bring_up(b"lo", 0)
    for name, value in settings:
        _configure(name, value)


def card(name: str, address: str, table: bytes) -> None:
    """Create a card with an address and the default route, and replace the table ``nat`` of this network namespace.

    Args:
        name: Name of the card.
        address: IPv4 address of the card, in dotted form.
        table: ``struct ipt_replace`` of linux/netfilter_ipv4/ip_tables.h, without the address of the memory for counters.
    """
    _create_tap(name.encode())
    _configure(f"ipv6/conf/{name}/disable_ipv6", "1")
    index, packed = socket.if_nametoindex(name), socket.inet_aton(address)
    head = bytes((socket.AF_INET, ADDRESS_BITS, 0, 0)) + _number(index)
    _route(RTM_NEWADDR, head + _attribute(IFA_ADDRESS, packed) + _attribute(IFA_LOCAL, packed))
    _bring_up(name.encode(), IFF_NOARP)
    head = bytes((socket.AF_INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, RT_SCOPE_LINK, RTN_UNICAST)) + _number(0)
    _route(RTM_NEWROUTE, head + _attribute(RTA_OIF, _number(index)))
    _replace_nat(table)


def loopback_card(address: str, table: bytes) -> None:
    """Give the loopback device a second address whose network is all of IPv4, and replace the table ``nat`` of this network namespace.

    A runtime that copies the device gets a route for every destination. The kernel itself gets none, so nothing else changes in this namespace.

    Args:
        address: IPv4 address, in dotted form.
        table: As for :func:`card`.
    """
    packed = socket.inet_aton(address)
    head = bytes((socket.AF_INET, 0, 0, 0)) + _number(socket.if_nametoindex("lo"))
    _route(RTM_NEWADDR, head + _attribute(IFA_ADDRESS, packed) + _attribute(IFA_LOCAL, packed))
    _replace_nat(table)


def _replace_nat(table: bytes) -> None:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)
    try:
        replace_ip_table(raw.fileno(), table)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "cannot install a NAT table (ip_tables, iptable_nat, xt_REDIRECT)") from None
    finally:
        raw.close()


def _create_tap(name: bytes) -> None:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        ioctl(tap, TUNSETIFF, _ifreq(name, IFF_TAP | IFF_NO_PI))
        ioctl(tap, TUNSETPERSIST, 1)
    finally:
        os.close(tap)


def _bring_up(name: bytes, flags: int) -> None:
    any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        found = ioctl(any_socket.fileno(), SIOCGIFFLAGS, _ifreq(name, 0))
        before = int.from_bytes(found[IFREQ_NAME_BYTES : IFREQ_NAME_BYTES + 2], "little")
        ioctl(any_socket.fileno(), SIOCSIFFLAGS, _ifreq(name, before | IFF_UP | flags))
    finally:
        any_socket.close()


def _ifreq(name: bytes, flags: int) -> bytes:
    return (name.ljust(IFREQ_NAME_BYTES, b"\0") + flags.to_bytes(2, "little")).ljust(IFREQ_BYTES, b"\0")


def _configure(name: str, value: str) -> None:
    try:
        handle = os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _route(kind: int, body: bytes) -> None:
    """Send a request to the kernel's routing (rtnetlink(7))."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE
        head = _number(NETLINK_HEADER_BYTES + len(body)) + kind.to_bytes(2, "little") + flags.to_bytes(2, "little") + _number(1) + _number(0)
        netlink.send(head + body)
        response = netlink.recv(4096)
    finally:
        netlink.close()
    number = -int.from_bytes(response[NETLINK_HEADER_BYTES : NETLINK_HEADER_BYTES + 4], "little", signed=True)
    if number:
        raise OSError(number, os.strerror(number), "cannot set up the network card")


def _attribute(kind: int, value: bytes) -> bytes:
    return (4 + len(value)).to_bytes(2, "little") + kind.to_bytes(2, "little") + value


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")
