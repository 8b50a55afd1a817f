"""Promise: a sandbox reaches nothing by itself: not the world, not the host's addresses, not even the host's loopback.

The network card of a sandbox leads nowhere: its connections end in the guest, which asks the service for each of them. With the default network,
the service allows none. Listeners stand on the host's loopback and count who comes; the programs inside try every address that the host has.
"""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fcntl import ioctl
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.protocol.schema import NETWORK_ADDRESS
from tests.support.attempts import not_refused, outcomes
from tests.support.inside import USERS, run_inside

SYNTHETIC = IPv4Network("198.18.0.0/15")
"""Addresses that the guest assigns to names (RFC 2544: never routed)."""
SIOCGIFADDR = 0x8915
"""linux/sockios.h"""
NOWHERE = "192.0.2.1"
"""TEST-NET-1, RFC 5737: an address that nobody has."""
PATIENCE_S = 60.0
"""Limit of a wait that only a connection without an answer keeps."""
NO_WAY = {"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "ECONNRESET", "EADDRNOTAVAIL", "EAFNOSUPPORT", "EPERM", "EACCES"}


@dataclass(frozen=True)
class Listeners:
    """Sockets of the host that nobody inside may reach."""

    tcp: dict[str, int]
    udp: int
    name: str
    path: str


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        tcp = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = tcp.getsockname()[1]
        udp = opened.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        abstract, named = (opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        abstract.bind(f"\0sandlot-test-{port}")
        named.bind(f"{folder}/socket")
        Path(folder).chmod(0o755)
        Path(f"{folder}/socket").chmod(0o777)
        streams, addresses = [tcp, abstract, named], {"127.0.0.1": port}
        abstract.listen()
        named.listen()
        if socket.has_dualstack_ipv6():
            tcp6 = opened.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
            streams.append(tcp6)
            addresses["::1"] = tcp6.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # they can be reached: from outside
            tcp.accept()[0].close()
        yield Listeners(addresses, udp.getsockname()[1], f"sandlot-test-{port}", f"{folder}/socket")
        for listener in (*streams, udp):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.recv(1) if listener is udp else listener.accept()


@pytest.mark.parametrize("user", USERS)
def test_no_host_address_or_unix_socket_answers(sandbox: Sandbox, listeners: Listeners, user: str) -> None:
    told = run_inside(
        sandbox,
        """
told["answers"] = {}
for address, port in given["addresses"]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
        client.settimeout(given["patience"])
        try:
            client.connect((address, port))
            client.recv(1)
            told["answers"][f"{address} {port}"] = "connected"
        except TimeoutError:
            told["answers"][f"{address} {port}"] = "nothing"
        except OSError as error:
            told["answers"][f"{address} {port}"] = errno.errorcode.get(error.errno, str(error))
# The same way works where both ends are inside.
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5) as client:
    server.accept()[0].close()
    told["control"] = "connected"
def send(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(given["patience"])
        sender.connect((address, given["udp"]))
        sender.send(b"x")
        sender.recv(1)
told["sent"] = {address: attempt(send, address).get("error", "sent") for address, _ in given["addresses"]}
told["unix"] = {}
for name in ("\\0" + given["name"], given["path"], "/proc/1/root" + given["path"]):
    client = socket.socket(socket.AF_UNIX)
    told["unix"][name] = attempt(client.connect, name).get("error", "connected")
told["listed"] = [line for line in attempt(read, "/proc/net/unix").get("got", "").splitlines() if "sandlot-test" in line or given["path"] in line]
""",
        user=user,
        given={
            "addresses": [
                *listeners.tcp.items(),
                *((address, port) for address in _host_addresses() for port in (listeners.tcp["127.0.0.1"], 22, 80, 443)),
                *((address, 80) for address in (NOWHERE, "169.254.169.254", "10.0.0.1", "10.96.0.1", "172.17.0.1", "192.168.1.1")),
                *((address, 53) for address in _resolvers()),
            ],
            "udp": listeners.udp,
            "patience": PATIENCE_S,
            "name": listeners.name,
            "path": listeners.path,
        },
    )
    assert told["control"] == "connected"
    # An address of a link's own (fe80::/10) leads nowhere where nobody says which link (EINVAL), and there is none to name.
    strange = {address: answer for address, answer in told["answers"].items() if answer not in NO_WAY}
    assert {address: answer for address, answer in strange.items() if not (answer == "EINVAL" and address.startswith("fe80"))} == {}
    # The error of each datagram arrives at once; the fixture sees to it that none arrives on the host's loopback.
    assert {address: sent for address, sent in told["sent"].items() if sent not in NO_WAY and not address.startswith("fe80")} == {}
    assert set(told["unix"].values()) <= {"ECONNREFUSED", "ENOENT", "EACCES", "EPERM"}
    assert told["listed"] == []


@pytest.mark.parametrize("user", USERS)
def test_card_leads_nowhere_and_names_have_synthetic_addresses(sandbox: Sandbox, user: str) -> None:
    told = run_inside(
        sandbox,
        """
told["interfaces"] = [name for _, name in socket.if_nameindex()]
told["dev"] = [line.split(":")[0].strip() for line in read("/proc/net/dev").splitlines()[2:]]
routes = [line.split() for line in attempt(read, "/proc/net/route").get("got", "").splitlines()[1:]]
told["gateways"] = [route[2] for route in routes]
told["arp"] = attempt(read, "/proc/net/arp").get("got", "").splitlines()[1:]
with socket.socket(type=socket.SOCK_DGRAM) as client:
    client.connect((given["nowhere"], 9))
    told["address"] = client.getsockname()[0]
told["resolved"] = attempt(socket.gethostbyname, "example.com")
told["local"] = [attempt(socket.gethostbyname, name) for name in ("metadata", "printer.local", "metadata.google.internal")]
(told["card"],) = [line.partition(":")[2].split() for line in read("/proc/net/dev").splitlines()[2:] if line.split(":")[0].strip() == "eth0"]
""",
        user=user,
        given={"nowhere": NOWHERE},
    )
    assert (sorted(told["interfaces"]), sorted(told["dev"])) == (["eth0", "lo"], ["eth0", "lo"])
    assert set(told["gateways"]) <= {"00000000"}
    assert told["arp"] == []
    assert told["address"] == NETWORK_ADDRESS
    assert ip_address(told["resolved"]["got"]) in SYNTHETIC
    assert ["got" in found for found in told["local"]] == [False, False, False]
    received, sent = int(told["card"][1]), int(told["card"][9])
    assert received == sent, "gVisor's card returns all packets; the card of a container has none"


@pytest.mark.parametrize("user", USERS)
def test_other_protocols_and_socket_families_reach_nothing(sandbox: Sandbox, listeners: Listeners, user: str) -> None:
    """ICMP, IPv6 of every scope, broadcast, multicast, other protocols, routing by netlink, and namespaces of one's own.

    Datagrams to one host get an error at once. Raw sockets exist in gVisor in a network namespace of one's own; it has no more than a loopback,
    which is down. In a container
    there is no such namespace.
    """
    addresses = [address for address in _host_addresses() if address not in {"127.0.0.1", "::1", NETWORK_ADDRESS}]
    tries = {
        "ping": "ping(socket.AF_INET, NOWHERE)",
        **{f"ping {address}": f"ping(socket.AF_INET6 if ':' in {address!r} else socket.AF_INET, {address!r})" for address in addresses},
        "broadcast": "broadcast()",
        "multicast": "send(socket.AF_INET, ('224.0.0.1', 9), 2)",
        "multicast of a link": "send(socket.AF_INET6, ('ff02::1', 9, 0, 0), 2)",
        "another family's address": f"send(socket.AF_INET6, ('::ffff:{NOWHERE}', 9))",
        "a global address": "send(socket.AF_INET6, ('2001:db8::1', 9))",
        "the cloud's metadata": "send(socket.AF_INET6, ('fd00:ec2::254', 80))",
        "sctp": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect((NOWHERE, 9))",
        "udp lite": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136).sendto(b'x', (NOWHERE, 9))",
        "multipath": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect((NOWHERE, 9))",
        "smc": "socket.socket(43, socket.SOCK_STREAM, 0).connect((NOWHERE, 9))",
        "a raw datagram": "raw()",
        "a raw datagram from a namespace": "call('unshare', 0x50000000); raw()",
        "a packet from a namespace": "call('unshare', 0x50000000); packet()",
        "a route": "netlink(24, struct.pack('8BI', 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(5, socket.inet_aton('127.0.0.1')))",
        "an address": "netlink(20, struct.pack('4BI', 2, 24, 0, 0, 1) + attribute(2, socket.inet_aton('192.0.2.2')))",
        "a tap card": "fcntl.ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454CA, struct.pack('16sH22x', b'tap0', 0x1002))",
        "a dummy card": "netlink(16, bytes(16) + attribute(18, attribute(1, b'dummy')))",
        "a bridge": "netlink(16, bytes(16) + attribute(18, attribute(1, b'bridge')))",
        "a pair of cards, one of PID 1's": "netlink(16, bytes(16) + attribute(18, attribute(1, b'veth')) + attribute(19, struct.pack('I', 1)))",
        "a card's state": "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0x1043))",
        "a card's name": "fcntl.ioctl(socket.socket(), 0x8923, struct.pack('16s16s', b'lo', b'eth0'))",
        "a tunnel": "fcntl.ioctl(socket.socket(), 0x89F1, struct.pack('16sQ', b'tunl0', 0))",
        "a filter": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).setsockopt(0, 64, bytes(64))",
    }
    setup = f"""
NOWHERE = {NOWHERE!r}
def send(family, address, patience={PATIENCE_S}):
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(patience)
        client.connect(address)
        client.send(b"x")
        try:
            client.recv(1)
        except TimeoutError:
            raise OSError(errno.ENETUNREACH, "nobody answers")
def ping(family, address):
    with socket.socket(family, socket.SOCK_DGRAM, 58 if family == socket.AF_INET6 else 1) as client:
        client.settimeout(2)
        client.sendto(struct.pack("BBHHH", 128 if family == socket.AF_INET6 else 8, 0, 0, 1, 1) + b"ping", (address, 0))
        try:
            client.recv(100)
        except TimeoutError:
            raise OSError(errno.ENETUNREACH, "nobody answers")
def broadcast():
    client = socket.socket(type=socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    client.settimeout(2)
    client.connect(("255.255.255.255", 9))
    client.send(b"x")
    try:
        client.recv(1)
    except TimeoutError:
        raise OSError(errno.ENETUNREACH, "nobody answers")
def control():
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        client.sendto(b"x", server.getsockname())
        server.recv(1)
def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP).sendto(bytes(8), (NOWHERE, 0))
def packet():
    client = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    if [name for _, name in socket.if_nameindex()] == ["lo"]:
        raise OSError(errno.ENODEV, "nothing but a loopback of its own")
def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
def netlink(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.send(struct.pack("IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
        code = struct.unpack_from("i", link.recv(4096), 16)[0]
        if code:
            raise OSError(-code, "refused")
"""
    # Each in a process of its own: gVisor gives anybody a namespace of its own kernel's, where the next attempt would be root.
    found = outcomes(sandbox, {**tries, "control": "control()"}, user=user, setup=setup, apart=True)
    assert found.pop("control") == "ok"
    nowhere = {name: NO_WAY | {"EINVAL", "ENOTTY", "ENOPROTOOPT"} for name in tries}
    assert not_refused(found, also=nowhere) == {}
    assert listeners.tcp  # the fixture sees to it that nobody came


def _host_addresses() -> list[str]:
    """The IPv4 addresses of the host's interfaces (netdevice(7)); those of IPv6 by what the kernel lists."""
    found = []
    with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            found.append(socket.inet_ntoa(answer[20:24]))
    six = Path("/proc/net/if_inet6")
    lines = six.read_text(encoding="ascii").splitlines() if six.exists() else []
    return found + [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines]


def _resolvers() -> list[str]:
    file = Path("/etc/resolv.conf")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [line.split()[1] for line in lines if line.startswith("nameserver") and len(line.split()) > 1]
