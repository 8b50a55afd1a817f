"""The copy of the C library that the guest makes when it boots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.guest.fs import c_library
from sandlot.guest.fs.c_library import MAX_BYTES, copy_c_library, read_copies
from sandlot.guest.helpers import overlay


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "lib/libc.so.6"
    path.parent.mkdir()
    path.write_bytes(b"library")
    path.chmod(0o755)
    os.utime(path, ns=(1, 2))
    os.utime(path.parent, ns=(3, 4))
    return path


def test_library_of_an_erofs_image_is_touched_and_looks_the_same(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "_is_of_erofs", lambda _: True)
    (library.parent / "link").symlink_to(library)
    os.utime(library.parent, ns=(3, 4))
    before = library.stat()
    copy_c_library(frozenset({str(library), str(library.parent / "link"), str(library.parent / "missing")}), str(tmp_path / "run/record"))
    after = library.stat()
    assert after.st_ctime_ns > before.st_ctime_ns
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert library.parent.stat().st_mtime_ns == 4


def test_large_file_in_place_of_the_library_is_not_copied(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "_is_of_erofs", lambda _: True)
    os.truncate(library, MAX_BYTES + 1)
    before = library.stat().st_ctime_ns
    copy_c_library(frozenset({str(library)}))
    assert library.stat().st_ctime_ns == before


def test_library_of_a_folder_is_left_alone(library: Path) -> None:
    before = library.stat().st_ctime_ns
    copy_c_library(frozenset({str(library)}))
    assert library.stat().st_ctime_ns == before


def is_packed(library: Path, record: Path, ctime_ns: int | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if an overlay contains a file whose ctime in the image is given."""
    monkeypatch.setattr(overlay, "read_copies", lambda: read_copies(str(record)))
    packer, path = overlay.OverlayPacker(), os.fsencode(library)
    return not packer._is_unchanged(path, library.stat(), ctime_ns)  # noqa: SLF001 - a part of a walk over all files


def test_snapshot_of_files_has_the_library_only_if_a_program_has_changed_it(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "_is_of_erofs", lambda _: True)
    record, image_ns = tmp_path / "run/record", library.stat().st_mtime_ns
    copy_c_library(frozenset({str(library)}), str(record))
    assert not is_packed(library, record, image_ns, monkeypatch), "the copy of the guest"
    assert is_packed(library, record, None, monkeypatch), "a file that the image has not"
    status = library.stat()
    for change in (lambda: library.write_bytes(b"LIBRARY"), lambda: library.chmod(0o555), lambda: library.rename(tmp_path / "old")):
        change()
        if not library.exists():
            library.write_bytes(b"another")
        os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert is_packed(library, record, image_ns, monkeypatch), "with the size and the modification time of the image"


def test_snapshot_of_files_has_the_library_if_the_record_is_gone_or_strange(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    image_ns = library.stat().st_mtime_ns
    assert is_packed(library, record, image_ns, monkeypatch)
    for text in ("nonsense\n", f"x {library}\n", "", "1 /other\n"):
        record.write_text(text)
        assert is_packed(library, record, image_ns, monkeypatch)
    record.unlink()
    os.mkfifo(record)
    assert is_packed(library, record, image_ns, monkeypatch)
    monkeypatch.setattr(c_library, "_is_of_erofs", lambda _: True)
    copy_c_library(frozenset({str(library)}), str(record))
    assert is_packed(library, record, image_ns, monkeypatch), "the copy cannot be recorded"
