"""Promise: a sandbox reaches the destinations that its network policy allows, by the names that its programs use, and nothing else.

Servers stand at public and private addresses of a network of the test's own, and on the machine of the service. They record what arrives.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from sandlot import Network
from tests.support.internet import HOST_ADDRESS, HOST_ADDRESS_V6, Internet, Server, http_reply
from tests.support.localservice import LocalService
from tests.support.network_client import Attempt, Client

pytestmark = pytest.mark.smoke

SHARED, OTHER, WILD, LIMITED = "23.5.0.1", "23.5.0.2", "23.5.0.3", "23.5.0.4"
"""Addresses of servers. Several names lead to the first one, as to a server of many customers."""
PRIVATE = "10.1.2.3"
ALERT = bytes([21, 3, 3, 0, 2, 2, 49])
"""Fatal TLS alert ``access_denied``."""
HELLO_RETRY_REQUEST = bytes.fromhex("16030300300200002c0303cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c") + bytes(10)
"""Request of a server of TLS 1.3 for a second ClientHello."""
RULES = [
    "api.example.com",
    "api.example.com:8443",
    "db.example.com:5432",
    "ssh.example.com:22",
    "*.wild.example.com",
    "GET limited.example.com/repos/",
    f"{OTHER}:80",
    "inside.example.com",
    "mixed.example.com",
    "rebinding.example.com",
    "many.example.com",
    "_sip._tcp.example.com",
]


@dataclass
class Servers:
    """Servers at allowed, public and forbidden addresses."""

    web: Server
    tls: Server
    retrying: Server
    tcp: Server
    greeting: Server
    limited: Server
    forbidden: list[Server] = field(default_factory=list)

    def clear(self) -> None:
        for server in (self.web, self.tls, self.retrying, self.tcp, self.greeting, self.limited, *self.forbidden):
            server.clear()


@pytest.fixture(scope="module")
def servers(net: Internet) -> Servers:
    web = net.serve((SHARED, 80), (OTHER, 80), (WILD, 80), (SHARED, 8080), reply=http_reply)
    tls = net.serve((SHARED, 443), reply=lambda data: b"hello received" if data else None)
    forbidden = [
        net.serve(
            (PRIVATE, 80), ("169.254.169.254", 80), ("192.168.7.7", 80), ("100.64.0.1", 80), ("fd00::1", 80), (PRIVATE, 5432), reply=http_reply
        ),
        net.serve((HOST_ADDRESS, 80), (HOST_ADDRESS_V6, 80), ("127.0.0.1", 80), ("::1", 80), space=net.inside, reply=http_reply),
    ]
    net.names |= {
        "api.example.com": [SHARED],
        "www.example.com": [SHARED],
        "db.example.com": [SHARED],
        "ssh.example.com": [SHARED],
        "a.wild.example.com": [WILD],
        "a.b.wild.example.com": [WILD],
        "limited.example.com": [LIMITED],
        "inside.example.com": [PRIVATE, "169.254.169.254", HOST_ADDRESS, "127.0.0.1", "fd00::1", "::1", HOST_ADDRESS_V6],
        "mixed.example.com": [PRIVATE, SHARED],
        "many.example.com": [f"10.1.3.{number}" for number in range(50)],
    }
    net.records |= {
        ("api.example.com", "MX"): ["10 mail.example.com."],
        ("api.example.com", "TXT"): ['"v=spf1 -all"'],
        ("_sip._tcp.example.com", "SRV"): ["1 2 5060 sip.example.com."],
        ("www.example.com", "TXT"): ['"not for sandboxes"'],
    }
    return Servers(
        web,
        tls,
        net.serve((SHARED, 8443), reply=lambda data: b"accepted" if data.count(b"\x16\3\1") > 1 else HELLO_RETRY_REQUEST),
        net.serve((SHARED, 5432), (SHARED, 12345)),
        net.serve((SHARED, 22), greeting=b"SSH-2.0-server\r\n"),
        net.serve((LIMITED, 80), reply=http_reply),
        forbidden,
    )


@pytest.fixture(scope="module")
def listed(service: LocalService) -> Iterator[Client]:
    """A client in a sandbox with an allowlist."""
    with service.create(network=Network("allowlist", allow=RULES)) as sandbox:
        yield Client(sandbox)


@pytest.fixture(scope="module")
def public(service: LocalService) -> Iterator[Client]:
    """A client in a sandbox with the mode ``internet``."""
    with service.create(network=Network("internet", deny=["www.example.com", "23.5.0.3"])) as sandbox:
        yield Client(sandbox)


@pytest.fixture(autouse=True)
def quiet(servers: Servers, net: Internet) -> Iterator[None]:
    """Nothing may have arrived at a forbidden server."""
    servers.clear()
    net.queries.clear()
    yield
    assert [server.connections for server in servers.forbidden] == [[]] * len(servers.forbidden)


def hello(name: str | None) -> bytes:
    """Return the first message of a TLS client that asks for a name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def request(target: str, *headers: str, method: str = "GET") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", *headers, "")).encode()


# -- allowed destinations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["api.example.com", "API.Example.COM", "api.example.com.", "a.wild.example.com", OTHER])
def test_allowed_host_is_reached(listed: Client, servers: Servers, host: str) -> None:
    found = listed.get(host, "/a")
    assert (found.status, found.received.endswith(b"served GET /a")) == (200, True), found
    assert len(servers.web.connections) == 1


def test_other_tcp_is_carried_both_ways(listed: Client, servers: Servers) -> None:
    assert listed.attempt("db.example.com", 5432, b"query\n", until="query").received == b"echo query\n"
    assert listed.attempt("ssh.example.com", 22, until="server").received == b"SSH-2.0-server\r\n"
    assert servers.tcp.received == [b"query\n"]


def test_tls_with_the_name_of_the_connection_is_carried(listed: Client, servers: Servers) -> None:
    sent = hello("api.example.com")
    assert listed.attempt("api.example.com", 443, sent, until="received").received == b"hello received"
    assert servers.tls.received == [sent]


def test_internet_reaches_public_hosts_by_name_and_address(public: Client) -> None:
    assert public.get("api.example.com").status == 200
    assert public.get(OTHER).status == 200
    assert public.attempt("db.example.com", 12345, b"x\n", until="x").received == b"echo x\n"


# -- refused destinations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host, reason",
    [
        ("www.example.com", "host_not_allowed"),
        ("x.api.example.com", "host_not_allowed"),
        ("example.com", "host_not_allowed"),
        ("wild.example.com", "host_not_allowed"),
        ("a.b.wild.example.com", "host_not_allowed"),
        ("db.example.com", "port_not_allowed"),
        (SHARED, "host_not_allowed"),
        (PRIVATE, "host_not_allowed"),
        ("169.254.169.254", "host_not_allowed"),
        ("0x0a010203", "host_not_allowed"),
        ("012.1.2.3", "host_not_allowed"),
        (HOST_ADDRESS, "host_not_allowed"),
        ("inside.example.com", "address_not_public"),
        ("many.example.com", "address_not_public"),
    ],
)
def test_other_host_gets_a_403_that_says_why(listed: Client, servers: Servers, net: Internet, host: str, reason: str) -> None:
    found = listed.get(host)
    assert found.status == 403, found
    assert found.refusal["reason"] == reason
    assert found.refusal["port"] == 80
    assert found.refusal["next_steps"]
    assert not servers.web.connections
    assert not net.queries if reason != "address_not_public" else host in net.queries


@pytest.mark.parametrize(
    "host", [PRIVATE, "169.254.169.254", "192.168.7.7", "100.64.0.1", HOST_ADDRESS, "0xa9fea9fe", "inside.example.com", "many.example.com"]
)
def test_internet_does_not_include_addresses_that_are_not_public(public: Client, host: str) -> None:
    assert public.get(host).refusal["reason"] == "address_not_public"


@pytest.mark.parametrize("host", ["metadata", "printer.local", "metadata.google.internal"])
def test_local_names_do_not_exist(listed: Client, public: Client, net: Internet, host: str) -> None:
    assert listed.attempt(host, 80).outcome == public.attempt(host, 80).outcome == "no name"
    assert not net.queries


@pytest.mark.parametrize("host, port", [("api.example.com", 8080), ("db.example.com", 12345), ("www.example.com", 5432), (PRIVATE, 5432)])
def test_other_port_is_reset_at_once(listed: Client, host: str, port: int) -> None:
    found = listed.attempt(host, port)
    assert (found.outcome, found.received) == ("ECONNRESET", b"")


def test_silent_client_is_refused(listed: Client) -> None:
    assert listed.attempt("www.example.com", 443).outcome in {"ECONNRESET", "closed"}
    assert listed.attempt("www.example.com", 80).outcome in {"ECONNRESET", "closed"}


def test_only_checked_addresses_are_tried(listed: Client, servers: Servers, net: Internet) -> None:
    answers = iter([[SHARED], [PRIVATE]] * 10)
    net.names["rebinding.example.com"] = lambda: next(answers)
    assert listed.get("mixed.example.com").status == 200
    for _ in range(3):
        listed.get("rebinding.example.com")
    assert {connection.address for connection in servers.web.connections} == {SHARED}


def test_deny_entry_covers_other_names_of_its_address_and_other_addresses_of_its_name(public: Client, servers: Servers) -> None:
    assert public.get("www.example.com").refusal["rule"] == "www.example.com"
    assert public.get("a.wild.example.com").refusal["rule"] == WILD
    hidden = public.attempt(SHARED, 80, request("/", "Host: www.example.com"))
    assert (hidden.status, hidden.refusal["rule"]) == (403, "www.example.com")
    assert public.attempt(SHARED, 443, hello("www.example.com")).received == ALERT
    assert not servers.web.connections or not any(servers.web.received)
    assert not any(servers.tls.received)


# -- another server behind an allowed name ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, sent",
    [
        ("host", request("/", "Host: www.example.com")),
        ("port", request("/", "Host: api.example.com:8080")),
        ("two hosts", request("/", "Host: api.example.com", "Host: www.example.com")),
        ("no host", request("/")),
        ("absolute target", request("http://www.example.com/", "Host: api.example.com")),
        ("name before an at", request("/", "Host: api.example.com@www.example.com")),
        ("two lengths", request("/", "Host: api.example.com", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST")),
        ("connect", request("www.example.com:443", "Host: api.example.com", method="CONNECT")),
        ("bare line feeds", b"GET / HTTP/1.1\nHost: www.example.com\n\n"),
        ("header before a line break", request("/", "X: a\r\n Host: api.example.com", "Host: www.example.com")),
    ],
)
def test_request_for_another_server_is_refused(listed: Client, servers: Servers, name: str, sent: bytes) -> None:
    found = listed.attempt("api.example.com", 80, sent)
    assert found.status in {400, 403}, (name, found)
    assert not any(servers.web.received)


@pytest.mark.parametrize("name", ["www.example.com", "x.api.example.com", None])
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_tls_for_another_server_gets_an_alert(listed: Client, servers: Servers, name: str | None, *, is_split: bool) -> None:
    sent = hello(name)
    pieces = [sent[at : at + 100] for at in range(0, len(sent), 100)] if is_split else [sent]
    assert listed.attempt("api.example.com", 443, *pieces, pause_s=0.01 if is_split else 0).received == ALERT
    assert not any(servers.tls.received)


@pytest.mark.parametrize("name, passes", [("api.example.com", True), ("www.example.com", False)])
def test_second_hello_of_tls_must_name_the_same_server(listed: Client, servers: Servers, name: str, *, passes: bool) -> None:
    first, second = hello("api.example.com"), hello(name)
    found = listed.attempt("api.example.com", 8443, first, second, until="accepted")
    assert found.received == HELLO_RETRY_REQUEST + (b"accepted" if passes else ALERT)
    assert servers.retrying.received == [first + second if passes else first]


def test_each_request_of_a_connection_is_decided(listed: Client, servers: Servers) -> None:
    allowed = request("/repos/a", "Host: limited.example.com")
    for refused in (
        request("/secret", "Host: limited.example.com"),
        request("/repos/a", "Host: limited.example.com", method="DELETE"),
        request("/repos/../secret", "Host: limited.example.com"),
        request("/repos/%2e%2e/secret", "Host: limited.example.com"),
        request("//repos/a", "Host: limited.example.com"),
        request("/repos/a", "Host: www.example.com"),
    ):
        servers.clear()
        pipelined = listed.attempt("limited.example.com", 80, allowed + refused)
        later = listed.attempt("limited.example.com", 80, allowed, refused, pause_s=0.2)
        for found in (pipelined, later):
            assert found.received.startswith(b"HTTP/1.1 200 "), (refused, found)
            assert found.status == 403, (refused, found)
        assert [data.count(b"HTTP/1.1") for data in servers.limited.received] == [1, 1]


def test_limited_host_is_not_reached_by_other_protocols(listed: Client, servers: Servers) -> None:
    assert listed.attempt("limited.example.com", 443, hello("limited.example.com")).received in {ALERT, b""}
    listed.attempt("limited.example.com", 80, hello("limited.example.com"))
    listed.attempt("limited.example.com", 80, b"EHLO there\r\n")
    assert not any(servers.limited.received)


# -- other ways out --------------------------------------------------------------------------------------------------------


def test_names_are_not_looked_up_before_they_are_allowed(listed: Client, net: Internet) -> None:
    code = """
import socket, struct
def ask(name, kind, server="8.8.8.8"):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.sendto(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, 1), (server, 53))
        return client.recv(4096)[3] & 15
print([ask(f"{'s' * 60}.{'t' * 60}.evil.example.com", kind) for kind in (1, 16, 15, 33, 65, 28)], ask("www.example.com", 16, "1.1.1.1"))
"""
    with net.inside.new_traffic("uplink") as packets:
        result = listed.sandbox.run_code(code).check().stdout
    assert result == "[0, 5, 5, 5, 0, 0] 5\n"
    assert net.queries == []
    assert packets == []


ASK = """
import socket, struct
def ask(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(30)
        client.sendto(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!HH", kind, 1), ("192.0.2.1", 53))
        return client.recv(4096).hex()
"""
"""Asks the name server of the sandbox."""


def test_other_records_of_allowed_names_are_looked_up_outside(listed: Client, net: Internet) -> None:
    def ask(name: str, type_: str) -> dns.message.Message:
        code = f"print(ask({name!r}, {int(dns.rdatatype.from_text(type_))}))"
        return dns.message.from_wire(bytes.fromhex(listed.sandbox.run_code(ASK + code).check().stdout))

    for name, type_, record in (
        ("api.example.com", "MX", "10 mail.example.com."),
        ("api.example.com", "TXT", '"v=spf1 -all"'),
        ("_sip._tcp.example.com", "SRV", "1 2 5060 sip.example.com."),
    ):
        response = ask(name, type_)
        assert (response.id, response.rcode()) == (7, dns.rcode.NOERROR)
        assert [each.to_text() for records in response.answer for each in records] == [record]
    assert net.queries == ["api.example.com", "api.example.com", "_sip._tcp.example.com"]
    with net.inside.new_traffic("uplink") as packets:
        assert ask("x.wild.example.com", "TXT").rcode() == dns.rcode.NXDOMAIN
    assert any(b"\x04wild" in packet for packet in packets)
    assert ask("www.example.com", "TXT").rcode() == dns.rcode.REFUSED
    assert "www.example.com" not in net.queries


def test_datagrams_icmp_raw_sockets_and_ipv6_lead_nowhere(listed: Client, public: Client, net: Internet) -> None:
    code = """
import errno, socket
def error(work):
    try:
        work()
    except OSError as raised:
        return errno.errorcode[raised.errno]
    return "no error"
def datagram(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect(("23.5.0.1", port))
        client.send(b"x")
        client.recv(1)
def stream6():
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(("2600:2::1", 80))
def raw():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as client:
        client.settimeout(1)
        client.sendto(bytes(8), ("23.5.0.1", 0))
        client.recv(100)
print(error(lambda: datagram(443)), error(lambda: datagram(123)))
print(error(stream6) in {"ENETUNREACH", "EHOSTUNREACH", "EAFNOSUPPORT"}, error(raw) != "no error")
"""
    for client in (listed, public):
        with net.inside.new_traffic("uplink") as packets:
            assert client.sandbox.run_code(code).check().stdout == "ECONNREFUSED ECONNREFUSED\nTrue True\n"
        assert packets == []


def test_another_sandbox_is_not_reached(service: LocalService, listed: Client) -> None:
    with service.create() as other:
        other.commands.run("python3 -m http.server 8000", background=True)
        assert listed.attempt("192.0.2.2", 8000).outcome == "ECONNREFUSED"


@pytest.mark.parametrize("mode", ["none", "packages"])
def test_closed_modes_reach_nothing(service: LocalService, servers: Servers, net: Internet, mode: str) -> None:
    with service.create(network=Network(mode)) as sandbox:
        client = Client(sandbox)
        for host in ("api.example.com", SHARED, PRIVATE, HOST_ADDRESS):
            found: Attempt = client.get(host)
            assert found.outcome == "ECONNRESET" or found.status == 403, (host, found)
        assert client.attempt("api.example.com", 443, hello("api.example.com")).outcome in {"ECONNRESET", "closed"}
    assert not servers.web.connections
    assert not servers.tls.connections
    assert not net.queries
