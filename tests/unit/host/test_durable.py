"""Files and folders that are complete under their name, even after an interrupted write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandlot.host import durable


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """System calls of `durable` in their order: ``fsync NAME`` and ``rename NAME``."""
    made: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        made.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def recorded_rename(self: Path, target: Path) -> Path:
        made.append(f"rename {self.name}")
        return rename(self, target)

    def recorded_replace(self: Path, target: Path) -> Path:
        made.append(f"rename {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    return made


def test_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path: Path, steps: list[str]) -> None:
    file = tmp_path / "pools.json"
    durable.write_file(file, b"first")
    durable.write_file(file, b"second", mode=0o640)
    assert file.read_bytes() == b"second"
    assert file.stat().st_mode & 0o777 == 0o640
    assert steps == ["fsync .pools.json", "rename .pools.json", f"fsync {tmp_path.name}"] * 2


def test_failed_write_keeps_the_old_file_and_the_next_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node"
    durable.write_file(file, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            durable.write_file(file, b"new")
    assert file.read_bytes() == b"old"
    durable.write_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_folder_is_synced_before_it_has_its_name_and_its_parent_after(tmp_path: Path, steps: list[str]) -> None:
    draft = tmp_path / ".draft"
    draft.mkdir()
    (draft / "content").write_bytes(b"content")
    durable.fsync_files(draft)
    durable.publish_folder(draft, tmp_path / "image")
    assert (tmp_path / "image/content").read_bytes() == b"content"
    assert steps == ["fsync content", "fsync .draft", "fsync .draft", "rename .draft", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, "node_disk_full"), (errno.EDQUOT, "node_disk_full"), (errno.EIO, "host_not_ready")])
def test_only_a_full_disk_is_a_lack_of_capacity(number: int, code: str) -> None:
    error = durable.state_dir_error("The limits could not be recorded", OSError(number, os.strerror(number)))
    assert error.code == code
