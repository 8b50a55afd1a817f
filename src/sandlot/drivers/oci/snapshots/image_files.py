"""The folder of a snapshot on disk. The folder is written inside the sandbox's folder, and then renamed to its final name.

Invariants:
- A folder that has its final name is complete. The manifest is written last, everything is synced before the rename if the snapshot must be durable,
  and a rename within one file system is atomic (rename(2)).
- If the service is killed while it writes a snapshot, the incomplete snapshot is in the sandbox's folder, and is removed together with this folder.
- Only root of the host can read the files: they contain the whole memory of a sandbox.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from sandlot.drivers.oci.snapshots import manifest as manifests
from sandlot.drivers.oci.snapshots import memory_index
from sandlot.drivers.oci.snapshots.manifest import Manifest
from sandlot.host.durable import fsync_files, fsync_folder
from sandlot.model.errors import ConflictError

STATE, MEMORY_INDEX, MEMORY = "checkpoint.img", "pages_meta.img", "pages.img"
"""Files that runsc writes without compression: the objects of its kernel, the index of pages, and the pages of memory and files."""

_MIN_IMAGE_BYTES = 1 << 20
"""Number of bytes below the size of the smallest snapshot."""


def begin(image: Path) -> None:
    """Create an empty folder for the files of a snapshot. The folder of an earlier attempt is removed first. Blocks."""
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir(mode=0o700)


def discard(image: Path) -> None:
    """Remove the folder of a snapshot, if it exists. Blocks."""
    shutil.rmtree(image, ignore_errors=True)


def is_disk_full(image: Path) -> bool:
    """Return whether the file system of a folder has less free space than the smallest snapshot needs. Blocks."""
    status = os.statvfs(image)
    return status.f_bavail * status.f_frsize < _MIN_IMAGE_BYTES


def sizes(image: Path) -> dict[str, int]:
    """Return the size in bytes of each file in a folder, by file name."""
    return {file.name: file.stat().st_size for file in image.iterdir()}


def restore_bytes(image: Path) -> tuple[int, int]:
    """Return the size of the objects of runsc's kernel in a snapshot, and the memory of the tenant's programs, in bytes. Blocks for a millisecond.

    If the format of the index is not known, the memory contains the files of the sandbox as well. For an incomplete snapshot, both are 0.
    """
    try:
        committed = memory_index.committed_bytes((image / MEMORY_INDEX).read_bytes())
        return (image / STATE).stat().st_size, committed[0] if committed else (image / MEMORY).stat().st_size
    except OSError:
        return 0, 0


def check_memory(image: Path) -> bool:
    """Check that the memory of a snapshot is as long as its index says. Blocks. Return False if the format of the index is not known.

    Raises:
        OSError: A file cannot be read, or the memory is too short or too long.
    """
    try:
        committed = memory_index.committed_bytes((image / MEMORY_INDEX).read_bytes())
    except FileNotFoundError:
        return False
    if committed is None:
        return False
    found, expected = (image / MEMORY).stat().st_size, sum(committed)
    if found != expected:
        raise OSError(errno.EIO, f"the runtime wrote {found} bytes of {MEMORY} instead of {expected}")
    return True


def drop_cache(image: Path) -> None:
    """Drop the page cache of a snapshot whose files are synced. The cache counts against the memory limit of the sandbox. Blocks."""
    for file in image.iterdir():
        with file.open("rb") as content:
            os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def finish(image: Path, manifest: Manifest, into: Path, *, durable: bool) -> int:
    """Write the manifest and give the folder its final name. Blocks as long as the disk needs.

    Args:
        image: Folder with all files of the snapshot except the manifest.
        manifest: Manifest of the snapshot.
        into: Final name, which must not exist. Its parents are created.
        durable: True if the snapshot must survive a loss of power once this function has returned.

    Returns:
        Size of the folder on disk, in bytes.

    Raises:
        ConflictError: ``into`` exists.
        OSError: The disk is full, or a file cannot be written.
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
        _move_across(image, into, durable=durable)
    if durable:
        fsync_folder(into.parent)
    return sum(file.stat().st_blocks * 512 for file in into.iterdir())


def check_free(into: Path) -> None:
    """Check that a path does not exist.

    Raises:
        ConflictError: The path exists.
    """
    if os.path.lexists(into):
        raise ConflictError(f"The folder {into} exists already.")


def _move_across(image: Path, into: Path, *, durable: bool) -> None:
    """Move a folder to another file system: copy its files to a new folder next to the final path, then rename the new folder."""
    draft = into.with_name(f".{into.name}.new")
    begin(draft)
    try:
        for file in image.iterdir():
            shutil.copyfile(file, draft / file.name)
            (draft / file.name).chmod(0o600)
        if durable:
            fsync_files(draft)
        draft.rename(into)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(image, ignore_errors=True)


def find_damage(snapshot: Path, manifest: Manifest) -> str:
    """Compare the file sizes of a snapshot with its manifest. Return a description of the first difference, or an empty text if all sizes match."""
    for name, size in manifest.files.items():
        try:
            found = (snapshot / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    return ""
