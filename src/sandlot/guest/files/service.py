"""Files: read, write, list, stat, mkdir, move, remove, as the user that the host names.

Laws:
- Every path is opened with the file-system identity of that user (seteuid(2)), so a link that somebody planted leads
  nowhere that the user could not go by hand. The window is a few system calls long and nothing else runs in it; signals
  are decided by the real and saved uid, which stay 0.
- Only regular files are read and written; a FIFO or a device is refused, and opening one never blocks.
- A file is written beside its target and renamed at the end of the body: a transfer that breaks leaves the old file.
- Long work yields, so that a huge folder or a tree to remove never stops the guest.
"""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.calls import Refusal
from sandlot.guest.files.paths import As, entry, open_regular, refusal, stat_as
from sandlot.guest.files.removal import STEP_ENTRIES, remove_tree
from sandlot.guest.files.transfers import Download, Upload
from sandlot.guest.spawn import account
from sandlot.protocol.schema import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from sandlot.guest.calls import Call
    from sandlot.guest.main import Guest
    from sandlot.guest.spawn import Account


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise Refusal("path_invalid", f"The path {path[:300]!r} is not absolute.", "Start it with '/'.")
    return path


class Files:
    """The file calls."""

    __slots__ = ("_guest",)

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        guest.calls.handlers.update(
            {
                "file.read": self.read,
                "file.write": self.write,
                "file.stat": self.stat,
                "file.list": self.list_entries,
                "file.mkdir": self.mkdir,
                "file.move": self.move,
                "file.remove": self.remove,
            }
        )

    def read(self, call: Call) -> None:
        """``file.read``."""
        path = _absolute(call.args["path"])
        if call.args["offset"] < 0 or (call.args["length"] or 0) < 0:
            raise Refusal("invalid_request", "Offset and length are not negative.")
        fd = open_regular(path, os.O_RDONLY, account(call.args["user"]))
        try:
            found = os.fstat(fd)
            if call.args["offset"]:
                os.lseek(fd, call.args["offset"], os.SEEK_SET)
        except OSError as error:
            os.close(fd)
            raise refusal(error, path) from None
        call.event("stat", **entry(path, found))
        Download(call, fd, path)

    def write(self, call: Call) -> None:
        """``file.write``."""
        Upload(self._guest, call, _absolute(call.args["path"]), account(call.args["user"]))

    def stat(self, call: Call) -> None:
        """``file.stat``."""
        path = _absolute(call.args["path"])
        call.result(**stat_as(path, account(call.args["user"]), follow=call.args["follow"]))

    def list_entries(self, call: Call) -> None:
        """``file.list``: the entries of one folder by name, a page from an offset."""
        path = _absolute(call.args["path"])
        offset = max(0, call.args["offset"] or 0)
        end = offset + min(max(1, call.args["limit"]), LIMITS["entries"])
        self._guest.loop.task(self._list(call, path, account(call.args["user"]), offset, end))

    def _list(self, call: Call, path: str, who: Account, offset: int, end: int) -> Generator[None, None, None]:
        try:
            with As(who):
                names = sorted(os.listdir(path))
        except OSError as error:
            call.answer(refusal(error, path))
            return
        entries: list[dict[str, Any]] = []
        for at in range(offset, min(len(names), end), STEP_ENTRIES):
            with As(who):
                for name in names[at : min(at + STEP_ENTRIES, end)]:
                    inner = os.path.join(path, name)
                    try:
                        entries.append(entry(inner, os.lstat(inner)))
                    except OSError as error:
                        if error.errno == errno.ENAMETOOLONG:  # it is there, and no path leads to it: not to be left out silently
                            call.answer(refusal(error, inner))
                            return
                        # Otherwise it is gone since the folder was read.
            yield
        call.result(entries=entries, more=len(names) > end)

    def mkdir(self, call: Call) -> None:
        """``file.mkdir``; with ``parents`` a folder that is there already is no error, as with mkdir -p.

        A mode that is given is what the folder gets, as a file does and as with mkdir -m; those above it leave theirs to the umask.
        """
        path = _absolute(call.args["path"]).rstrip("/") or "/"
        who = account(call.args["user"])
        mode = call.args["mode"]
        try:
            with As(who):
                if call.args["parents"]:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                # Not chmod(2) afterwards: by then the path may be a link that somebody put there.
                umask = os.umask(0) if mode is not None else None
                try:
                    os.mkdir(path, 0o777 if mode is None else mode & 0o7777)
                except FileExistsError:
                    if not call.args["parents"] or not os.path.isdir(path):
                        raise
                finally:
                    if umask is not None:
                        os.umask(umask)
        except OSError as error:
            raise refusal(error, path) from None
        call.result(**stat_as(path, who, follow=True))

    def move(self, call: Call) -> None:
        """``file.move``: rename(2) within the sandbox's file system."""
        source, target = _absolute(call.args["path"]), _absolute(call.args["to"])
        who = account(call.args["user"])
        try:
            with As(who):
                os.lstat(source)
                taken = not call.args["overwrite"] and os.path.lexists(target)
                if not taken:
                    os.rename(source, target)
        except OSError as error:
            raise refusal(error, target if error.errno in {errno.EEXIST, errno.ENOTEMPTY} else source) from None
        if taken:
            raise refusal(OSError(errno.EEXIST, "exists"), target)
        call.result(**stat_as(target, who, follow=False))

    def remove(self, call: Call) -> None:
        """``file.remove``: a file, a link itself, a folder."""
        path = _absolute(call.args["path"])
        self._guest.loop.task(self._remove(call, path, account(call.args["user"]), recursive=call.args["recursive"]))

    def _remove(self, call: Call, path: str, who: Account, *, recursive: bool) -> Generator[None, None, None]:
        removed = 0
        try:
            with As(who):
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(path)
                    removed = 1
                elif not recursive:
                    os.rmdir(path)
                    removed = 1
            if not removed:
                for count in remove_tree(path, who):
                    removed += count
                    yield
        except OSError as error:
            call.answer(refusal(error, path))
            return
        call.result(removed=removed)
