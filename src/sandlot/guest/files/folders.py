"""Opening a folder, and nothing but a folder: never what a link of that name leads to.

Why not O_DIRECTORY: in gVisor (seen in release 20240729) ``O_DIRECTORY | O_NOFOLLOW`` follows a link at the end of a path, where
Linux refuses it (open(2)). O_NOFOLLOW alone is heeded by both; what was opened is looked at then.
"""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_folder(path: str, dir_fd: int | None = None) -> int:
    """Open a folder.

    Args:
        path: Where; links before its last part are followed.
        dir_fd: The open folder that it is relative to.

    Raises:
        NotADirectoryError: There is something else.
        OSError: It cannot be opened; ELOOP is a link.
    """
    fd = os.open(path, _FLAGS, dir_fd=dir_fd)
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return fd
