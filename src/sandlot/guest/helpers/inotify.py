"""The kernel's word on what happens in folders: inotify(7), by ctypes, because python has no module for it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED, ISDIR = 0x400, 0x800, 0x2000, 0x4000, 0x8000, 0x40000000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | _ONLYDIR | _DONT_FOLLOW | _EXCL_UNLINK
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Told:
    """One event: of which watch, what, the cookie that joins the two halves of a move, and the name in the folder."""

    __slots__ = ("cookie", "mask", "name", "watch")

    def __init__(self, watch: int, mask: int, cookie: int, name: str) -> None:
        self.watch = watch
        self.mask = mask
        self.cookie = cookie
        self.name = name


class Inotify:
    """A queue of the kernel's.

    Raises:
        OSError: There is none to be had: the kernel has no inotify, or its user has too many.
    """

    __slots__ = ("_libc", "fd")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "no inotify")
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str) -> int:
        """Watch one folder; the watch's number.

        Raises:
            OSError: It is no folder, is gone, or there are too many watches (ENOSPC).
        """
        return self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), WANTED))

    def remove(self, watch: int) -> None:
        """Watch it no more."""
        self._libc.inotify_rm_watch(self.fd, watch)  # it may be gone with its folder

    def read(self) -> Iterator[Told]:
        """What has been told by now."""
        while True:
            try:
                raw = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(raw):
                watch, mask, cookie, size = _HEAD.unpack_from(raw, at)
                at += _HEAD.size
                yield Told(watch, mask, cookie, os.fsdecode(raw[at : at + size].rstrip(b"\0")))
                at += size

    def _checked(self, outcome: int) -> int:
        if outcome < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return outcome
