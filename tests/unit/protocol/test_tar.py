"""Reading and writing tar archives: round trips, pieces of any size, and hostile input."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.protocol import tar
from tests.support.archives import archive, entry, raw_head

names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=60)
paths = st.lists(names.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=6).map("/".join)


def read(raw: bytes, step: int) -> list[tuple[tar.Member, bytes]]:
    """Return all members and their contents, read in pieces of ``step`` bytes."""
    reader, found = tar.Reader(), list[tuple[tar.Member, bytes]]()
    for at in range(0, len(raw), step):
        for event in reader.feed(raw[at : at + step]):
            if isinstance(event, tar.Member):
                found.append((event, b""))
            elif isinstance(event, memoryview):
                found[-1] = (found[-1][0], found[-1][1] + bytes(event))
    reader.close()
    return found


@settings(max_examples=25)
@given(st.lists(st.tuples(paths, st.binary(max_size=2000)), max_size=4), st.integers(1, 3000))
def test_written_archive_is_read_from_pieces_of_any_size(files: list[tuple[str, bytes]], step: int) -> None:
    raw = b""
    for path, content in files:
        raw += tar.header(tar.Member(path, tar.FILE, size=len(content), mode=0o640, mtime_s=7)) + content + tar.padding(len(content))
    found = read(raw + tar.END, step)
    assert [(member.name, content, member.mode, member.mtime_s) for member, content in found] == [(*file, 0o640, 7) for file in files]


@settings(max_examples=25)
@given(paths, st.integers(0, 1 << 40), st.sampled_from([tar.FILE, tar.FOLDER, tar.SYMLINK]))
def test_tarfile_reads_the_headers(path: str, size: int, kind: str) -> None:
    member = tar.Member(path, kind, size=size if kind == tar.FILE else 0, target="../" + path if kind == tar.SYMLINK else "")
    with tarfile.open(fileobj=io.BytesIO(tar.header(member) + tar.END)) as opened:
        found = opened.next()
    assert found is not None
    assert (found.name, found.size, found.linkname) == (path.rstrip("/"), member.size, member.target)


@settings(max_examples=25)
@given(st.binary(max_size=3000), st.integers(0, 2600), st.integers(1, 1000))
def test_any_bytes_raise_only_tar_errors(noise: bytes, at: int, step: int) -> None:
    raw = archive(entry("a" * 150, content=b"x" * 700), entry("link", tarfile.SYMTYPE, target="b"))
    with suppress(tar.TarError):
        read(raw[:at] + noise + raw[at + len(noise) :], step)


@pytest.mark.parametrize("name,expected", [("a/b", ["a", "b"]), ("./a//b/", ["a", "b"]), (".", []), ("", []), ("...", ["..."]), ("a..", ["a.."])])
def test_name_is_split_into_parts(name: str, expected: list[str]) -> None:
    assert tar.parts(name) == expected


@pytest.mark.parametrize("target,depth", [("a", 0), ("a/b", 0), ("./a", 0), ("../a", 1), ("../../a/b", 2), ("..", 1)])
def test_link_inside_the_folder_is_accepted(target: str, depth: int) -> None:
    tar.check_target(tar.Member("l", tar.SYMLINK, target=target), depth)


@pytest.mark.parametrize("target,depth", [("", 0), ("/a", 3), ("..", 0), ("../../a", 1), ("a/..", 3), ("a/../..", 3), ("../a/..", 3), ("a\0", 0)])
def test_link_out_of_the_folder_is_refused(target: str, depth: int) -> None:
    with pytest.raises(tar.TarError, match="'l'"):
        tar.check_target(tar.Member("l", tar.SYMLINK, target=target), depth)


def test_unused_pax_headers_are_dropped() -> None:
    reader = tar.Reader()
    tracemalloc.start()
    try:
        for kind in (b"g", b"x"):
            for at in (0, 3000):
                said = b"".join(b"12 k%06d=\n" % number for number in range(at, at + 3000))
                assert list(reader.feed(raw_head(b"words", b"%011o" % len(said), kind) + said + tar.padding(len(said)))) == []
            assert tracemalloc.get_traced_memory()[0] < 1 << 17
            assert [event.name for event in reader.feed(tar.header(tar.Member("a", tar.FOLDER))) if isinstance(event, tar.Member)] == ["a/"]
    finally:
        tracemalloc.stop()


def test_sandlot_keyword_among_many_others_is_kept() -> None:
    reader = tar.Reader()
    others = b"".join(b"12 k%06d=\n" % number for number in range(1000))
    list(
        reader.feed(
            raw_head(b"words", b"%011o" % len(others), b"g") + others + tar.padding(len(others)) + tar.message_header("SANDLOT.error", "said")
        )
    )
    assert reader.global_values == {"SANDLOT.error": "said"}
