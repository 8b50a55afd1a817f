"""Recognition of protocols by their first bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandlot.egress.gateway.client_hello import ClientHello
from sandlot.egress.gateway.first_bytes import MAX_LINE_BYTES, recognise
from tests.unit.egress.gateway.test_client_hello import NAMED


@pytest.mark.parametrize(
    "data, protocol",
    [
        (b"", "incomplete"),
        (b"GET / HTTP/1.1\r\nHost: a.b\r\n\r\n", "http"),
        (b"GET / HTTP/1.0\n", "http"),
        (b"\r\nGET / HTTP/1.1\r\n", "http"),
        (b" \tget\t/\thttp/1.1\n", "http"),
        (b"M-SEARCH * HTTP/1.1\r\n", "http"),
        (b"GET / HTTP/1.1", "incomplete"),
        (b"GET", "incomplete"),
        (b"GET /\r\n", "http"),
        (b"GET /x HTTP/2.0\r\nHost: a.b\r\n\r\n", "http"),
        (b"GET /x HTTP/0.9\r\n", "http"),
        (b"GET1 /x HTTP/1.1\r\n", "http"),
        (b"GET1", "incomplete"),
        (b"!#$ http://a.b/\r\n", "http"),
        (b"LOGIN bob\0", "other"),
        (b"GET " + b"x" * MAX_LINE_BYTES, "http"),
        (b"x" * MAX_LINE_BYTES, "http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "other"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "other"),
        (b"SSH-2", "incomplete"),
        (b"\x15\x03\x01\0\x02\x01\x5a" + NAMED, "malformed_tls"),
        (b"EHLO client.example\r\n", "other"),
        (b"*1\r\n$4\r\nPING\r\n", "other"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "other"),
        (b"\x16", "incomplete"),
        (b"\x16\x03\x01\xff\xff", "malformed_tls"),
        (NAMED, ClientHello("a.example")),
    ],
)
def test_protocol_is_recognised(data: bytes, protocol: object) -> None:
    assert recognise(data) == protocol


@given(st.one_of(st.binary(max_size=60), st.text("GET /\r\nHTP1.0-x", max_size=60).map(str.encode)))
@example(b"\r\nGET / HTTP/1.1\r\n")
@example(NAMED)
def test_protocol_does_not_change_with_more_bytes(data: bytes) -> None:
    results = [recognise(data[:size]) for size in range(len(data) + 1)]
    decided = [result for result in results if result != "incomplete"]
    assert decided == results[len(results) - len(decided) :]
    assert len(set(decided)) <= 1
