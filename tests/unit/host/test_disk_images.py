"""Disk images: created once, stamped often, clean for fsck, found while in use."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from sandlot.host import disk_images
from sandlot.host.stage import syscalls
from sandlot.model.errors import HostError

MIB = 1024 * 1024


@pytest.mark.parametrize("limit", [16 * MIB, 64 * MIB + 1, 5 * 1024 * MIB])
def test_stamped_disk_is_a_clean_file_system_of_the_right_size(tmp_path: Path, limit: int) -> None:
    template = disk_images.make_template(limit, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert template.size_bytes == disk_images.image_bytes(limit)
    assert sum(len(content) for _, content in template.pieces) < MIB
    image = tmp_path / "disk.img"
    disk_images.stamp(template, image, allocated=False)
    assert image.stat().st_size == template.size_bytes
    assert image.stat().st_blocks * 512 < 2 * MIB, "sparse"
    assert image.stat().st_mode & 0o777 == 0o600
    checked = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/sbin"})
    assert checked.returncode == 0, checked.stdout
    described = subprocess.run(["dumpe2fs", "-h", str(image)], capture_output=True, text=True, check=True, env={"PATH": "/usr/sbin:/sbin"}).stdout
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in described.splitlines())}
    assert "has_journal" not in facts["Filesystem features"]
    assert facts["Reserved block count"] == "0"
    assert int(facts["Free blocks"]) * int(facts["Block size"]) >= limit
    with pytest.raises(FileExistsError):
        disk_images.stamp(template, image, allocated=False)


def test_allocated_disk_has_its_space_and_little_data(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    disk_images.stamp(disk_images.make_template(16 * MIB, tmp_path), image, allocated=True)
    assert image.stat().st_blocks * 512 >= image.stat().st_size
    assert disk_images.written_bytes(image) < MIB
    checked = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/sbin"})
    assert checked.returncode == 0, checked.stdout


def test_disk_stays_sparse_where_the_file_system_cannot_allocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _size_bytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(syscalls, "fallocate", refuse)
    image = tmp_path / "disk.img"
    disk_images.stamp(disk_images.make_template(16 * MIB, tmp_path), image, allocated=True)
    assert image.stat().st_blocks * 512 < MIB


def test_allocation_without_room_is_an_error(small_disk: Path) -> None:
    template = disk_images.make_template(64 * MIB, small_disk)
    with pytest.raises(OSError, match="No space left"):
        disk_images.stamp(template, small_disk / "disk.img", allocated=True)


def test_written_part_of_a_disk_is_counted(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(8 * MIB)
        os.posix_fallocate(file.fileno(), 0, 8 * MIB)
        file.write(b"x" * MIB)
        file.seek(4 * MIB)
        file.write(b"x" * MIB)
        file.flush()
        os.fsync(file.fileno())
    assert disk_images.written_bytes(image) == 2 * MIB


def test_failure_of_mkfs_raises_a_host_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"mkfs\.ext4 failed"):
        disk_images.make_template(-disk_images.OVERHEAD_BYTES + 4096, tmp_path)


def test_loop_device_is_found_by_its_file_and_freed(tmp_path: Path) -> None:
    image = tmp_path / "sandboxes" / "x" / "disk.img"
    image.parent.mkdir(parents=True)
    disk_images.stamp(disk_images.make_template(16 * MIB, tmp_path), image, allocated=False)
    assert disk_images.loops_below(tmp_path) == {}
    device = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=True).stdout.strip()
    name = device.removeprefix("/dev/")
    try:
        assert disk_images.loops_below(tmp_path) == {name: image}
        assert disk_images.loops_below(tmp_path / "sandboxes" / "y") == {}
        image.unlink()
        assert disk_images.loops_below(tmp_path) == {name: image}, "also when the file is gone"
    finally:
        disk_images.detach_loop(name)
    assert disk_images.loops_below(tmp_path) == {}
    disk_images.detach_loop("loop-that-is-not")


def test_device_that_disappears_meanwhile_is_ignored(tmp_path: Path) -> None:
    for name, text in {"loop0": "/a/b.img\n", "loop1": None, "loop2": "/data/x y/disk.img (deleted)\n", "sda": "/data/z"}.items():
        (tmp_path / name / "loop").mkdir(parents=True)
        if text is not None:
            (tmp_path / name / "loop" / "backing_file").write_text(text)
    assert disk_images.loops_below(Path("/data"), tmp_path) == {"loop2": Path("/data/x y/disk.img")}
