"""Folder of a snapshot: complete or absent, and readable by root only."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from sandlot.drivers.oci.snapshots import image_files, manifest
from sandlot.model.errors import ConflictError
from tests.unit.drivers.oci.snapshots.test_manifest import MANIFEST
from tests.unit.drivers.oci.snapshots.test_memory_index import index


def written(image: Path) -> Path:
    image_files.begin(image)
    for name in (image_files.STATE, image_files.MEMORY_INDEX, image_files.MEMORY):
        (image / name).write_bytes(b"x" * 5000)
    return image


def test_finished_folder_has_its_name_and_manifest(tmp_path: Path) -> None:
    into = tmp_path / "saved" / "one" / "image"
    image = written(tmp_path / "image.new")
    wrote = dataclasses.replace(MANIFEST, files=image_files.sizes(image))
    assert image_files.finish(image, wrote, into, durable=True) == sum(file.stat().st_blocks * 512 for file in into.iterdir()) >= 4 * 4096
    assert not image.exists()
    assert manifest.read(into) == wrote
    assert image_files.find_damage(into, wrote) == ""
    assert into.stat().st_mode & 0o777 == into.parent.stat().st_mode & 0o777 == 0o700
    assert (into / manifest.NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("durable", [True, False])
def test_existing_name_is_refused(durable: bool, tmp_path: Path) -> None:  # noqa: FBT001
    into = tmp_path / "image"
    into.mkdir()
    with pytest.raises(ConflictError):
        image_files.finish(written(tmp_path / "image.new"), MANIFEST, into, durable=durable)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("breaks", [False, True])
def test_folder_is_moved_to_another_file_system_as_a_whole_or_not_at_all(breaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    real, into = Path.rename, tmp_path / "far" / "image"

    def rename(self: Path, target: Path) -> Path:
        if self.name == "image.new":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        if breaks:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    image = written(tmp_path / "image.new")
    if breaks:
        with pytest.raises(OSError, match="No space"):
            image_files.finish(image, MANIFEST, into, durable=True)
        assert list(into.parent.iterdir()) == []
        return
    image_files.finish(image, MANIFEST, into, durable=True)
    assert (into / image_files.MEMORY).read_bytes() == b"x" * 5000
    assert [file.name for file in into.parent.iterdir()] == ["image"]
    assert {file.stat().st_mode & 0o777 for file in into.iterdir()} == {0o600}
    assert not image.exists()


def test_missing_or_truncated_file_is_named(tmp_path: Path) -> None:
    image = written(tmp_path / "image")
    wrote = dataclasses.replace(MANIFEST, files=image_files.sizes(image))
    (image / image_files.MEMORY).write_bytes(b"x")
    assert image_files.find_damage(image, wrote) == "pages.img has 1 bytes instead of 5000"
    (image / image_files.MEMORY).unlink()
    assert image_files.find_damage(image, wrote) == "pages.img is missing"


def test_memory_must_be_as_long_as_its_index_says(tmp_path: Path) -> None:
    image = written(tmp_path / "image.new")
    assert not image_files.check_memory(image), "the format of the index is not known"
    (image / image_files.MEMORY_INDEX).write_bytes(index((4096,), (8192,)))
    (image / image_files.MEMORY).write_bytes(bytes(12288))
    assert image_files.check_memory(image)
    for length in (12287, 12289, 0):
        (image / image_files.MEMORY).write_bytes(bytes(length))
        with pytest.raises(OSError, match=f"wrote {length} bytes of pages.img instead of 12288"):
            image_files.check_memory(image)
    (image / image_files.MEMORY_INDEX).unlink()
    assert not image_files.check_memory(image)
