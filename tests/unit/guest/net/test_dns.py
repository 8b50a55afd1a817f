"""DNS inside the sandbox: answers by type and name, synthetic addresses, and malformed queries."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.guest.net import dns
from sandlot.guest.net.dns import AAAA, ANY, CAA, CNAME, HTTPS, MX, PTR, SRV, SVCB, TXT, A, HostQuery, NameTable, answer

HEADER = struct.Struct("!6H")
RECURSION_DESIRED = 0x0100
IN, CHAOS = 1, 3
OPT = b"\0" + struct.pack("!2HIH", 41, 1232, 0, 0)


def encode_name(name: str) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in name.encode().split(b".") if label) + b"\0"


def query(name: str | bytes, type_: int = A, class_: int = IN, *, extra: bytes = b"", extras: int = 0, flags: int = RECURSION_DESIRED) -> bytes:
    """Encode a query; a name in bytes is encoded already."""
    raw = encode_name(name) if isinstance(name, str) else name
    return HEADER.pack(0xBEEF, flags, 1, 0, 0, extras) + raw + struct.pack("!2H", type_, class_) + extra


def code_of(response: bytes | HostQuery | None) -> int:
    assert isinstance(response, bytes)
    return response[3] & 0xF


def record_of(response: bytes | HostQuery | None, question: bytes) -> tuple[int, int, bytes] | None:
    """Check that a response belongs to a question, and return type, TTL and data of its record, or None if it has no record."""
    assert isinstance(response, bytes)
    id_, flags, questions, answers, authorities, additional = HEADER.unpack_from(response)
    assert (id_, flags & 0xFF8F, questions, authorities, additional) == (0xBEEF, 0x8180, 1, 0, 0)
    assert response[12 : len(question)] == question[12:]
    rest = response[len(question) :]
    if not answers:
        assert rest == b""
        return None
    pointer, type_, class_, ttl, size = struct.unpack_from("!3HIH", rest)
    assert (pointer, class_, len(rest)) == (0xC00C, IN, 12 + size)
    return type_, ttl, rest[12:]


def address_of(name: str, table: NameTable) -> str:
    record = record_of(answer(query(name), table), query(name))
    assert record is not None
    type_, ttl, data = record
    assert (type_, ttl) == (A, dns.TTL_S)
    return str(ipaddress.IPv4Address(data))


def test_each_name_gets_an_address_of_its_own_and_keeps_it() -> None:
    table = NameTable()
    names = ["example.com", "www.example.com", "example.org", "_dmarc.example.com", "1.2.3", "a" * 63 + ".example", "xn--bcher-kva.example"]

    addresses = {name: address_of(name, table) for name in names}

    assert {name: address_of(name, table) for name in reversed(names)} == addresses
    assert len(set(addresses.values())) == len(names)
    for name, address in addresses.items():
        assert ipaddress.ip_address(address) in ipaddress.ip_network("198.18.0.0/15")
        assert table.find(ipaddress.ip_address(address).packed) == name


def test_case_and_trailing_dot_make_no_difference_and_the_question_is_returned_as_sent() -> None:
    table = NameTable()
    assert address_of("eXaMPLe.CoM", table) == address_of("example.com.", table)
    assert len(table) == 1


@pytest.mark.parametrize("type_", [AAAA, HTTPS, SVCB, 2, 6, 35, 99, 65280])
def test_other_types_have_no_data_and_assign_no_address(type_: int) -> None:
    table = NameTable()
    question = query("example.com", type_)
    response = answer(question, table)
    assert (code_of(response), record_of(response, question), len(table)) == (dns.NO_ERROR, None, 0)


def test_query_of_any_type_is_answered_with_the_address() -> None:
    table = NameTable()
    question = query("example.com", ANY)
    record = record_of(answer(question, table), question)
    assert record is not None
    assert (record[0], str(ipaddress.IPv4Address(record[2]))) == (A, address_of("example.com", table))


@pytest.mark.parametrize("name", ["localhost", "app.localhost", "a.b.LOCALHOST."])
def test_localhost_is_the_loopback_address(name: str) -> None:
    table = NameTable()
    assert address_of(name, table) == "127.0.0.1"
    question = query(name, AAAA)
    assert record_of(answer(question, table), question) is None
    assert len(table) == 0


LOCAL = ["metadata", "intranet", "printer.local", "metadata.google.internal", "a.b.Internal", "."]


@pytest.mark.parametrize("type_", [A, AAAA, MX, ANY])
@pytest.mark.parametrize("name", LOCAL)
def test_local_names_do_not_exist(name: str, type_: int) -> None:
    table = NameTable()
    assert (code_of(answer(query(name, type_), table)), len(table)) == (dns.NO_NAME, 0)


def test_local_domains_that_are_listed_resolve() -> None:
    table = NameTable()
    table.local_domains = ("corp.internal", "registry")

    for name in ("corp.internal", "git.corp.internal", "a.b.corp.internal", "registry", "cache.registry"):
        assert table.find(ipaddress.ip_address(address_of(name, table)).packed) == name
    for name in ("internal", "notcorp.internal", "other.internal", "registry2", "printer.local"):
        assert code_of(answer(query(name), table)) == dns.NO_NAME


@pytest.mark.parametrize(
    "raw", [b"\x03a.b\x03com\0", b"\x02\0a\x03com\0", b"\x03a@b\x03com\0", b"\x02\xc3\xa4\x03com\0", b"\x03a b\x03com\0", b"\x01*\x03com\0"]
)
def test_names_that_no_host_can_have_do_not_exist(raw: bytes) -> None:
    table = NameTable()
    assert (code_of(answer(query(raw), table)), len(table)) == (dns.NO_NAME, 0)


def test_address_resolves_to_its_name() -> None:
    table = NameTable()
    first, second = address_of("example.com", table), address_of("example.org", table)
    for address, name in ((first, "example.com"), (second, "example.org")):
        question = query(".".join(reversed(address.split("."))) + ".in-addr.arpa", PTR)
        record = record_of(answer(question, table), question)
        assert record == (PTR, dns.TTL_S, encode_name(name))


@pytest.mark.parametrize(
    "name",
    [
        *("9.9.18.198.in-addr.arpa", "0.0.18.198.in-addr.arpa", "8.8.8.8.in-addr.arpa", "1.0.0.127.in-addr.arpa", "256.0.18.198.in-addr.arpa"),
        *("x.0.18.198.in-addr.arpa", "18.198.in-addr.arpa", "in-addr.arpa", "1.1.0.18.198.in-addr.arpa", "1.0.ip6.arpa"),
    ],
)
def test_other_addresses_have_no_name(name: str) -> None:
    table = NameTable()
    address_of("example.com", table)
    for type_ in (PTR, A):
        assert code_of(answer(query(name, type_), table)) == dns.NO_NAME
    assert len(table) == 1


def test_table_that_is_full_refuses_new_names_and_keeps_the_others() -> None:
    table = NameTable()
    for number in range(dns.MAX_NAMES):
        assert table.add(f"{number}.example") is not None
    last = address_of(f"{dns.MAX_NAMES - 1}.example", table)

    assert code_of(answer(query("new.example"), table)) == dns.REFUSED
    assert len(table) == dns.MAX_NAMES
    assert ipaddress.ip_address(last) in ipaddress.ip_network("198.18.0.0/15")
    assert address_of("0.example", table) == "198.18.0.1"


# -- the host's types ---------------------------------------------------------------------------------------------------------------------------


def host_query(question: bytes) -> HostQuery:
    forwarded = answer(question, NameTable())
    assert isinstance(forwarded, HostQuery)
    return forwarded


@pytest.mark.parametrize("type_,name", [(MX, "MX"), (SRV, "SRV"), (TXT, "TXT"), (CNAME, "CNAME"), (CAA, "CAA")])
def test_types_without_synthetic_data_are_forwarded(type_: int, name: str) -> None:
    forwarded = host_query(query("Example.COM", type_))
    assert (forwarded.name, forwarded.type) == ("example.com", name)


def response_of_host(name: str, type_: int, data: bytes = b"data", flags: int = 0x8180) -> bytes:
    record = struct.pack("!3HIH", 0xC00C, type_, IN, 300, len(data)) + data
    return HEADER.pack(0, flags, 1, 1, 0, 0) + encode_name(name) + struct.pack("!2H", type_, IN) + record


def test_response_of_the_host_gets_the_id_and_the_question_of_the_query() -> None:
    question = query("Example.COM", TXT)
    response = host_query(question).query.forward(response_of_host("example.com", TXT, b"\x04text"))
    assert record_of(response, question) == (TXT, 300, b"\x04text")


@pytest.mark.parametrize("extra,size,answers", [(b"", 470, 1), (b"", 500, 0), (OPT, 1000, 1), (OPT, 1300, 0)])
def test_response_of_the_host_that_is_too_long_is_truncated(extra: bytes, size: int, answers: int) -> None:
    question = query("example.com", TXT, extra=extra, extras=bool(extra))
    response = host_query(question).query.forward(response_of_host("example.com", TXT, bytes(size)))
    _, flags, _, given, _, _ = HEADER.unpack_from(response)
    assert (given, bool(flags & 0x0200)) == (answers, not answers)
    assert len(response) <= (1232 if extra else 512)


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"x" * 11, HEADER.pack(0, 0x8180, 0, 0, 0, 0)),
        *(response_of_host("example.org", TXT), response_of_host("example.com", MX), response_of_host("example.com", TXT, flags=0x0100)),
    ],
)
def test_response_of_the_host_to_another_question_is_a_server_failure(message: bytes) -> None:
    question = query("example.com", TXT)
    response = host_query(question).query.forward(message)
    assert (code_of(response), response[12:]) == (dns.SERVER_FAILURE, question[12:])


@given(st.binary(max_size=600), st.integers(0, 60))
def test_any_response_of_the_host_is_forwarded_or_a_server_failure(tail: bytes, kept: int) -> None:
    whole = response_of_host("example.com", TXT)
    response = host_query(query("example.com", TXT)).query.forward(whole[:kept] + tail)
    assert response[:2] == b"\xbe\xef"
    assert len(response) <= dns.PLAIN_RESPONSE_BYTES


# -- malformed and unusual queries ----------------------------------------------------------------------------------------------------------------

LABEL = b"\x3f" + b"a" * 63
LONGEST = LABEL * 3 + b"\x3d" + b"a" * 61 + b"\0"  # 255 bytes, a name of 253 characters


def test_name_of_253_characters_is_resolved() -> None:
    table = NameTable()
    record = record_of(answer(query(LONGEST), table), query(LONGEST))
    assert record is not None
    assert len(table.find(record[2]) or "") == 253


MALFORMED = {
    "name of 254 characters": query(LABEL * 3 + b"\x3e" + b"a" * 62 + b"\0"),
    "label of 64 characters": query(b"\x40" + b"a" * 64 + b"\x03com\0"),
    "reserved label type": query(b"\x80" + b"a" * 130 + b"\0"),
    "compressed name": query(b"\xc0\x0c"),
    "name compressed after a label": query(b"\x03www\xc0\x0c"),
    "name without end": HEADER.pack(0xBEEF, 0, 1, 0, 0, 0) + b"\x03www\x03com",
    "label without end": HEADER.pack(0xBEEF, 0, 1, 0, 0, 0) + b"\x3fwww",
    "question without type": query("example.com")[:-4],
    "question without whole class": query("example.com")[:-1],
    "header only": HEADER.pack(0xBEEF, 0, 1, 0, 0, 0),
    "no question": HEADER.pack(0xBEEF, 0, 0, 0, 0, 0),
    "two questions": HEADER.pack(0xBEEF, 0, 2, 0, 0, 0) + query("example.com")[12:] * 2,
    "an answer": HEADER.pack(0xBEEF, 0, 1, 1, 0, 0) + query("example.com")[12:],
    "an authority": HEADER.pack(0xBEEF, 0, 1, 0, 1, 0) + query("example.com")[12:],
    "truncated by flag": query("example.com", flags=0x0200),
    "missing additional record": query("example.com", extras=1),
    "additional record cut off": query("example.com", extra=OPT[:-1], extras=1),
    "additional record longer than the query": query("example.com", extra=b"\0" + struct.pack("!2HIH", 16, IN, 0, 9), extras=1),
    "additional record with a reserved name": query("example.com", extra=b"\x80" + OPT, extras=1),
    "two EDNS records": query("example.com", extra=OPT * 2, extras=2),
    "EDNS record with a name": query("example.com", extra=b"\x01a" + OPT, extras=1),
    "65,535 additional records": query("example.com", extra=OPT[:1] * 3000, extras=65535),
    "query of 4,097 bytes": query("example.com", extra=bytes(dns.QUERY_BYTES + 1 - len(query("example.com")))),
}


def response_flags(message: bytes) -> int:
    return 0x8080 | int.from_bytes(message[2:4], "big") & RECURSION_DESIRED


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_malformed_queries_are_format_errors(message: bytes) -> None:
    table = NameTable()
    response = answer(message, table)
    assert (code_of(response), len(table)) == (dns.FORMAT_ERROR, 0)
    assert response == HEADER.pack(0xBEEF, response_flags(message) | dns.FORMAT_ERROR, 0, 0, 0, 0)


@pytest.mark.parametrize("message", [b"", b"\xbe\xef" + bytes(9), query("example.com", flags=0x8180), answer(query("example.com"), NameTable())])
def test_short_messages_and_responses_are_ignored(message: bytes) -> None:
    assert answer(message, NameTable()) is None


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 15])
def test_other_operations_are_not_implemented(opcode: int) -> None:
    assert code_of(answer(query("example.com", flags=opcode << 11), NameTable())) == dns.NOT_IMPLEMENTED


@pytest.mark.parametrize("type_,class_", [(TXT, CHAOS), (A, 254), (251, IN), (252, IN)])
def test_other_classes_and_transfers_are_refused(type_: int, class_: int) -> None:
    table = NameTable()
    assert (code_of(answer(query("version.bind", type_, class_), table)), len(table)) == (dns.REFUSED, 0)


def test_edns_is_answered_with_edns() -> None:
    response = answer(query("example.com", extra=OPT, extras=1), NameTable())
    assert isinstance(response, bytes)
    assert HEADER.unpack_from(response)[2:] == (1, 1, 0, 1)
    assert response.endswith(b"\0" + struct.pack("!2HIH", 41, dns.RESPONSE_BYTES, 0, 0))


def test_later_version_of_edns_is_refused() -> None:
    table = NameTable()
    response = answer(query("example.com", extra=b"\0" + struct.pack("!2HIH", 41, 1232, 1 << 16, 0), extras=1), table)
    assert isinstance(response, bytes)
    assert HEADER.unpack_from(response)[2:] == (1, 0, 0, 1)
    assert (response[-6], len(table)) == (1, 0)  # the upper bits of the code: 16 in all, BADVERS


def change(message: bytes, at: int, byte: int) -> bytes:
    at %= len(message)
    return message[:at] + bytes((byte,)) + message[at + 1 :]


NAMES = st.sampled_from(["example.com", "a.b.c.d.e", "1.0.18.198.in-addr.arpa", "metadata"])
HEADS = st.builds(HEADER.pack, *[st.integers(0, 0xFFFF)] * 2, *[st.integers(0, 2)] * 4)
QUERIES = st.builds(lambda name, extra: query(name, extra=extra, extras=1), NAMES, st.sampled_from([OPT, OPT * 2, b"\xc0\x0c" + OPT[1:], b""]))


@given(
    st.one_of(
        st.binary(max_size=dns.QUERY_BYTES + 100),
        st.builds(bytes.__add__, HEADS, st.binary()),
        st.builds(change, QUERIES, st.integers(0, 100), st.integers(0, 255)),
    )
)
def test_any_bytes_are_answered_or_ignored(message: bytes) -> None:
    table = NameTable()
    response = answer(message, table)
    assert len(table) <= 1
    if isinstance(response, HostQuery):
        response = response.query.respond(dns.REFUSED)
    if response is not None:
        assert response[:2] == message[:2]
        assert response[2] & 0x80
        assert len(response) <= dns.PLAIN_RESPONSE_BYTES
