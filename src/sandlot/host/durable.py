"""Write files and folders so that they are complete after a loss of power.

A new name in a folder survives a crash only if the folder was synced afterwards (fsync(2)). A file or folder is therefore written under another name,
synced, and renamed; then its parent folder is synced. A reader finds either the whole old content or the whole new content.

All functions block until the disk has written the data. Async code must call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sandlot.host.stage import syscalls
from sandlot.model.errors import ErrorCode, HostError, LimitError, SandlotError


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Create or replace a file as a whole.

    The content is first written to ``.NAME`` in the same folder. A file that an interrupted call left there is replaced.

    Args:
        path: Path of the file. Its folder must exist.
        content: The whole content.
        mode: Permission bits of the file.

    Raises:
        OSError: The file cannot be written. The old file, if there was one, is unchanged.
    """
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
    fsync_folder(path.parent)


def publish_folder(draft: Path, path: Path) -> None:
    """Give a complete folder its final name. The caller must have synced the files in the folder (`fsync_files`).

    Args:
        draft: Path of the complete folder, on the same file system as ``path``.
        path: Final path of the folder, which must not exist yet.

    Raises:
        OSError: The folder cannot be synced or renamed.
    """
    fsync_folder(draft)
    draft.rename(path)
    fsync_folder(path.parent)


def replace_folder(draft: Path, path: Path) -> None:
    """Let a complete folder take the place of another one, in one step: ``path`` always names one of both. ``draft`` then names the replaced folder.

    Args:
        draft: Path of the complete folder, as for :func:`publish_folder`.
        path: Final path of the folder. If it does not exist, the folder is published.

    Raises:
        OSError: The folder cannot be synced or renamed.
    """
    if not path.exists():
        publish_folder(draft, path)
        return
    fsync_folder(draft)
    syscalls.exchange(str(draft), str(path))
    fsync_folder(path.parent)


def fsync_files(folder: Path) -> None:
    """Sync all files of a folder, then the folder itself. The folder must have no subfolders."""
    for file in folder.iterdir():
        fsync_file(file)
    fsync_folder(folder)


def fsync_folder(folder: Path) -> None:
    """Sync the names of the files in a folder, but not the content of the files."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def fsync_file(path: Path) -> None:
    """Sync the content of a file, but not its name in the folder."""
    with _opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_file_system(folder: Path) -> None:
    """Sync the whole file system that contains a folder, for example after many files were written."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        syscalls.sync_file_system(descriptor)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def state_dir_error(message: str, error: OSError) -> SandlotError:
    """Return the error for a file of the state directory that cannot be written: ``node_disk_full`` on a full disk, otherwise ``host_not_ready``."""
    message, hint = f"{message}: {error.strerror or error}.", "Free some space in the state directory (SANDLOT_DATA_DIR)."
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return LimitError(message, code=ErrorCode.NODE_DISK_FULL, hint=hint)
    return HostError(message, code=ErrorCode.HOST_NOT_READY, hint=hint)
