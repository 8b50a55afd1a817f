"""Paths as a user sees them: opened with that user's file-system identity, described, and refused with reasons."""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.calls import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.spawn import Account

_CODES = {
    errno.ENOENT: ("path_not_found", "There is no {path}.", "Check the path."),
    errno.ENOTDIR: ("path_invalid", "A part of {path} is not a folder.", "Check the path."),
    errno.EISDIR: ("path_invalid", "{path} is a folder.", "Name a file."),
    errno.EEXIST: ("path_exists", "{path} is there already.", "Choose another name, or allow overwriting."),
    errno.ENOTEMPTY: ("path_exists", "{path} is a folder that is not empty.", "Remove it recursively."),
    errno.EACCES: ("permission_denied", "The user may not do that at {path}.", "Ask for user='root', or change the permissions."),
    errno.EPERM: ("permission_denied", "The user may not do that at {path}.", "Ask for user='root', or change the permissions."),
    errno.EROFS: ("permission_denied", "{path} is on a read-only file system.", "Write elsewhere."),
    errno.ELOOP: ("path_invalid", "{path} goes through too many links.", "Check the links."),
    errno.ENAMETOOLONG: ("path_invalid", "A name in {path} is too long, or the whole of it.", "Names have at most 255 bytes, paths 4,095."),
    errno.ENOSPC: ("disk_full", "The sandbox's disk is full; {path} was not written.", "Remove files, or ask for more disk."),
    errno.EDQUOT: ("disk_full", "The sandbox's disk is full; {path} was not written.", "Remove files, or ask for more disk."),
    errno.ENXIO: ("path_invalid", "{path} is no regular file.", "Name a file."),
    errno.EINVAL: ("path_invalid", "{path} cannot be used that way.", "Check the path."),
    errno.EXDEV: ("path_invalid", "{path} is on another file system.", "Copy it instead."),
    errno.EBUSY: ("conflict", "{path} is in use.", "Try another path."),
}


class As:
    """A few system calls with a user's file-system identity."""

    __slots__ = ("_who",)

    def __init__(self, who: Account) -> None:
        self._who = who

    def __enter__(self) -> None:
        if self._who.uid:
            os.setgroups(self._who.groups)
            os.setegid(self._who.gid)
            os.seteuid(self._who.uid)

    def __exit__(self, *_: object) -> None:
        if self._who.uid:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups([])


def refusal(error: OSError, path: str) -> Refusal:
    """What the host is told of a failed system call."""
    shown = repr(path[:300])
    code, text, hint = _CODES.get(error.errno or 0, ("invalid_request", "{path}: " + (error.strerror or "failed") + ".", ""))
    return Refusal(code, text.replace("{path}", shown), hint)


def entry(path: str, found: os.stat_result) -> dict[str, Any]:
    """The record of one file."""
    kind = "other"
    target = None
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(found.st_mode):
        kind = "symlink"
        try:
            target = os.readlink(path).encode("utf-8", "replace").decode()
        except OSError:
            target = ""
    shown = path.encode("utf-8", "replace").decode()
    return {
        "name": shown.rstrip("/").rpartition("/")[2] or "/",
        "path": shown,
        "kind": kind,
        "size": max(0, found.st_size),
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "modified_ns": max(0, found.st_mtime_ns),
        "target": target,
    }


def stat_as(path: str, who: Account, *, follow: bool) -> dict[str, Any]:
    """The record of one file, as a user may see it."""
    try:
        with As(who):
            return entry(path, os.stat(path) if follow else os.lstat(path))
    except OSError as error:
        raise refusal(error, path) from None


def open_regular(path: str, flags: int, who: Account, mode: int = 0o644) -> int:
    """Open a regular file without ever blocking on it."""
    try:
        with As(who):
            fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        raise refusal(error, path) from None
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        if stat.S_ISDIR(kind):
            raise refusal(OSError(errno.EISDIR, "folder"), path)
        raise Refusal("path_invalid", f"{path[:300]!r} is no regular file.", "Name a file.")
    return fd
