"""The demo's stand-in for a model: it answers what it is told, and its figures are right."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from sandlot.cli.demo.scripted_agent import (
    Outcome,
    Reply,
    expected_results,
    next_reply,
    png_size,
)

FAILED = Outcome("(178, 14) ['alcohol', 'cultivar']", "Traceback (most recent call last):\n  ...\nKeyError: 'class'")


def code_of(reply: Reply) -> str:
    assert reply.code is not None
    return reply.code


def test_it_reads_the_columns_that_it_is_told() -> None:
    assert 'groupby("wine")' in code_of(next_reply([Outcome("(1, 2) ['colour', 'wine']", FAILED.traceback)]))


def test_it_has_no_answer_to_anything_else(subtests: pytest.Subtests) -> None:
    for told in (Outcome("", "NameError: name 'wine' is not defined"), Outcome("['x']", "KeyError: 'class'")):
        with subtests.test(told=told), pytest.raises(ValueError, match=r"NameError|No column"):
            next_reply([FAILED, told])


def test_the_figures_are_those_of_the_textbook(tmp_path: Path) -> None:
    # Three groups around 2, 4 and 9: between = 3*(9+1+16)/2 = 39, within = 6/6 = 1.
    data = tmp_path / "d.csv"
    groups = {"0": (1, 2, 3), "1": (3, 4, 5), "2": (8, 9, 10)}
    data.write_text("flat,sharp,cultivar\n" + "".join(f"{value % 2},{value},{name}\n" for name, values in groups.items() for value in values))
    figures = expected_results(data)
    assert figures["best"] == "sharp"
    assert figures["wines"] == 9
    assert figures["F ratio"] == pytest.approx(39.0)
    assert (figures["mean of cultivar 1"], figures["deviation of cultivar 1"]) == (4.0, 1.0)


def test_a_png_tells_its_size_and_anything_else_is_none() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0)) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert png_size(whole) == (3, 2)
    for broken in (b"", whole[:-6], b"GIF89a" + whole, whole[:8]):
        with pytest.raises(ValueError, match="PNG"):
            png_size(broken)
