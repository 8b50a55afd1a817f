"""The ``file.*`` calls: read, write, list, stat, mkdir, move and remove, with the permissions of the user that the call names.

Invariants:
- Every path is opened with the effective ids of the call's user (``as_file_user``), so a link gives no access that the user does not have.
- Only regular files are read and written. A FIFO or a device is refused, and the attempt to open such a file never blocks.
- An upload is written to a temporary file in the target's folder, and renamed when the content is complete. An incomplete upload
  leaves the old file unchanged. An upload that appends, or that replaces the content of an existing file in place, writes to the target directly.
  A file with several hard links is always written in place, so that all its names keep one content.
- Long work is done in steps, so that a huge folder or a deep tree does not block the guest.
"""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import describe, give_folder, make_folders, open_regular, path_error, resolve_path, stat_path
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


def _owner(call: Call) -> Account | None:
    return None if call.args["owner"] is None else lookup_account(call.args["owner"])


class FileService:
    """Handlers of the ``file.*`` calls.

    Args:
        loop: The guest's loop.
        rpc: Server of the calls. When an upload is interrupted, the server forgets the call, so that a repeated call uploads the file again.
    """

    __slots__ = ("_loop", "_rpc")

    def __init__(self, loop: Loop, rpc: RpcServer) -> None:
        self._loop = loop
        self._rpc = rpc

    def read(self, call: Call) -> None:
        """Handle ``file.read``: send the file's record as the event ``stat``, then the content or the requested part of it."""
        path = _require_absolute(call.args["path"])
        if call.args["offset"] < 0 or (call.args["length"] or 0) < 0:
            shown = f"`offset` is {call.args['offset']} and `length` is {call.args['length']}; neither may be negative."
            raise RpcError("invalid_request", shown, "Pass `offset` and `length` in bytes, each 0 or more.")
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
        """Handle ``file.write``: write bytes from the host to a file."""
        Upload(self._rpc, call, _require_absolute(call.args["path"]), lookup_account(call.args["user"]), _owner(call))

    def stat(self, call: Call) -> None:
        """Handle ``file.stat``: respond with the record of one file."""
        path = _require_absolute(call.args["path"])
        account = lookup_account(call.args["user"])
        call.result(**stat_path(path, account, follow=call.args["follow"], attributes=call.args["attributes"]))

    def resolve(self, call: Call) -> None:
        """Handle ``file.resolve``: respond with the record of the file to which a path leads."""
        path = _require_absolute(call.args["path"])
        call.result(**resolve_path(path, lookup_account(call.args["user"])))

    def find_home(self, call: Call) -> None:
        """Handle ``file.home``: respond with the home directory of a user."""
        call.result(path=lookup_account(call.args["user"]).home.encode("utf-8", "replace").decode())

    def list_entries(self, call: Call) -> None:
        """Handle ``file.list``: respond with one page of a folder's entries, sorted by name."""
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
                        entries.append(describe(inner, os.lstat(inner), call.args["attributes"]))
                    except OSError as error:
                        # ENAMETOOLONG means that the entry exists but its path is too long: report an error instead of omitting the entry.
                        # Any other error means that the entry was removed after the folder was read.
                        if error.errno == errno.ENAMETOOLONG:
                            call.respond(path_error(error, inner))
                            return
            yield
        call.result(entries=entries, more=len(names) > end)

    def mkdir(self, call: Call) -> None:
        """Handle ``file.mkdir``: create a folder, and respond with the folder's record.

        If the argument ``parents`` is True, missing parents are created too, and an existing folder is no error (like mkdir -p). The
        argument ``mode`` applies to the last folder of the path, regardless of the umask (like mkdir -m). Created parents get the
        default mode.
        """
        path = _require_absolute(call.args["path"]).rstrip("/") or "/"
        account = lookup_account(call.args["user"])
        mode, owner = call.args["mode"], _owner(call)
        try:
            with as_file_user(account):
                if call.args["parents"]:
                    make_folders(os.path.dirname(path), owner)
                # Pass the mode to mkdir(2), with a umask of 0. A later chmod(2) would be unsafe, because another program may by then have
                # replaced the folder by a link.
                umask = os.umask(0) if mode is not None else None
                try:
                    os.mkdir(path, 0o777 if mode is None else mode & 0o7777)
                    give_folder(path, owner)
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
        """Handle ``file.move``: rename a file, link or folder within one file system. Respond with the record of the moved entry."""
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
        """Handle ``file.remove``: remove a file, a link (not its target) or a folder. Respond with the number of removed entries."""
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
