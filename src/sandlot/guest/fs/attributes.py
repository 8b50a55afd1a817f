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
    folders = {}
    for path, name, value in attributes:
        try:
            status = os.lstat(path)
            folder = os.path.dirname(path)
            while folder not in folders:
                folders[folder] = os.lstat(folder)
                folder = os.path.dirname(folder)
            os.setxattr(path, name, bytes.fromhex(value), follow_symlinks=False)
            if os.lstat(path).st_mode != status.st_mode:  # gVisor's copy of a folder loses the set-group-id bit
                os.chmod(path, stat.S_IMODE(status.st_mode))
        except (OSError, ValueError) as error:
            log(f"the extended attribute {name!r} of {path!r} cannot be set: {error}")
    for folder, status in folders.items():  # a copy of a file changes the time of its folder
        if os.lstat(folder).st_mtime_ns != status.st_mtime_ns:
            os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
