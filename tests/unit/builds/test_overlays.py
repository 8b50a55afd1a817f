"""Files that a sandbox sends: read, checked, and translated to the archive of a layer."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from sandlot.builds import overlays
from sandlot.builds.layer_maker import LayerArchive, _translate
from sandlot.builds.overlays import FILE_END, FileRecord, OverlayReader
from sandlot.model.errors import ConflictError, InvalidRequestError, LimitError
from sandlot.protocol import values

FILE = {"kind": "file", "path": b"/a", "mode": 0o4755, "uid": 1, "gid": 2, "mtime_ns": 3 * 10**9, "size": 5, "attributes": {"user.x": b"\xff"}}


def raw(*items: Any) -> bytes:  # noqa: ANN401 - any value
    """Return an overlay: maps become records, bytes pieces of content, and numbers holes."""
    out = overlays.begin()
    for item in items:
        if isinstance(item, dict):
            encoded = values.encode(item)
            out += len(encoded).to_bytes(4, "big") + encoded
        elif isinstance(item, bytes):
            out += len(item).to_bytes(4, "big") + item
        else:
            out += (1 << 31 | item).to_bytes(4, "big")
    return out + overlays.end(0)


def events(data: bytes, step: int = 10**9, max_bytes: int = 10**6, max_entries: int = 10) -> list[Any]:
    reader = OverlayReader(max_bytes, max_entries)
    found = [event for at in range(0, len(data), step) for event in reader.feed(data[at : at + step])]
    reader.close()
    return found


@pytest.mark.parametrize("step", [1, 7, 10**9])
def test_files_are_read_in_pieces_of_any_size(step: int) -> None:
    found = events(raw(FILE, b"abc", 1, b"d", b"", {"kind": "gone", "path": b"/b"}), step)
    assert found[0] == FileRecord("file", b"/a", 0o4755, 1, 2, 3 * 10**9, 5, attributes={"user.x": b"\xff"})
    assert b"".join(found[1:4]) == b"abc\0d"
    assert found[4:] == [FILE_END, FileRecord("gone", b"/b", mode=0)]


def test_file_has_its_announced_size_whatever_the_sandbox_sends() -> None:
    assert b"".join(each for each in events(raw(FILE, b"ab", b"")) if isinstance(each, bytes)) == b"ab\0\0\0"
    assert b"".join(each for each in events(raw(FILE, b"abcdefgh", 1 << 30, b"x", b"")) if isinstance(each, bytes)) == b"abcde"


@pytest.mark.parametrize(
    "items",
    [
        ({**FILE, "path": b"/a/../b"}, b""),
        ({**FILE, "path": b"a"}, b""),
        ({**FILE, "path": b"/"}, b""),
        ({**FILE, "path": b"/a\0"}, b""),
        ({**FILE, "path": b"//a"}, b""),
        ({**FILE, "path": b"/" + b"x" * 256}, b""),
        ({**FILE, "path": "/a"}, b""),
        ({**FILE, "kind": "device"}, b""),
        ({**FILE, "mode": 1 << 20}, b""),
        ({**FILE, "uid": -1}, b""),
        ({**FILE, "uid": True}, b""),
        ({**FILE, "size": 1 << 60}, b""),
        ({**FILE, "attributes": {"a=b": b""}}, b""),
        ({**FILE, "attributes": {"a\n": b""}}, b""),
        ({**FILE, "attributes": {"user.a": b"x" * 70_000}}, b""),
        ({"kind": "link", "path": b"/a", "target": b"../b"},),
        ({"kind": "symlink", "path": b"/a", "target": b""},),
        ({"kind": "symlink", "path": b"/a", "target": b"a\0"},),
        ({"kind": "overlay", "version": 1},),
        ([],),
    ],
)
def test_invalid_record_ends_the_reading(items: tuple[Any, ...]) -> None:
    with pytest.raises(ConflictError):
        events(raw(*items) if isinstance(items[0], dict) else overlays.begin() + b"\0\0\0\x01\x90")


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", raw(FILE)[:20], raw(FILE, b"abc"), overlays.begin()])
def test_incomplete_overlay_is_refused(data: bytes) -> None:
    with pytest.raises(ConflictError):
        events(data)


def test_size_and_number_of_files_are_limited() -> None:
    with pytest.raises(LimitError):
        events(raw({**FILE, "size": 2 * 10**6}, b""))
    with pytest.raises(LimitError):
        events(raw(*[{"kind": "gone", "path": b"/a"}] * 11))


def test_layer_has_owners_modes_times_attributes_links_and_whiteouts() -> None:
    out = io.BytesIO()
    archive = LayerArchive(out.write)
    data = raw(
        {"kind": "folder", "path": b"/d", "mode": 0o2755, "uid": 3_000_000, "gid": 0, "mtime_ns": 0},
        FILE,
        b"hello",
        b"",
        {"kind": "link", "path": b"/d/l", "target": b"/a"},
        {"kind": "symlink", "path": b"/d/s", "target": b"\xff/x", "mode": 0o777},
        {"kind": "pipe", "path": b"/d/p", "mode": 0o600},
        {**FILE, "path": b"/etc/hostname"},
        b"build",
        b"",
        {"kind": "gone", "path": b"/d/g"},
        {"kind": "gone", "path": b"/h"},
    )
    _translate(OverlayReader(10**6, 100), archive, data)
    archive.end()
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        found = {info.name: info for info in made}
        content = made.extractfile("a")
        assert content is not None
        assert content.read() == b"hello"
    assert list(found) == ["d", "a", "d/l", "d/s", "d/p", "d/.wh.g", ".wh.h"]
    assert (found["d"].uid, found["d"].mode, found["a"].mode, found["a"].uid, found["a"].gid, found["a"].mtime) == (
        3_000_000,
        0o2755,
        0o4755,
        1,
        2,
        3,
    )
    assert found["a"].pax_headers["SCHILY.xattr.user.x"] == "\udcff"
    assert (found["d/l"].linkname, found["d/s"].linkname, found["d/p"].type) == ("a", "\udcff/x", tarfile.FIFOTYPE)


def test_name_of_a_whiteout_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"\.wh\."):
        LayerArchive(io.BytesIO().write).add(FileRecord("file", b"/etc/.wh.passwd"))
