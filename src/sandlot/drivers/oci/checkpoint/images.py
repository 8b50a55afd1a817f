"""The folder of a snapshot on the disk: begun where the sandbox's own things are, complete by one rename.

Laws:
- What is there under its final name is whole: the manifest is written last, everything is synced before the rename where it is to
  last, and a rename within one file system is done or not done (rename(2)).
- What a killed service leaves half is in the sandbox's folder and goes with it.
- Nobody but root of the host can read any of it: it holds a sandbox's whole memory.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from sandlot.drivers.oci.checkpoint import manifest as manifests
from sandlot.drivers.oci.checkpoint.manifest import Manifest
from sandlot.host.durable import fsync_files, fsync_folder
from sandlot.model.errors import ConflictError, ErrorCode

STATE, MEMORY_INDEX, MEMORY = "checkpoint.img", "pages_meta.img", "pages.img"
"""What runsc writes without compression: its kernel's objects, where which page is, and the pages of memory and files."""

_NO_ROOM_BYTES = 1 << 20
"""Less than the smallest image."""


def begin(image: Path) -> None:
    """An empty folder for images; one that an attempt before left is removed. Blocks."""
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir(mode=0o700)


def discard(image: Path) -> None:
    """Remove what was begun. Blocks."""
    shutil.rmtree(image, ignore_errors=True)


def is_disk_full(image: Path) -> bool:
    """Whether its file system has no room to speak of. Blocks."""
    room = os.statvfs(image)
    return room.f_bavail * room.f_frsize < _NO_ROOM_BYTES


def sizes(image: Path) -> dict[str, int]:
    """The size of each image that was written, in bytes."""
    return {file.name: file.stat().st_size for file in image.iterdir()}


def finish(image: Path, manifest: Manifest, into: Path, *, durable: bool) -> int:
    """Write the manifest and let the folder appear under its name; the bytes that it takes on the disk. Blocks as long as the disk does.

    Args:
        image: The folder with all images.
        manifest: What they are.
        into: The name; must not exist, its parents are made.
        durable: Whether it survives a loss of power from now on.

    Raises:
        ConflictError: The name is taken.
        OSError: The disk is full, or worse.
    """
    (image / manifests.NAME).write_text(manifest.dump(), encoding="utf-8")
    (image / manifests.NAME).chmod(0o600)
    into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_free(into)
    if durable:
        fsync_files(image)
    try:
        image.rename(into)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _carry(image, into, durable=durable)
    if durable:
        fsync_folder(into.parent)
    return sum(file.stat().st_blocks * 512 for file in into.iterdir())


def check_free(into: Path) -> None:
    """See that a name is free.

    Raises:
        ConflictError: It is not.
    """
    if os.path.lexists(into):
        raise ConflictError(f"There is something at {into} already.", code=ErrorCode.CONFLICT)


def _carry(image: Path, into: Path, *, durable: bool) -> None:
    """To another file system: beside the name first."""
    beside = into.with_name(f".{into.name}.new")
    begin(beside)
    try:
        for file in image.iterdir():
            shutil.copyfile(file, beside / file.name)
            (beside / file.name).chmod(0o600)
        if durable:
            fsync_files(beside)
        beside.rename(into)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(image, ignore_errors=True)


def lacks(snapshot: Path, manifest: Manifest) -> str:
    """What of a snapshot is not there as it was written; empty if all is."""
    for name, size in manifest.files.items():
        try:
            there = (snapshot / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if there != size:
            return f"{name} has {there} bytes, and was written with {size}"
    return ""
