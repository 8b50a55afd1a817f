"""A network namespace with the card and the NAT table of a sandbox. Needs root. Nothing of it exists on the host or stays."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fcntl import ioctl
from typing import TypeVar

from sandlot.host.nat_table import COUNTER_BYTES, COUNTERS, IPT_SO_SET_REPLACE, nat_table
from sandlot.host.stage.syscalls import CLONE_NEWNET, unshare
from sandlot.protocol.schema import NETWORK_ADDRESS

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
IFREQ = struct.Struct("16sh14x")
LO_INDEX = 1
"""Index of the interface ``lo``, the first of every namespace."""
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 1, 4, 0x400
RTM_NEWADDR, RTM_NEWROUTE = 20, 24

_T = TypeVar("_T")


def in_sandbox_network(work: Callable[[], _T]) -> _T:
    """Run a function in a new thread with a new network namespace, which ends with the thread and the sockets of the function."""

    def run() -> _T:
        unshare(CLONE_NEWNET)
        set_up_card()
        install_nat_table()
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def set_up_card() -> None:
    """Bring ``lo`` up, with the address of the sandbox's card and the default route: nothing leaves the namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = IFREQ.unpack(ioctl(any_socket, SIOCGIFFLAGS, IFREQ.pack(b"lo", 0)))
        ioctl(any_socket, SIOCSIFFLAGS, IFREQ.pack(name, flags | IFF_UP))
    address = socket.inet_aton(NETWORK_ADDRESS)
    attributes = b"".join(struct.pack("=HH4s", 8, kind, address) for kind in (1, 2))  # IFA_ADDRESS, IFA_LOCAL
    _request(RTM_NEWADDR, struct.pack("=4BI", socket.AF_INET, 32, 0, 0, LO_INDEX) + attributes)
    # Table main, protocol boot, scope link, type unicast; RTA_OIF.
    _request(RTM_NEWROUTE, struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("=HHI", 8, 4, LO_INDEX))


def install_nat_table() -> None:
    """Replace the table ``nat`` of this thread's namespace, which must be empty."""
    counters = ctypes.create_string_buffer(COUNTERS * COUNTER_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.setsockopt(socket.IPPROTO_IP, IPT_SO_SET_REPLACE, nat_table(ctypes.addressof(counters)))


def _request(kind: int, body: bytes) -> None:
    """Send a request to the kernel's routing (rtnetlink(7)), and raise OSError if it is refused."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, 1, 0) + body)
        error = -struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(error, f"the request {kind} to rtnetlink failed")
