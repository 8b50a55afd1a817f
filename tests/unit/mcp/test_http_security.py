"""Hosts and origins of requests to the MCP endpoints."""

from __future__ import annotations

from sandlot.mcp.http_security import find_refusal
from tests.support.cases import cases

ALLOWED = frozenset({"sandbox.test"})


@cases(
    "address, host, origin, status",
    [
        ("127.0.0.1", "127.0.0.1:80", None, None),
        ("127.0.0.1", "LOCALHOST", None, None),
        ("127.0.0.1", "sandbox.test:8443", "https://sandbox.test:9", None),
        ("::1", "[::1]:80", "http://[::1]:80", None),
        ("::ffff:127.0.0.1", "evil.test", None, 421),
        ("127.0.0.1", None, None, 421),
        ("127.0.0.1", "", None, 421),
        ("127.0.0.1", "[", None, 421),
        ("127.0.0.1", "localhost.evil.test", None, 421),
        ("127.0.0.1", "user@localhost@evil.test", None, 421),
        ("127.0.0.1", "localhost", "http://evil.test", 403),
        ("127.0.0.1", "localhost", "https://localhost:1", 403),
        ("127.0.0.1", "localhost", "null", 403),
        ("127.0.0.1", "localhost", "http://[", 403),
        ("127.0.0.1", "localhost", "", 403),
        ("192.0.2.7", "public.test", None, None),
        ("192.0.2.7", "public.test", "https://public.test", None),
        ("192.0.2.7", "public.test", "https://evil.test", 403),
        (None, "anything", "http://evil.test", None),
    ],
)
def test_only_known_hosts_and_their_pages_are_answered(address: str | None, host: str | None, origin: str | None, status: int | None) -> None:
    headers = [(name, value.encode()) for name, value in ((b"host", host), (b"origin", origin)) if value is not None]
    found = find_refusal(headers, address, ALLOWED)
    assert (None if found is None else found[0]) == status


@cases("name", [b"host", b"origin"])
def test_repeated_header_is_refused(name: bytes) -> None:
    found = find_refusal([(b"host", b"localhost"), (name, b"localhost"), (name, b"evil.test")], "127.0.0.1", ALLOWED)
    assert found is not None
    assert found[0] == 403
