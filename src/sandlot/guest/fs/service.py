"""The ``file.*`` calls: read, write, list, stat, mkdir, move and remove, with the permissions of the user that the host names.

Invariants:
- Every path is opened with the effective ids of that user (``as_file_user``), so following a link gives no further access.
- Only regular files are read and written. A FIFO or a device is refused, and opening it never blocks.
- A new file is written beside its target and renamed when its content is complete, so an incomplete transfer leaves the old file.
- Long work is done in steps, so that a huge folder or a deep tree does not block the guest.
"""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import describe, open_regular, path_error, stat_path
from sandlot.guest.fs.remove import STEP_ENTRIES, remove_tree
from sandlot.guest.fs.transfers import Download, Upload
from sandlot.guest.process.accounts import as_file_user, lookup_account
from sandlot.protocol.schema import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from sandlot.guest.loop import Loop
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.rpc import Call, RpcServer


def _require_absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise RpcError("path_invalid", f"The path {path[:300]!r} is not absolute.", "Begin the path with '/'.")
    return path


class FileService:
    """The file calls.

    Args:
        loop: The guest's loop.
        rpc: Forgets an incomplete upload, so that a repeated call starts it again.
    """

    __slots__ = ("_loop", "_rpc")

    def __init__(self, loop: Loop, rpc: RpcServer) -> None:
        self._loop = loop
        self._rpc = rpc

    def read(self, call: Call) -> None:
        """Handle ``file.read``."""
        path = _require_absolute(call.args["path"])
        if call.args["offset"] < 0 or (call.args["length"] or 0) < 0:
            raise RpcError("invalid_request", "The offset or the length is negative.")
        fd = open_regular(path, os.O_RDONLY, lookup_account(call.args["user"]))
        try:
            found = os.fstat(fd)
            if call.args["offset"]:
                os.lseek(fd, call.args["offset"], os.SEEK_SET)
        except OSError as error:
            os.close(fd)
            raise path_error(error, path) from None
        call.event("stat", **describe(path, found))
        Download(call, fd, path)

    def write(self, call: Call) -> None:
        """Handle ``file.write``."""
        Upload(self._rpc, call, _require_absolute(call.args["path"]), lookup_account(call.args["user"]))

    def stat(self, call: Call) -> None:
        """Handle ``file.stat``."""
        path = _require_absolute(call.args["path"])
        call.result(**stat_path(path, lookup_account(call.args["user"]), follow=call.args["follow"]))

    def list_entries(self, call: Call) -> None:
        """Handle ``file.list``: one page of a folder's entries, sorted by name."""
        path = _require_absolute(call.args["path"])
        offset = max(0, call.args["offset"] or 0)
        end = offset + min(max(1, call.args["limit"]), LIMITS["entries"])
        self._loop.add_task(self._list(call, path, lookup_account(call.args["user"]), offset, end))

    def _list(self, call: Call, path: str, account: Account, offset: int, end: int) -> Generator[None, None, None]:
        try:
            with as_file_user(account):
                names = sorted(os.listdir(path))
        except OSError as error:
            call.respond(path_error(error, path))
            return
        entries: list[dict[str, Any]] = []
        for at in range(offset, min(len(names), end), STEP_ENTRIES):
            with as_file_user(account):
                for name in names[at : min(at + STEP_ENTRIES, end)]:
                    inner = os.path.join(path, name)
                    try:
                        entries.append(describe(inner, os.lstat(inner)))
                    except OSError as error:
                        if error.errno == errno.ENAMETOOLONG:  # the entry exists, but its path is too long: do not leave it out silently
                            call.respond(path_error(error, inner))
                            return
                        # Otherwise the entry was removed after the folder was read.
            yield
        call.result(entries=entries, more=len(names) > end)

    def mkdir(self, call: Call) -> None:
        """Handle ``file.mkdir``. With ``parents``, an existing folder is not an error, as with mkdir -p.

        The mode applies to the folder itself, regardless of the umask, as with mkdir -m. Its new parents get the default mode.
        """
        path = _require_absolute(call.args["path"]).rstrip("/") or "/"
        account = lookup_account(call.args["user"])
        mode = call.args["mode"]
        try:
            with as_file_user(account):
                if call.args["parents"]:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                # chmod(2) after mkdir(2) would be unsafe: the path may have become a link of another program.
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
            raise path_error(error, path) from None
        call.result(**stat_path(path, account, follow=True))

    def move(self, call: Call) -> None:
        """Handle ``file.move``: rename(2) within one file system."""
        source, target = _require_absolute(call.args["path"]), _require_absolute(call.args["to"])
        account = lookup_account(call.args["user"])
        try:
            with as_file_user(account):
                os.lstat(source)
                taken = not call.args["overwrite"] and os.path.lexists(target)
                if not taken:
                    os.rename(source, target)
        except OSError as error:
            raise path_error(error, target if error.errno in {errno.EEXIST, errno.ENOTEMPTY} else source) from None
        if taken:
            raise path_error(OSError(errno.EEXIST, "the target exists"), target)
        call.result(**stat_path(target, account, follow=False))

    def remove(self, call: Call) -> None:
        """Handle ``file.remove``: remove a file, a link (not its target) or a folder."""
        path = _require_absolute(call.args["path"])
        self._loop.add_task(self._remove(call, path, lookup_account(call.args["user"]), recursive=call.args["recursive"]))

    def _remove(self, call: Call, path: str, account: Account, *, recursive: bool) -> Generator[None, None, None]:
        removed = 0
        try:
            with as_file_user(account):
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(path)
                    removed = 1
                elif not recursive:
                    os.rmdir(path)
                    removed = 1
            if not removed:
                for count in remove_tree(path, account):
                    removed += count
                    yield
        except OSError as error:
            call.respond(path_error(error, path))
            return
        call.result(removed=removed)
