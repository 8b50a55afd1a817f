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
from tests.support.archives import END, archive, entry, raw_head
from tests.support.cases import cases

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


def extended(content: bytes, kind: bytes = b"x") -> bytes:
    """Return an extended header with this content, and a file ``f`` after it."""
    return raw_head(b"h", b"%011o\0" % len(content), kind) + content.ljust(512, b"\0") + raw_head(b"f", b"00000000000\0")


@cases(
    "header,words",
    [
        (raw_head(b"dev", b"0", b"3"), "'dev' is a device"),
        (raw_head(b"fifo", b"0", b"6"), "'fifo' is a pipe"),
        (raw_head(b"holes", b"0", b"S"), "'holes' is a sparse file; pack it without --sparse"),
        (extended(b"22 GNU.sparse.major=1\n"), "'f' is a sparse file"),
        (raw_head(b"odd", b"0", b"?"), "'odd' has an unknown type"),
        (raw_head(b"f", b"0000000000x\0"), "the size of the next entry is invalid"),
        (raw_head(b"f", b"\xff" * 12), "the size of the next entry is invalid"),
        (raw_head(b"f", b"0")[:100] + b"7" + raw_head(b"f", b"0")[101:], "is not a tar archive"),
        (raw_head(b"a", b"0") + b"noise".ljust(512), "damaged after its entry 'a': the checksum of the next entry is invalid"),
        (raw_head(b"h", b"77777777777\0", b"x"), "an extended header that is too large"),
        (extended(b"none"), "the extended header of the next entry is invalid"),
        (extended(b"99 path=a\n"), "the extended header of the next entry is invalid"),
        (extended(b"9 path=ab"), "the extended header of the next entry is invalid"),
        (extended(b"10 size=x\n"), "the size of the next entry is invalid"),
    ],
)
def test_refused_header_is_named(header: bytes, words: str) -> None:
    with pytest.raises(tar.TarError) as raised:
        read(header + END, 700)
    assert words in str(raised.value)


def test_headers_of_other_formats_are_read() -> None:
    signed = bytearray(raw_head(b"\xe4", b"0"))
    signed[148:156] = b"%06o\0 " % (sum(signed[:148]) + sum(signed[156:]) + 8 * 32 - 256)
    raw = (
        raw_head(b"label", b"0", b"V")
        + raw_head(b"folder/", b"0", b"\0", magic=b"")
        + bytes(signed)
        + raw_head(b"big", b"\x80" + bytes(10) + b"\x03")
    )
    found = read(raw + b"abc".ljust(512, b"\0") + END, 700)

    assert [(member.name, member.kind, content) for member, content in found] == [
        ("folder/", tar.FOLDER, b""),
        ("\udce4", tar.FILE, b""),
        ("big", tar.FILE, b"abc"),
    ]


def test_long_names_of_gnu_tar_are_read() -> None:
    raw = archive(entry("n" * 300, tarfile.SYMTYPE, target="t" * 300), form=tarfile.GNU_FORMAT)
    ((member, _),) = read(raw, 700)
    assert (member.name, member.target) == ("n" * 300, "t" * 300)


@pytest.mark.parametrize("name,expected", [("a/b", ["a", "b"]), ("./a//b/", ["a", "b"]), (".", []), ("", []), ("...", ["..."]), ("a..", ["a.."])])
def test_name_is_split_into_parts(name: str, expected: list[str]) -> None:
    assert tar.parts(name) == expected


@pytest.mark.parametrize("target,depth", [("a", 0), ("a/b", 0), ("./a", 0), ("../a", 1), ("../../a/b", 2), ("..", 1), (".", 0)])
def test_link_inside_the_folder_is_kept(target: str, depth: int) -> None:
    assert tar.inner_target(target, depth, "/folder") == target


@pytest.mark.parametrize(
    "target,depth,root,expected",
    [
        ("/folder/a", 0, "/folder", "a"),
        ("/folder/a", 2, "/folder/", "../../a"),
        ("/folder", 0, "/folder", "."),
        ("/folder/", 1, "/folder", "../"),
        ("/folder//a", 0, "/folder", "a"),
        ("/folder///etc", 1, "/folder", "../etc"),
        ("/etc", 1, "/", "../etc"),
    ],
)
def test_absolute_link_inside_the_folder_becomes_relative(target: str, depth: int, root: str, expected: str) -> None:
    assert tar.inner_target(target, depth, root) == expected


@pytest.mark.parametrize(
    "target,depth",
    [
        *(("", 0), ("/a", 3), ("..", 0), ("../../a", 1), ("a/..", 3), ("a/../..", 3), ("../a/..", 3), ("a\0", 0)),
        *(("/folders", 3), ("/folder/..", 3), ("/folder/../a", 3), ("/folder/a/../b", 3), ("//folder/a", 3)),
    ],
)
def test_link_that_may_lead_out_of_the_folder_is_not_kept(target: str, depth: int) -> None:
    assert tar.inner_target(target, depth, "/folder") is None


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
