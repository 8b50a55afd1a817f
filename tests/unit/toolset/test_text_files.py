"""Lines of streamed files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.toolset import text_files
from sandlot.toolset.text_files import Lines, NotTextError, TooFarError, read_lines
from tests.support.cases import cases


class Chunks:
    """Content in chunks; counts the chunks that were read."""

    def __init__(self, content: bytes, size: int) -> None:
        self.chunks = [content[start : start + size] for start in range(0, len(content), size)]
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk


@cases(
    "content, first, limit, chars, lines",
    [
        (b"", 1, 10, 100, Lines("", 0)),
        (b"\n", 1, 10, 100, Lines("", 1)),
        (b"a\nb\nc\n", 1, 10, 100, Lines("a\nb\nc", 3)),
        (b"a\nb\nc", 1, 10, 100, Lines("a\nb\nc", 3)),
        (b"a\nb\nc\n", 2, 1, 100, Lines("b", 1, more=True)),
        (b"a\nb\nc\n", 2, 2, 100, Lines("b\nc", 2)),
        (b"a\nb\nc\n", 3, 1, 100, Lines("c", 1)),
        (b"a\nb\nc\n", 4, 1, 100, Lines("", 0, total_lines=3)),
        (b"a\nb\nc", 4, 1, 100, Lines("", 0, total_lines=3)),
        (b"a\nb\nc", 99, 1, 100, Lines("", 0, total_lines=3)),
        (b"", 2, 1, 100, Lines("", 0, total_lines=0)),
        ("ä\nö\n".encode(), 2, 1, 100, Lines("ö", 1)),
        (b"\xff\n", 1, 1, 100, Lines("\ufffd", 1)),
        (b"aaaa\nbbbb\ncccc\n", 1, 10, 9, Lines("aaaa\nbbbb", 2, more=True)),
        (b"a" * 20 + b"\nb\n", 1, 10, 8, Lines("a" * 8, 1, more=True, is_cut=True)),
    ],
)
async def test_lines_are_the_same_however_the_content_arrives(content: bytes, first: int, limit: int, chars: int, lines: Lines) -> None:
    for size in (1, 2, 3, 1000):
        assert await read_lines(aiter(Chunks(content, size)), first, limit, chars) == lines, size


async def test_no_more_is_read_than_needed() -> None:
    chunks = Chunks(b"line\n" * 100_000, 1000)
    assert (await read_lines(aiter(chunks), 300, 10, 1000)).count == 10
    assert chunks.read == 2


async def test_binary_content_is_refused() -> None:
    with pytest.raises(NotTextError):
        await read_lines(aiter(Chunks(b"\x7fELF\0\0", 3)), 1, 10, 100)


async def test_search_for_a_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_SCANNED_BYTES", 5000)
    chunks = Chunks(b"x" * 100_000, 1000)
    with pytest.raises(TooFarError):
        await read_lines(aiter(chunks), 2, 10, 100)
    assert chunks.read == 6
