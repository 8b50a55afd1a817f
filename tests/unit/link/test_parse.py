"""Parsing the values of a guest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.link import parse
from sandlot.model.errors import CODES, ErrorCode
from sandlot.model.executions import Display
from sandlot.model.files import Entry
from sandlot.protocol import schema
from sandlot.protocol.errors import ProtocolError
from tests.unit.link.peer import ENTRY
from tests.unit.link.test_client import PROCESS

WORDS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*ENTRY, *PROCESS, "data", "main"]), inner, max_size=9)),
    max_leaves=20,
)
PARSERS = [
    parse.entry,
    parse.listing,
    parse.process_info,
    parse.processes,
    parse.cell_result,
    parse.cell_error,
    parse.display,
    parse.guest_info,
    parse.nothing,
    parse.running,
    parse.removed,
    parse.python,
]


@settings(max_examples=40)  # tests/fuzz runs all parsers on more inputs, derived from real traffic
@given(WORDS, st.sampled_from(PARSERS))
def test_any_message_is_a_value_or_a_violation(words: object, parser: Any) -> None:  # noqa: ANN401 - one of many
    try:
        parser(words)
    except ProtocolError:
        return


def test_entry_at_its_limits_is_accepted() -> None:
    largest = {
        "name": "n" * 255,
        "path": "/" + "p" * 4094,
        "kind": "symlink",
        "size": 2**63 - 1,
        "mode": 0o7777,
        "uid": 2**32 - 1,
        "gid": 0,
        "modified_ns": -(2**63 - 1),
        "target": "",
        "attributes": {"n" * 255: "v" * 65536},
    }
    assert parse.entry(largest) == Entry(**largest)  # type: ignore[arg-type]
    beyond: list[tuple[str, object]] = [
        ("name", "n" * 256),
        ("path", "p" * 4096),
        ("kind", "socket"),
        ("size", -1),
        ("size", 2**63),
        ("mode", 0o10000),
        ("uid", 2**32),
        ("gid", -1),
        ("modified_ns", 2**63),
        ("target", "t" * 4096),
        ("attributes", {"n" * 256: ""}),
        ("attributes", {"n": "v" * 65537}),
        ("attributes", {str(number): "" for number in range(1001)}),
    ]
    for field, value in beyond:
        with pytest.raises(ProtocolError):
            parse.entry({**largest, field: value})


@pytest.mark.parametrize("mime", ["text/plain", "image/svg+xml", "application/vnd.plotly.v1+json", "text/html; charset=utf-8", "a/b"])
def test_display_maps_mime_types_to_text_or_bytes(mime: str) -> None:
    for content in ("x", b"x", "", b""):
        assert parse.display({"data": {mime: content}, "main": True}) == Display({mime: content}, main=True)


@pytest.mark.parametrize(
    "mime", ["", "text", "text/", "/plain", "text/plain\n", "text/<b>", "te xt/plain", "x" * 128 + "/y", "text/pl\0ain", "text/plain\r\nX: y"]
)
def test_display_with_an_invalid_mime_type_is_refused(mime: str) -> None:
    with pytest.raises(ProtocolError):
        parse.display({"data": {mime: "x"}, "main": True})


def test_every_code_of_a_guest_is_a_model_code() -> None:
    assert set(schema.RESET_CODES) <= {code.value for code in ErrorCode}
    for code in CODES:
        error = parse.reset_error({"code": code.value, "message": "m"})
        assert error.code == (code if code.value in schema.RESET_CODES else ErrorCode.INTERNAL)


def test_size_of_an_error_is_limited() -> None:
    error = parse.reset_error({"code": "conflict", "message": "m" * 100_000, "hint": "h" * 100_000})
    assert len(error.message) == schema.LIMITS["text"]
    assert len(error.hint) <= 1024
    assert parse.reset_error({"code": "conflict", "message": "m", "hint": b"h"}).hint == ""


def test_fields_of_an_error_are_not_taken_from_the_guest() -> None:
    """Some fields become headers of the response."""
    forged = {"retry_after_s": "1\r\nSet-Cookie: a=b", "request_id": "forged", "sandbox": "another"}
    assert not parse.reset_error({"code": "busy", "message": "m", **forged}).fields
