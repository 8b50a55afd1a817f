"""Checks of storage: this machine passes them; findings for other machines."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sandlot.host import disk_images
from sandlot.host.checks import storage
from sandlot.host.checks.finding import Finding, load
from sandlot.host.checks.runner import Task, run

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
30 22 0:5 / /var/lib rw,noexec - xfs /dev/sdb rw
31 22 0:6 / /var/lib/san\\040dlot rw - nfs4 server:/x rw
32 22 0:7 / /var/lib rw,nosuid - btrfs /dev/sdc rw
"""


def check(function: str, **keywords: str) -> Finding:
    answer = run([Task("it", f"sandlot.host.checks.storage:{function}", keywords, deadline_s=60.0)])["it"]
    assert answer.value is not None, answer.error
    return load(answer.value[0])


def test_mount_of_a_folder_is_the_innermost_and_latest() -> None:
    assert storage.mount_of(Path("/etc"), MOUNTINFO) == storage.Mount("/", "ext4", frozenset({"rw", "relatime", "discard"}))
    assert storage.mount_of(Path("/var/lib/x"), MOUNTINFO).kind == "btrfs"  # mounted over the one before
    assert storage.mount_of(Path("/var/lib/san dlot"), MOUNTINFO).kind == "nfs4"
    assert storage.mount_of(Path("/var/library"), MOUNTINFO).point == "/"


def test_missing_folder_is_judged_by_its_parent_and_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    found = storage.check_folder("data-dir", folder, 0)
    assert (found.ok, found.facts["exists"]) == (True, False)
    assert not folder.parent.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert "belongs to user 12345" in storage.check_folder("data-dir", folder, 0).detail


def test_path_of_a_file_is_not_a_folder_to_write_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")

    found = storage.check_folder("cache-dir", file, 0)

    assert (found.ok, found.required) == (False, True)
    assert f"{file} is not a folder" in found.detail
    assert "SANDLOT_CACHE_DIR" in found.fix


def test_folder_without_recommended_space_is_reported_but_accepted(tmp_path: Path) -> None:
    found = storage.check_folder("cache-dir", tmp_path, 1 << 60)
    assert (found.ok, found.required) == (False, False)
    assert "recommended" in found.fix


def test_folder_in_memory_is_reported_but_accepted() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = storage.check_folder("cache-dir", Path(folder), 0)
    assert (found.ok, found.required, found.facts["type"]) == (False, False, "tmpfs")
    assert "take memory" in found.fix


def test_folder_on_a_remote_file_system_is_reported_but_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 22 0:6 / {tmp_path} rw - fuse.sshfs server:/x rw\n")
    monkeypatch.setattr(storage, "MOUNTINFO", mountinfo)

    found = storage.check_folder("cache-dir", tmp_path, 0)

    assert (found.ok, found.required, found.facts["type"]) == (False, False, "fuse.sshfs")
    assert "remote file system" in found.fix


def test_full_file_system_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        values = list(real(path))
        values[3] = values[4] = 0  # f_bfree and f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr("sandlot.host.checks.storage.os.statvfs", full)

    found = storage.check_folder("data-dir", tmp_path, 0)

    assert (found.ok, found.required) == (False, True)
    assert "Free some space, or set SANDLOT_DATA_DIR" in found.fix


def test_layers_are_mounted_and_removed(tmp_path: Path) -> None:
    mounts = mount_points()
    (tmp_path / "cache").mkdir()
    found = check("check_layers", data_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    assert found.ok, found.detail
    assert list((tmp_path / "cache").iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]
    assert disk_images.loops_below(tmp_path) == {}
    assert not {point for point in mount_points() - mounts if point.startswith(str(tmp_path))}


def mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()}


def test_check_that_needs_root_reports_that_it_was_not_tried(tmp_path: Path) -> None:
    program = (
        "import os, json; os.setuid(65534); from sandlot.host.checks import storage;"
        f"print(json.dumps(storage.check_loops(data_dir={str(tmp_path)!r}) + storage.check_layers(data_dir='/', cache_dir='/')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count('"ok": null') == 2


@pytest.mark.parametrize(
    "number, file, word",
    [
        (errno.ENOENT, "/dev/loop-control", "modprobe loop"),
        (errno.ENOENT, "/dev/loop7", "devtmpfs"),
        (errno.ENXIO, "/dev/loop7", "devtmpfs"),
        (errno.ENOSPC, None, "Free some space"),
        (errno.EROFS, None, "read-only"),
        (errno.EPERM, "/dev/loop-control", "--privileged"),
    ],
)
def test_each_error_of_loop_devices_has_its_own_fix(number: int, file: str | None, word: str) -> None:
    assert word in storage.loop_fix(OSError(number, os.strerror(number), file))


@pytest.mark.parametrize(
    "why, word",
    [
        ("ids: Invalid argument", "Linux 5.12"),
        ("overlay: Invalid argument", "Linux 5.19"),
        ("disk: No such file or directory: /dev/loop-control", "loop devices"),
        ("disk: mkfs.ext4: No space left on device", "Free some space"),
        ("Operation not permitted: unshare", "Run as root"),
    ],
)
def test_each_layer_that_fails_has_its_own_fix(why: str, word: str) -> None:
    assert word in storage.layers_fix(why)


def test_missing_identity_maps_are_reported_before_the_overlay() -> None:
    """The overlay itself has none (mount_setattr(2))."""
    assert "overlay" not in storage.layers_fix("ids: Invalid argument")
