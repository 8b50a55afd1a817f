"""Extended attributes of the files of an image, which the guest sets when it boots.

gVisor's EROFS cannot read files and folders that have extended attributes, so an image lists them in a file. Setting an attribute copies
the file to the disk of the sandbox, so the program that makes images lists no attributes of large files.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.loop import log

FILE = "/.sandlot/attributes.json"
"""JSON: a list of path, name, and value in hexadecimal. Images without extended attributes have no such file."""


def set_attributes(file: str = FILE) -> None:
    """Set the extended attributes that an image lists. An attribute that cannot be set is logged."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    import json  # noqa: PLC0415 - few images need the module

    with os.fdopen(fd, "rb") as text:
        attributes = json.loads(text.read())
    folders: dict[str, os.stat_result] = {}
    for path, name, value in attributes:
        try:
            status = os.lstat(path)
            note_folders(path, folders)
            os.setxattr(path, name, bytes.fromhex(value), follow_symlinks=False)
            if os.lstat(path).st_mode != status.st_mode:  # gVisor's copy of a folder loses the set-group-id bit
                os.chmod(path, stat.S_IMODE(status.st_mode))
        except (OSError, ValueError) as error:
            log(f"the extended attribute {name!r} of {path!r} cannot be set: {error}")
    restore_times(folders)


def note_folders(path: str, folders: dict[str, os.stat_result]) -> None:
    """Add the state of all folders above a path to ``folders``, for :func:`restore_times`."""
    folder = os.path.dirname(path)
    while folder not in folders:
        folders[folder] = os.lstat(folder)
        folder = os.path.dirname(folder)


def restore_times(folders: dict[str, os.stat_result]) -> None:
    """Restore the modification times of folders: a copy of a file to the disk of the sandbox changes the time of its folder.

    A time that cannot be restored, such as on a full disk, is logged.
    """
    for folder, status in folders.items():
        try:
            if os.lstat(folder).st_mtime_ns != status.st_mtime_ns:
                os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
        except OSError as error:
            log(f"the time of {folder!r} cannot be restored: {error}")
