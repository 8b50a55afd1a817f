"""ClientHello messages: those of the standard library's TLS, hand-made and random ones."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.gateway.client_hello import MAX_HELLO_BYTES, MAX_RECORDS, ClientHello, parse_client_hello

PADDING, SERVER_NAME, ECH = 21, 0, 0xFE0D


def real_hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """Return what a client of the standard library sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names))


def hello(*extensions: tuple[int, bytes], record: int = 1 << 14, tail: bytes = b"") -> bytes:
    """Return a ClientHello in records of a given size."""
    fields = b"".join(struct.pack(">H", kind) + vector(2, data) for kind, data in extensions)
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0") + vector(2, fields) + tail
    message = b"\x01" + vector(3, body)
    return b"".join(b"\x16\x03\x01" + vector(2, message[at : at + record]) for at in range(0, len(message), record))


NAMED = hello((PADDING, bytes(9)), (SERVER_NAME, server_name(b"a.example")))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_name_of_a_real_client_is_returned(version: ssl.TLSVersion) -> None:
    data = real_hello("www.example.com", version)
    assert parse_client_hello(data) == ClientHello("www.example.com")
    assert parse_client_hello(real_hello(None, version)) == ClientHello(None)
    assert {parse_client_hello(data[:size]) for size in range(len(data))} == {"incomplete"}
    assert parse_client_hello(data + b"more") == ClientHello("www.example.com")


@pytest.mark.parametrize("record", [2, 3, 4, 5, 7, 50])
def test_message_may_be_split_into_records(record: int) -> None:
    data = hello((SERVER_NAME, server_name(b"a.example")), record=record)
    assert parse_client_hello(data) == ClientHello("a.example")
    assert {parse_client_hello(data[:size]) for size in range(len(data))} == {"incomplete"}


@pytest.mark.parametrize("record", [7, 1 << 14])
def test_size_of_the_message_is_that_of_its_records(record: int) -> None:
    data = hello((SERVER_NAME, server_name(b"a.example")), record=record)
    found = parse_client_hello(data + data)
    assert isinstance(found, ClientHello)
    assert found.size == len(data)


@pytest.mark.parametrize("extension", [ECH, 0xFFCE])
def test_encrypted_part_is_reported(extension: int) -> None:
    data = hello((extension, bytes(99)), (SERVER_NAME, server_name(b"outer.example")))
    assert parse_client_hello(data) == ClientHello("outer.example", may_hide_name=True)


def test_message_without_extensions_names_no_server() -> None:
    body = b"\x03\x01" + bytes(32) + vector(1, b"") + vector(2, b"\0\x2f") + vector(1, b"\0")
    assert parse_client_hello(b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, body))) == ClientHello(None)


@pytest.mark.parametrize(
    "data",
    [
        hello((SERVER_NAME, server_name(b"a.example", b"b.example"))),
        hello((SERVER_NAME, server_name(b"a.example")), (SERVER_NAME, server_name(b"b.example"))),
        hello((SERVER_NAME, server_name(b"a.example") + b"x")),
        hello((SERVER_NAME, server_name(b"a.example", kind=1))),
        hello((SERVER_NAME, server_name(b""))),
        hello((SERVER_NAME, server_name("ä.example".encode()))),
        hello((SERVER_NAME, b"")),
        hello((PADDING, b""), (PADDING, b"")),
        hello(tail=b"x"),
        b"\x16\x03\x01" + vector(2, b"\x02\0\0\0"),  # a ServerHello
        b"\x16\x03\x01\0\0",  # an empty record
        b"\x16\x03\x01\xff\xff",  # a record beyond the limit
        b"\x16\x03\x01" + vector(2, b"\x01\xff\xff\xff"),  # a message beyond the limit
        hello((SERVER_NAME, server_name(b"a.example")), record=40)[:45] + b"\x17\x03\x03\0\x01x",  # another record in the middle
        hello((SERVER_NAME, server_name(b"a.example")), record=1),  # more records than the limit
        NAMED[:5] + b"\x01" + vector(3, b"\x03\x03"),
        b"\x16\x03\x01" + vector(2, NAMED[5:] * 2),  # two messages in one record
        b"\x16\x03\x01" + vector(2, NAMED[5:] + b"\x01")[:-1],
    ],
)
def test_malformed_message_is_recognised(data: bytes) -> None:
    assert parse_client_hello(data) == "malformed"


@pytest.mark.parametrize("minor", [0, 5, 255])
def test_minor_version_of_the_first_record_is_ignored(minor: int) -> None:
    assert parse_client_hello(NAMED[:2] + bytes([minor]) + NAMED[3:]) == ClientHello("a.example")


@pytest.mark.parametrize("data", [b"\x16\x02" + NAMED[2:], b"\x15\x03\x01\0\x02\x01\x5a" + NAMED])
def test_message_that_only_some_servers_accept_is_malformed(data: bytes) -> None:
    results = [parse_client_hello(data[:size]) for size in range(len(data) + 1)]
    assert set(results) == {"incomplete", "malformed"}
    assert results[-1] == "malformed"


def test_endless_message_is_malformed() -> None:
    start = b"\x16\x03\x01" + vector(2, b"\x01" + MAX_HELLO_BYTES.to_bytes(3, "big"))
    assert parse_client_hello(start + b"\x16\x03\x01\0\x01x" * 10) == "incomplete"
    assert parse_client_hello(start + b"\x16\x03\x01\0\x01x" * MAX_RECORDS) == "malformed"
    assert parse_client_hello(start + b"\x16\x03\x01\x3f\xff" + bytes(MAX_HELLO_BYTES)) == "malformed"


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"\x80\x2e\x01\x03\x01", b"\x16\0\0\0\0\0", b"\x16\x10", b"\x15\x03\x03\0\x01x", b"\x17\x03\x03\0\x01x", b"\0", b"SSH"],
)
def test_other_protocol_is_not_tls(data: bytes) -> None:
    assert parse_client_hello(data) == "not_tls"


@given(st.binary(max_size=400), st.sampled_from([b"", NAMED[:3], NAMED[:5], NAMED[:9], NAMED[:45], NAMED[:-20]]))
def test_any_bytes_have_a_result(data: bytes, start: bytes) -> None:
    assert parse_client_hello(start + data) is not None


@given(st.data())
def test_changed_bytes_have_a_result(data: st.DataObject) -> None:
    changed = bytearray(NAMED)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    result = parse_client_hello(changed)
    assert isinstance(result, ClientHello) or result in {"incomplete", "malformed", "not_tls"}


@given(st.binary(max_size=300), st.sampled_from([b"", NAMED[:5], NAMED[:45]]))
def test_result_does_not_change_with_more_bytes(data: bytes, start: bytes) -> None:
    whole = start + data
    results = [parse_client_hello(whole[:size]) for size in range(len(whole) + 1)]
    decided = [result for result in results if result != "incomplete"]
    assert decided == results[len(results) - len(decided) :]
    assert len(set(decided)) <= 1
