"""DNS inside the sandbox: answers queries from a table of synthetic addresses, one for each name. No I/O, no clock, no randomness.

A program asks for the address of a name and gets a synthetic address. When the program connects to this address, the guest looks up the name and
sends the name to the host, which decides and resolves. A query for an address therefore never leaves the sandbox.

Invariants:
- A synthetic address belongs to one name for the life of the table, so an address that a program has cached never leads to another name. The table is
  in the memory of the guest: a restored sandbox and a copy have the same table.
- At most :data:`MAX_NAMES` names are in the table. Queries for further names are refused.
- Any bytes are answered or ignored; no input raises an exception. The work and the memory for one query are bounded by :data:`QUERY_BYTES`.
- Names are in lower case, and consist of letters, digits, ``-`` and ``_`` in labels that are separated by ``.``. No other name exists.

Source: RFC 1035; RFC 6761 (localhost), RFC 6762 (.local), RFC 6891 (EDNS), RFC 8482 (queries of type ANY), RFC 9460 (SVCB and HTTPS).
"""

from __future__ import annotations

import struct

FIRST_ADDRESS = (198 << 24) + (18 << 16) + 1
"""First synthetic address: 198.18.0.1. The network 198.18.0.0/15 is reserved for benchmarks (RFC 2544) and is never routed."""
MAX_NAMES = 65536
TTL_S = 60
"""Seconds for which programs may cache an answer. A name keeps its address, so the time only limits how long refusals are remembered."""
MAX_NAME_BYTES = 253
"""Maximum length of a name in text, which is 255 bytes with lengths and root (RFC 1035, 2.3.4)."""
QUERY_BYTES = 4096
"""Maximum size of a query. Longer queries are malformed."""
PLAIN_RESPONSE_BYTES = 512
"""Maximum size of a response to a query without EDNS."""
RESPONSE_BYTES = 4096
"""Maximum size of a response to a query with EDNS, whatever size the query allows."""

A, CNAME, PTR, MX, TXT, AAAA, SRV, OPT, SVCB, HTTPS, ANY, CAA = 1, 5, 12, 15, 16, 28, 33, 41, 64, 65, 255, 257
"""Types of records."""
HOST_TYPES = {MX: "MX", SRV: "SRV", TXT: "TXT", CNAME: "CNAME", CAA: "CAA"}
"""Types that the host resolves, with their names. All types besides these, A, ANY and PTR have no data."""
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_NAME, NOT_IMPLEMENTED, REFUSED = range(6)
"""Response codes (RCODE)."""

_IN = 1
_RESPONSE, _TRUNCATED, _RECURSION_DESIRED, _RECURSION_AVAILABLE, _CHECKING_DISABLED = 0x8000, 0x0200, 0x0100, 0x0080, 0x0010
_OPCODE = 0x7800
_BAD_VERSION = 1
"""Upper bits of the extended response code BADVERS, 16."""
_TRANSFERS = frozenset((251, 252))
"""Types IXFR and AXFR."""
_LOCAL_DOMAINS = ("local", "internal")
_REVERSE_V4 = ("in-addr", "arpa")
_REVERSE_V6 = ("ip6", "arpa")
_LOOPBACK = bytes((127, 0, 0, 1))
_BYTES = frozenset(map(str, range(256)))
"""Texts of the four numbers of an address."""
_CHARS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_HEADER = struct.Struct("!6H")
_MAX_LABEL_BYTES = 63
_TYPE_AND_CLASS = struct.Struct("!2H")
_RECORD = struct.Struct("!2HIH")
"""Fields of a record between its name and its data: type, class, TTL, length of the data."""
_QUESTION_NAME = b"\xc0\x0c"
"""Pointer to the name of the question, which follows the header of 12 bytes."""


class NameTable:
    """Names and their synthetic addresses.

    Attributes:
        local_domains: Domains that resolve although they have one label or end in ``.local`` or ``.internal``, with all names below them. In lower
            case. Empty by default.
    """

    __slots__ = ("_names", "_numbers", "local_domains")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.local_domains: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._names)

    def resolves(self, name: str) -> bool:
        """Return True if a name gets an address: the name has several labels and is not local, or is in a local domain that resolves."""
        if any(name == domain or name.endswith(f".{domain}") for domain in self.local_domains):
            return True
        _, dot, last = name.rpartition(".")
        return bool(dot) and last not in _LOCAL_DOMAINS

    def add(self, name: str) -> bytes | None:
        """Return the address of a name, 4 bytes. Assign an address if the name is new. Return None if the table is full."""
        number = self._numbers.get(name)
        if number is None:
            number = len(self._names)
            if number >= MAX_NAMES:
                return None
            self._numbers[name] = number
            self._names.append(name)
        return (FIRST_ADDRESS + number).to_bytes(4, "big")

    def find(self, address: bytes) -> str | None:
        """Return the name of an address of 4 bytes, or None if the address was never assigned."""
        number = int.from_bytes(address, "big") - FIRST_ADDRESS
        return self._names[number] if 0 <= number < len(self._names) else None


class Query:
    """A parsed query with exactly one question.

    Args:
        head: Id and flags of the query.
        question: Bytes of the question, as the program has sent them.
        name: Name of the question, in lower case; None if no host can have such a name.
        type_: Type of the question.
        payload_bytes: Maximum size of a response over UDP.
        has_edns: True if the query has an EDNS record, and its response gets one too.
    """

    __slots__ = ("_flags", "_has_edns", "_id", "_payload_bytes", "_question", "name", "type")

    def __init__(self, head: tuple[int, int], question: bytes, name: str | None, type_: int, payload_bytes: int, *, has_edns: bool) -> None:
        self._id, self._flags = head
        self._question = question
        self._payload_bytes = payload_bytes
        self._has_edns = has_edns
        self.name = name
        self.type = type_

    def respond(self, code: int, data: bytes | None = None, *, extended: int = 0) -> bytes:
        """Return the response with a code, and with one record of the question's name unless ``data`` is None.

        Args:
            code: Response code.
            data: Data of a record: an address if the question has the type A or ANY, otherwise data of the question's type.
            extended: Upper bits of the response code, for queries with EDNS.
        """
        type_ = A if self.type == ANY else self.type
        answer = b"" if data is None else _QUESTION_NAME + _RECORD.pack(type_, _IN, TTL_S, len(data)) + data
        edns = b"\0" + _RECORD.pack(OPT, RESPONSE_BYTES, extended << 24, 0) if self._has_edns else b""
        counts = (1, 0 if data is None else 1, 0, 1 if edns else 0)
        return _HEADER.pack(self._id, _response_flags(self._flags) | code, *counts) + self._question + answer + edns

    def forward(self, message: bytes) -> bytes:
        """Return the response of the host for the program: with the program's id and question, and truncated if the program expects less.

        Args:
            message: Response of the host: a DNS message with the same question. If it is anything else, the result reports a failure of the server.
        """
        end = _HEADER.size + len(self._question)
        if len(message) < end or message[_HEADER.size : end].lower() != self._question.lower():
            return self.respond(SERVER_FAILURE)
        _, flags, questions, *counts = _HEADER.unpack_from(message)
        if questions != 1 or not flags & _RESPONSE:
            return self.respond(SERVER_FAILURE)
        code = flags & 0xF
        if len(message) > self._payload_bytes or flags & _TRUNCATED:
            return _HEADER.pack(self._id, _response_flags(self._flags) | _TRUNCATED | code, 1, 0, 0, 0) + self._question
        return _HEADER.pack(self._id, _response_flags(self._flags) | code, 1, *counts) + self._question + message[end:]


class HostQuery:
    """A query that the host must answer, because its type has no synthetic data.

    Attributes:
        query: The query; ``Query.forward`` and ``Query.respond`` make the response.
        name: Name of the question.
        type: Name of the type, such as ``MX``.
    """

    __slots__ = ("name", "query", "type")

    def __init__(self, query: Query, name: str) -> None:
        self.query = query
        self.name = name
        self.type = HOST_TYPES[query.type]


def answer(message: bytes, table: NameTable) -> bytes | HostQuery | None:
    """Answer one query.

    Args:
        message: Bytes that a program has sent.
        table: Table of the names. A name that gets an address for the first time is added.

    Returns:
        The response, or the query for the host. None if the bytes are too short to be answered, or are a response themselves.
    """
    if len(message) < _HEADER.size:
        return None
    id_, flags, *_ = _HEADER.unpack_from(message)
    if flags & _RESPONSE:
        return None
    parsed = None if flags & _OPCODE else _parse(message)
    if parsed is None:
        return _HEADER.pack(id_, _response_flags(flags) | (NOT_IMPLEMENTED if flags & _OPCODE else FORMAT_ERROR), 0, 0, 0, 0)
    query, version, class_ = parsed
    if version:
        return query.respond(NO_ERROR, extended=_BAD_VERSION)
    if class_ not in {_IN, ANY} or query.type in _TRANSFERS:
        return query.respond(REFUSED)
    return _resolve(query, table)


def _resolve(query: Query, table: NameTable) -> bytes | HostQuery:
    labels = [] if query.name is None else query.name.split(".")
    if tuple(labels[-2:]) in {_REVERSE_V4, _REVERSE_V6}:
        return _resolve_address(query, labels, table)
    if labels[-1:] == ["localhost"]:
        return query.respond(NO_ERROR, _LOOPBACK if query.type in {A, ANY} else None)
    return query.respond(NO_NAME) if query.name is None or not table.resolves(query.name) else _resolve_name(query, query.name, table)


def _resolve_name(query: Query, name: str, table: NameTable) -> bytes | HostQuery:
    if query.type in HOST_TYPES:
        return HostQuery(query, name)
    if query.type not in {A, ANY}:
        return query.respond(NO_ERROR)
    address = table.add(name)
    return query.respond(REFUSED) if address is None else query.respond(NO_ERROR, address)


def _resolve_address(query: Query, labels: list[str], table: NameTable) -> bytes:
    """Respond to a query for the name of an address. The address ``192.0.2.1`` has the labels 1, 2, 0, 192, in-addr and arpa."""
    numbers = labels[-3::-1]
    is_address = len(numbers) == len(_LOOPBACK) and all(number in _BYTES for number in numbers)
    name = table.find(bytes(map(int, numbers))) if is_address else None
    if name is None:
        return query.respond(NO_NAME)
    return query.respond(NO_ERROR, _encode_name(name) if query.type == PTR else None)


def _parse(message: bytes) -> tuple[Query, int, int] | None:
    """Return the query, its EDNS version and its class; None if the message is malformed."""
    id_, flags, questions, answers, authorities, additional = _HEADER.unpack_from(message)
    if len(message) > QUERY_BYTES or flags & _TRUNCATED or questions != 1 or answers or authorities:
        return None
    labels = _read_labels(message)
    if labels is None:
        return None
    end = _HEADER.size + sum(len(label) + 1 for label in labels) + 1
    if end + _TYPE_AND_CLASS.size > len(message):
        return None
    type_, class_ = _TYPE_AND_CLASS.unpack_from(message, end)
    end += _TYPE_AND_CLASS.size
    edns = _find_edns(message, end, additional)
    if edns is None:
        return None
    is_name = bool(labels) and all(_CHARS.issuperset(label) for label in labels)
    name = b".".join(labels).decode() if is_name else None
    has_edns, payload_bytes, version = edns
    return Query((id_, flags), message[_HEADER.size : end], name, type_, payload_bytes, has_edns=has_edns), version, class_


def _read_labels(message: bytes) -> list[bytes] | None:
    """Return the labels of the question's name in lower case; None if the name is truncated, compressed or too long."""
    labels: list[bytes] = []
    at = _HEADER.size
    while at < len(message):
        size = message[at]
        if not size:
            return labels
        label = message[at + 1 : at + 1 + size]
        at += 1 + size
        # A longer label is a pointer or has no meaning (RFC 1035, 4.1.4). A question has nothing that a pointer could point to.
        if size > _MAX_LABEL_BYTES or len(label) < size or at - _HEADER.size > MAX_NAME_BYTES + 1:
            return None
        labels.append(label.lower())
    return None


def _find_edns(message: bytes, at: int, count: int) -> tuple[bool, int, int] | None:
    """Find the EDNS record among the additional records of a query.

    Args:
        message: The query.
        at: Offset of the first additional record.
        count: Number of additional records.

    Returns:
        True if the record exists, the maximum size of a response, and the version. None if the message is malformed.
    """
    found = (False, PLAIN_RESPONSE_BYTES, 0)
    for _ in range(count):
        start = at
        while at < len(message) and 0 < message[at] <= _MAX_LABEL_BYTES:
            at += 1 + message[at]
        if at >= len(message):
            return None
        if message[at] and message[at] < _QUESTION_NAME[0]:
            return None
        at += 2 if message[at] else 1
        if at + _RECORD.size > len(message):
            return None
        type_, class_, ttl, size = _RECORD.unpack_from(message, at)
        is_root = at - start == 1
        at += _RECORD.size + size
        if at > len(message):
            return None
        if type_ == OPT:
            if found[0] or not is_root:
                return None
            found = (True, min(max(class_, PLAIN_RESPONSE_BYTES), RESPONSE_BYTES), ttl >> 16 & 0xFF)
    return found


def _encode_name(name: str) -> bytes:
    return b"".join(bytes((len(label),)) + label.encode() for label in name.split(".")) + b"\0"


def _response_flags(flags: int) -> int:
    return _RESPONSE | _RECURSION_AVAILABLE | flags & (_OPCODE | _RECURSION_DESIRED | _CHECKING_DISABLED)
