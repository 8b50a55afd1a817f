"""Access to inotify(7) through ctypes, because Python's standard library has no module for inotify."""

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


class InotifyEvent:
    """One event that inotify reports.

    Attributes:
        watch: Number of the watch that reports the event, as returned by ``Inotify.add``.
        mask: Kind of the event, as bits such as ``CREATE``.
        cookie: Number that is the same in the two events of a move.
        name: Name of the entry in the watched folder.
    """

    __slots__ = ("cookie", "mask", "name", "watch")

    def __init__(self, watch: int, mask: int, cookie: int, name: str) -> None:
        self.watch = watch
        self.mask = mask
        self.cookie = cookie
        self.name = name


class Inotify:
    """One inotify instance: a set of watched folders and a queue of their events.

    Raises:
        OSError: The kernel has no inotify, or the user has too many inotify instances.
    """

    __slots__ = ("_libc", "fd")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "the C library has no inotify functions")
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str) -> int:
        """Watch a folder, and return the number of the watch.

        Raises:
            OSError: The path is not a folder or does not exist, or there are too many watches (ENOSPC).
        """
        return self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), WANTED))

    def remove(self, watch: int) -> None:
        """Stop watching a folder. Does nothing if the watch has already ended, because the folder was removed."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> Iterator[InotifyEvent]:
        """Yield the events that are in the queue now, without waiting for more."""
        while True:
            try:
                raw = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(raw):
                watch, mask, cookie, size = _HEAD.unpack_from(raw, at)
                at += _HEAD.size
                yield InotifyEvent(watch, mask, cookie, os.fsdecode(raw[at : at + size].rstrip(b"\0")))
                at += size

    def _checked(self, outcome: int) -> int:
        if outcome < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return outcome
