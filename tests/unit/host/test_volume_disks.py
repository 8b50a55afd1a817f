"""Disks of volumes on this machine's kernel: one file system for each file, however often it is mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.host import volume_disks
from sandlot.host.disk_images import loops_below
from sandlot.host.volume_disks import VolumeFiles, attach
from sandlot.model.ports import Attachment
from sandlot.model.specs import MIB

SIZE = 16 * MIB
ONE, OTHER = "vol-aaaa-aaaaaaaaaaaaaaaa", "vol-aaaa-bbbbbbbbbbbbbbbb"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[VolumeFiles]:
    made = VolumeFiles(tmp_path / "volumes")
    yield made
    for each in (ONE, OTHER):
        made.remove(each)
    assert loops_below(tmp_path) == {}
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_new_volume_is_empty_owned_by_the_user_and_of_its_size(files: VolumeFiles) -> None:
    files.make(ONE, SIZE)
    assert (files.ids(), files.used_bytes(ONE)) == (frozenset({ONE}), None)
    image = files.folder / f"{ONE}.img"
    assert (image.stat().st_size, image.stat().st_mode & 0o777) == (files.max_disk_bytes(SIZE), 0o600)
    assert image.stat().st_blocks * 512 < MIB
    place = files.mount(ONE)
    assert (list(place.iterdir()), place.stat().st_uid, place.stat().st_gid) == ([], 1000, 1000)
    room = os.statvfs(place)
    assert SIZE <= room.f_bavail * room.f_frsize < 1.1 * SIZE
    assert room.f_flag & os.ST_NOSUID
    assert room.f_flag & os.ST_NODEV
    (place / "file").write_bytes(bytes(MIB))
    os.sync()
    assert MIB <= (files.used_bytes(ONE) or 0) < 2 * MIB


def test_allocated_volume_keeps_its_space_when_files_are_deleted(files: VolumeFiles) -> None:
    allocated = VolumeFiles(files.folder, allocates=True)
    files.make(OTHER, SIZE)
    allocated.make(ONE, SIZE)
    for volume in (ONE, OTHER):  # the second volume was created as a sparse file
        place, image = allocated.mount(volume), allocated.image(volume)
        assert image.stat().st_blocks * 512 >= image.stat().st_size
        (place / "file").write_bytes(os.urandom(MIB))
        os.sync()
        (place / "file").unlink()
        os.sync()
        assert image.stat().st_blocks * 512 >= image.stat().st_size


def test_remount_gives_the_same_file_system_even_after_a_killed_service(files: VolumeFiles) -> None:
    files.make(ONE, SIZE)
    place = files.mount(ONE)
    (place / "file").write_text("kept", encoding="utf-8")
    assert files.mount(ONE) == VolumeFiles(files.folder).mount(ONE) == place
    assert len(loops_below(files.folder)) == 1
    held = os.open(place, os.O_RDONLY)  # as somebody's view of mounts holds it
    os.close(held)
    files.unmount(ONE)
    files.unmount(ONE)
    assert (files.used_bytes(ONE), files.mounts.exists()) == (None, False)
    assert (files.mount(ONE) / "file").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("holds_another", [False, True], ids=["freed", "taken by another file"])
def test_device_that_the_kernel_has_freed_meanwhile_is_not_mounted(
    files: VolumeFiles, monkeypatch: pytest.MonkeyPatch, *, holds_another: bool
) -> None:
    for volume in (ONE, OTHER):
        files.make(volume, SIZE)
        (files.mount(volume) / "volume").write_text(volume, encoding="utf-8")
    (name,) = (name for name, file in loops_below(files.folder).items() if file == files.image(OTHER))
    for volume in (ONE,) if holds_another else (ONE, OTHER):
        files.unmount(volume)
    before = iter([{name: files.image(ONE)}])  # as if the device had been that of the volume when its name was looked up
    monkeypatch.setattr(volume_disks, "loops_below", lambda folder: next(before, None) or loops_below(folder))
    assert (files.mount(ONE) / "volume").read_text(encoding="utf-8") == ONE


def test_failed_creation_or_mount_leaves_no_mount(files: VolumeFiles) -> None:
    files.make(ONE, SIZE)
    with pytest.raises(FileExistsError):
        files.make(ONE, SIZE)
    with pytest.raises(FileNotFoundError):
        files.mount(OTHER)
    (files.folder / f"{OTHER}.img").write_bytes(bytes(SIZE))
    with pytest.raises(OSError, match="mount"):
        files.mount(OTHER)


def test_volume_is_not_attached_to_a_process_that_has_ended(files: VolumeFiles) -> None:
    files.make(ONE, SIZE)
    source = files.mount(ONE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    process = os.pidfd_open(child)
    os.waitpid(child, 0)
    try:
        with pytest.raises(OSError, match="setns"):
            attach(process, "/nowhere", Attachment(0, "/data", tree=source))
    finally:
        os.close(process)
