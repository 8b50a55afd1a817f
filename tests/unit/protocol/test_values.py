"""Encoded values: comparison with the reference implementation of MessagePack, limits, and messages."""

from __future__ import annotations

import ast
import math
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.protocol import values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), TEXTS, st.binary())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(TEXTS, inner, max_size=20)),
    max_leaves=60,
).filter(lambda value: _depth(value) <= values.MAX_DEPTH)

#: Around every width that the encoding tells apart.
EDGES: list[Any] = [
    *(edge + step for bits in (5, 7, 8, 15, 16, 31, 32, 63) for edge in (1 << bits, -(1 << bits)) for step in (-1, 0, 1) if edge + step >= -(2**63)),
    2**64 - 1,
    0,
    *("x" * size for size in (0, 1, 31, 32, 255, 256, 65535, 65536)),
    *(b"x" * size for size in (0, 1, 255, 256, 65535, 65536)),
    *([None] * size for size in (0, 1, 15, 16, 65535, 65536)),
    *({str(number): number for number in range(size)} for size in (0, 1, 15, 16, 40000)),
    "héé☃𐍈",
    -0.0,
    math.inf,
    5e-324,
]


def _depth(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 0


def _reference(raw: bytes) -> object:
    return msgpack.unpackb(raw, raw=False, strict_map_key=True)


@settings(max_examples=25)
@given(VALUES)
def test_encoding_agrees_with_the_reference_implementation(value: object) -> None:
    raw = values.encode(value)
    assert values.decode(raw) == value
    assert _reference(raw) == value
    assert raw == msgpack.packb(value, use_bin_type=True)


@pytest.mark.parametrize("value", EDGES, ids=range(len(EDGES)))
def test_every_width_agrees_with_the_reference(value: object) -> None:
    assert values.encode(value) == msgpack.packb(value, use_bin_type=True)
    decoded = values.decode(values.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_an_encoding_error(raw: bytes) -> None:
    try:
        value = values.decode(raw)
    except values.EncodingError:
        return
    assert _reference(raw) == value or _has_nan(value)


def _has_nan(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, float) and math.isnan(value)


@settings(max_examples=25)
@given(VALUES, st.data())
def test_incomplete_value_and_trailing_bytes_are_refused(value: object, data: st.DataObject) -> None:
    raw = values.encode(value)
    with pytest.raises(values.EncodingError):
        values.decode(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(values.EncodingError):
        values.decode(raw + b"\xc0")


@pytest.mark.parametrize(
    "raw, why",
    [
        (b"", "incomplete"),
        (b"\xc1", "not supported"),
        (b"\xca\0\0\0\0", "not supported"),
        (b"\xc7\x01\x01x", "not supported"),
        (b"\xd4\x01x", "not supported"),
        (b"\x81\x01\x01", "not text"),
        (b"\x81\xc4\x01a\x01", "not text"),
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (b"\xa2\xff\xfe", "UTF-8"),
        (b"\xa3\xed\xa0\x80", "UTF-8"),
        (b"\xdd\xff\xff\xff\xff", "incomplete"),
        (b"\xdf\xff\xff\xff\xff", "incomplete"),
        (b"\xdb\xff\xff\xff\xff", "incomplete"),
        (b"\xc6\xff\xff\xff\xff", "incomplete"),
        (b"\x91" * 17 + b"\xc0", "deeper"),
    ],
)
def test_bytes_outside_the_subset_are_refused(raw: bytes, why: str) -> None:
    with pytest.raises(values.EncodingError, match=why):
        values.decode(raw)


@pytest.mark.parametrize("value", [object, {1: 2}, {b"x": 1}, 2**64, -(2**63) - 1, {1, 2}, 1j, [[object]]], ids=str)
def test_unsupported_value_is_not_encoded(value: object) -> None:
    with pytest.raises(values.EncodingError):
        values.encode(value)


def test_depth_is_limited_in_both_directions() -> None:
    deep: list[Any] = []
    for _ in range(values.MAX_DEPTH - 1):
        deep = [deep]
    assert values.decode(values.encode(deep)) == deep
    with pytest.raises(values.EncodingError, match="deeper"):
        values.encode([deep])
    with pytest.raises(values.EncodingError, match="deeper"):
        values.decode(b"\x91" * values.MAX_DEPTH + b"\x90")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(values.EncodingError, match="deeper"):
        values.encode(loop)


def test_number_of_items_is_limited() -> None:
    full = b"\xdd" + struct.pack(">I", values.MAX_ITEMS) + b"\xc0" * values.MAX_ITEMS
    assert len(values.decode(full)) == values.MAX_ITEMS
    with pytest.raises(values.EncodingError, match="items"):
        values.decode(b"\x92" + full + b"\xc0")
    half = values.MAX_ITEMS // 2 + 1
    with pytest.raises(values.EncodingError, match="items"):
        values.decode(b"\xdf" + struct.pack(">I", half) + b"\xa0\xc0" * half)


def test_announced_length_reserves_no_memory() -> None:
    nested = b"\xdd\x00\x01\x00\x00" * values.MAX_DEPTH
    raw = nested + b"\xc0" * 70000
    tracemalloc.start()
    try:
        with pytest.raises(values.EncodingError):
            values.decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(raw)
    finally:
        tracemalloc.stop()


def test_lone_surrogates_become_question_marks() -> None:
    assert values.decode(values.encode({"name\udcff": "\ud800x"})) == {"name?": "?x"}


def test_module_imports_nothing_and_is_valid_python_3_8(tmp_path: Path) -> None:
    source = Path(values.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    (tmp_path / "values.py").write_text(source, encoding="utf-8")
    program = (
        "import sys; before = set(sys.modules); import values; print(sorted(set(sys.modules) - before)); print(values.decode(values.encode([1])))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True, env={"PYTHONPATH": "."})
    assert done.stdout.splitlines() == ["['__future__', '_struct', 'struct', 'values']", "[1]"]


# -- messages -----------------------------------------------------------------------------------------------------------

MESSAGES: list[Any] = [{"op": "a", "data": b"x" * 300}, None, [], {}, "", 0, "last"]


def _framed(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


@settings(max_examples=25)
@given(VALUES)
def test_message_is_a_big_endian_length_and_the_encoded_value(value: object) -> None:
    assert values.encode_message(value) == _framed(values.encode(value))


def test_unsupported_value_makes_no_message() -> None:
    with pytest.raises(values.EncodingError, match="cannot be encoded"):
        values.encode_message({"key": object()})


def test_message_longer_than_its_length_can_say_is_refused() -> None:
    piece = b"x" * (1 << 20)  # the same object many times, so that 4 GiB are never allocated
    with pytest.raises(values.EncodingError, match="4 GiB"):
        values.encode_message([piece] * (1 << 12))


def test_message_length_ignores_what_follows_the_head() -> None:
    message = values.encode_message("x" * 1000)
    assert values.message_length(message[: values.HEAD_BYTES]) == len(message) - values.HEAD_BYTES
    assert values.message_length(bytearray(message)) == len(message) - values.HEAD_BYTES


def test_messages_split_at_every_byte_are_complete_with_their_last_byte() -> None:
    reader = values.MessageReader()
    found = []
    for expected in MESSAGES:
        message = values.encode_message(expected)
        for at in range(len(message)):
            assert not reader.has_message
            assert reader.take() is None
            assert list(reader.messages()) == []
            assert reader.buffered_bytes == at
            reader.feed(message[at : at + 1])
        assert reader.has_message
        found += list(reader.messages())
        assert reader.buffered_bytes == 0
    assert found == MESSAGES


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 4096])
def test_pieces_of_any_size_give_the_same_messages(size: int) -> None:
    raw = b"".join(map(values.encode_message, MESSAGES))
    reader = values.MessageReader()
    found = []
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
        found += list(reader.messages())
    assert found == MESSAGES


def test_messages_of_one_piece_are_taken_one_by_one() -> None:
    reader = values.MessageReader()
    reader.feed(b"".join(map(values.encode_message, ["first", "second"])) + b"\0\0")
    assert reader.take() == values.encode("first")
    assert reader.buffered_bytes == len(values.encode_message("second")) + 2
    assert next(reader.messages()) == "second"
    assert reader.buffered_bytes == 2
    assert list(reader.messages()) == []


def test_empty_input_has_no_message() -> None:
    reader = values.MessageReader()
    reader.feed(b"")
    assert not reader.has_message
    assert reader.take() is None
    assert next(reader.messages(), "none") == "none"


def test_message_without_a_value_is_invalid() -> None:
    reader = values.MessageReader()
    reader.feed(bytes(values.HEAD_BYTES))
    assert reader.has_message
    with pytest.raises(values.EncodingError, match="incomplete"):
        next(reader.messages())
    reader.feed(bytes(values.HEAD_BYTES))
    assert reader.take() == b""


@pytest.mark.parametrize("raw", [b"\xc1", b"\xc0\xc0", b"\xa2\xff\xfe", b"\x92\xc0"], ids=["code", "trailing", "text", "short"])
def test_invalid_message_is_refused_and_the_next_one_is_read(raw: bytes) -> None:
    reader = values.MessageReader()
    reader.feed(values.encode_message("before") + _framed(raw) + values.encode_message("after"))
    messages = reader.messages()
    assert next(messages) == "before"
    with pytest.raises(values.EncodingError):
        next(messages)
    assert list(reader.messages()) == ["after"]


def test_too_large_message_is_refused_by_its_head() -> None:
    most = values.encode_message(b"x" * 98)
    assert len(most) == values.HEAD_BYTES + 100
    reader = values.MessageReader(100)
    reader.feed(most + struct.pack(">I", 101))
    assert reader.take() == most[values.HEAD_BYTES :]
    for _ in range(2):
        with pytest.raises(values.MessageTooLargeError, match="101 bytes; at most 100"):
            reader.take()
        with pytest.raises(values.EncodingError):
            next(reader.messages())


def test_cleared_reader_starts_with_a_new_message() -> None:
    reader = values.MessageReader()
    reader.feed(values.encode_message("old") + b"\0")
    reader.clear()
    reader.feed(values.encode_message("new"))
    assert list(reader.messages()) == ["new"]


def test_taking_a_large_message_copies_it_once() -> None:
    size = 8 << 20
    reader = values.MessageReader()
    reader.feed(_framed(bytes(size)))
    tracemalloc.start()
    try:
        raw = reader.take()
        assert raw is not None
        assert len(raw) == size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_encoding_a_large_message_copies_it_once() -> None:
    data = bytes(8 << 20)
    tracemalloc.start()
    try:
        values.encode_message({"data": data})
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(data)
    finally:
        tracemalloc.stop()
