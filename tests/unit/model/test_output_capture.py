"""Captured output: its head, its tail, and the exact number of bytes omitted between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import utf8
from sandlot.model.output_capture import MAX_LOGGED_BYTES, OutputCapture, shorten, shorten_argv

PIECES = st.lists(st.binary(max_size=40), max_size=30)


@given(PIECES, st.integers(0, 50), st.integers(0, 50))
def test_head_and_tail_are_exact_and_the_gap_is_counted(pieces: list[bytes], head: int, tail: int) -> None:
    capture = OutputCapture(head, tail)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    assert (capture.written_bytes, capture.held_bytes) == (len(whole), min(len(whole), head + tail))
    content = capture.content()
    if len(whole) > head + tail:
        first, last = whole[:head], whole[len(whole) - tail :]
        first, last = first[: len(first) - utf8.incomplete_end(first)], last[utf8.incomplete_start(last) :]
        assert capture.omitted == len(whole) - len(first) - len(last)
        assert content.startswith(first)
        assert content.endswith(last)
        assert content[len(first) : len(content) - len(last)].strip() == f"[... {capture.omitted} bytes omitted ...]".encode()
    else:
        assert (content, capture.omitted) == (whole, 0)


@given(st.text(min_size=1, max_size=60), st.integers(0, 30), st.integers(0, 30))
def test_omitted_output_begins_and_ends_between_two_characters(text: str, head: int, tail: int) -> None:
    capture = OutputCapture(head, tail)
    for byte in text.encode():
        capture.add(bytes([byte]))
    if capture.omitted:
        first, _, last = capture.text().partition(f"[... {capture.omitted} bytes omitted ...]\n")
        assert text.startswith(first.removesuffix("\n"))
        assert text.endswith(last)
        assert capture.omitted <= len(text.encode()) - head - tail + 6


@given(st.binary(max_size=20), st.binary(max_size=20), st.integers(1, 1000))
def test_bytes_after_a_known_gap_are_the_tail(before: bytes, after: bytes, lost: int) -> None:
    capture = OutputCapture(100, 100)
    capture.add(before)
    capture.skip(lost)
    capture.add(after)
    before, after = before[: len(before) - utf8.incomplete_end(before)], after[utf8.incomplete_start(after) :]
    assert capture.omitted == capture.written_bytes - len(before) - len(after)
    assert capture.content().startswith(before)
    assert capture.content().endswith(b"omitted ...]\n" + after)


def test_tail_before_a_second_gap_counts_as_omitted() -> None:
    capture = OutputCapture(2, 10)
    capture.add(b"ab" + b"cdef")
    capture.skip(5)
    capture.add(b"xyz")
    assert capture.omitted == 9
    assert capture.content() == b"ab\n[... 9 bytes omitted ...]\nxyz"


def test_memory_is_bounded_for_any_amount_of_output() -> None:
    capture = OutputCapture(1000, 1000)
    for _ in range(10000):
        capture.add(b"x")
    assert len(capture.content()) < 2100
    capture.add(b"y" * 1_000_000)
    assert capture.omitted == 10000 + 1_000_000 - 2000
    assert capture.content().endswith(b"y" * 1000)


def test_logged_text_is_shortened_in_the_middle_only_if_it_is_too_long() -> None:
    assert shorten("é" * (MAX_LOGGED_BYTES // 2)) == "é" * (MAX_LOGGED_BYTES // 2)
    short = shorten("a" * MAX_LOGGED_BYTES + "b" * MAX_LOGGED_BYTES)
    half = MAX_LOGGED_BYTES // 2
    assert short == f"{'a' * half}\n[... {MAX_LOGGED_BYTES} bytes omitted ...]\n{'b' * half}"


def test_logged_command_keeps_its_first_arguments_and_the_number_of_the_others() -> None:
    assert shorten_argv(["echo", "x"]) == ("echo", "x")
    kept = shorten_argv(["x" * 1000] * 100)
    assert set(kept[:-1]) == {"x" * 1000}
    assert kept[-1] == f"[... {100 - len(kept) + 1} arguments omitted ...]"
    assert sum(len(argument) for argument in kept) <= MAX_LOGGED_BYTES
    assert shorten_argv(["x" * (2 * MAX_LOGGED_BYTES), "y"])[-1] == "[... 1 arguments omitted ...]"
