"""Indexes of root filesystem images: look-ups, limits, and indexes that a sandbox has damaged."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host import image_index
from sandlot.host.image_index import DamagedIndexError, read_folder, write_index

FOLDERS = {
    b"/": {b"etc": 2, b"a\xff\n": -5, b"file": 1_735_689_600_123_456_789},
    b"/etc": {b"x" * 255: 3, b"deep": 4},
    b"/etc/deep": {},
}
ROWS = 16


def index_of(folders: dict[bytes, dict[bytes, int]]) -> bytes:
    file = io.BytesIO()
    write_index(file, folders)
    return file.getvalue()


def row_of(folder: bytes) -> int:
    """Return the offset of the row of a folder in the index of ``FOLDERS``."""
    return ROWS + 32 * sorted(image_index._key(path) for path in FOLDERS).index(image_index._key(folder))  # noqa: SLF001


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "index"
    file.write_bytes(index_of(FOLDERS))
    return file


def test_folders_are_found_with_their_entries(index: Path) -> None:
    for path, entries in FOLDERS.items():
        assert read_folder(index, path) == sorted(entries.items())
    for missing in (b"", b"etc", b"/etc/", b"/none", b"/etc/deep/er"):
        assert read_folder(index, missing) is None


def test_every_folder_of_a_large_image_is_found(tmp_path: Path) -> None:
    folders: dict[bytes, dict[bytes, int]] = {b"/%d" % number: {b"%d" % number: number} for number in range(1000)}
    file = tmp_path / "index"
    file.write_bytes(index_of(folders))
    assert all(read_folder(file, path) == list(entries.items()) for path, entries in folders.items())


def test_equal_images_have_equal_indexes() -> None:
    other = {path: dict(reversed(entries.items())) for path, entries in reversed(FOLDERS.items())}
    assert index_of(other) == index_of(FOLDERS)


def test_images_beyond_the_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="0 folders"):
        index_of({})
    monkeypatch.setattr(image_index, "MAX_ENTRIES", 2)
    with pytest.raises(ValueError, match="'/' has 3 entries; at most 2"):
        index_of(FOLDERS)
    monkeypatch.setattr(image_index, "MAX_ENTRIES", 10)
    monkeypatch.setattr(image_index, "MAX_LISTING_BYTES", 100)
    with pytest.raises(ValueError, match="'/etc' has 2 entries"):
        index_of(FOLDERS)
    monkeypatch.setattr(image_index, "MAX_FOLDERS", 2)
    with pytest.raises(ValueError, match="3 folders; at most 2"):
        index_of(FOLDERS)


def put(whole: bytes, offset: int, size: int, value: int) -> bytes:
    """Change a field in the row of ``/etc``."""
    at = row_of(b"/etc") + offset
    return whole[:at] + value.to_bytes(size, "big") + whole[at + size :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty file": lambda _: b"",
    "other format": lambda whole: b"X" + whole[1:],
    "no folders": lambda whole: whole[:8] + (0).to_bytes(8, "big") + whole[16:],
    "too many folders": lambda whole: whole[:8] + (2**64 - 1).to_bytes(8, "big") + whole[16:],
    "cut off in the rows": lambda whole: whole[:20],
    "cut off in a listing": lambda whole: whole[: whole.index(b"\4deep") + 8],
    "offset that overflows": lambda whole: put(whole, 16, 8, 2**64 - 1),
    "offset beyond the file": lambda whole: put(whole, 16, 8, 2**40),
    "listing that is too large": lambda whole: put(whole, 24, 4, 2**32 - 1),
    "other number of entries": lambda whole: put(whole, 28, 4, 1),
    "too many entries": lambda whole: put(whole, 28, 4, 2**32 - 1),
    "slash in a name": lambda whole: whole.replace(b"\4deep", b"\4de/p"),
    "NUL in a name": lambda whole: whole.replace(b"\4deep", b"\4de\0p"),
    "name of the folder itself": lambda whole: whole.replace(b"\4deep", b"\1.eep"),
    "name beyond the listing": lambda whole: whole.replace(b"\4deep", b"\xffdeep"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_index_is_reported(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "index"
    file.write_bytes(damage(index_of(FOLDERS)))
    with pytest.raises(DamagedIndexError):
        read_folder(file, b"/etc")


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    chance, whole, file = random.Random(5), index_of(FOLDERS), tmp_path / "index"
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(bytes(damaged[: chance.randint(0, len(damaged))]) if chance.random() < 0.2 else damaged)
        for path in FOLDERS:
            try:
                read_folder(file, path)
            except DamagedIndexError:
                continue


def test_index_that_is_no_file_does_not_block(tmp_path: Path, index: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedIndexError):
        read_folder(tmp_path / "pipe", b"/")
    (tmp_path / "link").symlink_to(index)
    for path in ("link", "none"):
        with pytest.raises(OSError, match=path):
            read_folder(tmp_path / path, b"/")
