"""Transfers of file contents: downloads to the host and uploads from the host."""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import make_folders, open_regular, path_error, stat_path
from sandlot.guest.process.accounts import as_file_user
from sandlot.protocol.schema import BODY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.rpc import Call, RpcServer

READ_BYTES = 60000
"""Maximum number of bytes that a download reads and sends in one step."""
_IMAGE_FILE = "/.sandlot/guest.zip"
"""A file of the sandbox's image. All unchanged files of the image have its device number."""


class Download:
    """One download: sends the content of a file to the host as fast as the call's stream accepts bytes, then responds.

    Args:
        call: The call ``file.read``.
        fd: Descriptor of the file, positioned at the first byte to send; ownership passes to this object.
        path: Path of the file, for error messages.
    """

    __slots__ = ("_call", "_fd", "_left", "_path", "_sent")

    def __init__(self, call: Call, fd: int, path: str) -> None:
        self._call = call
        self._fd = fd
        self._path = path
        self._left: int | None = call.args["length"]
        self._sent = 0
        call.on_writable = self._pump
        call.on_gone = self._close
        self._pump()

    def _pump(self) -> None:
        while self._fd >= 0:
            room = self._call.room()
            if room <= 0:
                return
            wanted = READ_BYTES if self._left is None else min(READ_BYTES, self._left)
            try:
                piece = os.read(self._fd, wanted) if wanted else b""
            except OSError as error:
                self._close()
                self._call.respond(path_error(error, self._path))
                return
            if not piece:
                self._close()
                self._call.result(bytes=self._sent)
                return
            self._sent += len(piece)
            if self._left is not None:
                self._left -= len(piece)
            self._call.data(BODY, piece)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Upload:
    """One upload: writes bytes from the host to a file, then responds with the file's record.

    Args:
        rpc: Server of the calls, which forgets the call if the upload is aborted.
        call: The call ``file.write``.
        path: Path of the file to write.
        account: Account whose permissions apply.
        owner: Owner of a new file, and of an existing file that is replaced. None: ``account``.

    Raises:
        RpcError: The path is invalid, or the account may not write the file.
    """

    __slots__ = ("_account", "_call", "_fd", "_owner", "_path", "_rpc", "_temporary")

    def __init__(self, rpc: RpcServer, call: Call, path: str, account: Account, owner: Account | None) -> None:
        self._rpc = rpc
        self._call = call
        self._path = path
        self._account = account
        self._owner = owner
        self._temporary = ""
        self._fd = -1
        self._begin()
        call.on_bytes = self._take
        call.on_end = self._finish
        call.on_gone = self._abort

    def _begin(self) -> None:
        folder, _, name = self._path.rpartition("/")
        if not name or name in {".", ".."}:
            raise path_error(OSError(errno.EISDIR, "folder"), self._path)
        mode = self._call.args["mode"]
        try:
            with as_file_user(self._account):
                if self._call.args["parents"] and folder:
                    make_folders(folder, self._owner)
                earlier = self._stat_target()
        except OSError as error:
            raise path_error(error, self._path) from None
        if earlier is not None and (self._call.args["in_place"] or (not self._call.args["append"] and _has_other_names(earlier))):
            self._open_in_place(None if self._call.args["in_place"] else mode)
            return
        if mode is None:
            mode = 0o644 if earlier is None else stat.S_IMODE(earlier.st_mode)
        if self._call.args["append"]:
            self._fd = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, self._account, mode & 0o777)
            return
        # The temporary name does not contain the target's name, which may already have the maximum length of 255 bytes.
        self._temporary = f"{folder}/.{self._call.id}.part"
        try:
            with as_file_user(self._account):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._temporary, flags, 0o600)
                if self._owner is not None:
                    os.fchown(self._fd, self._owner.uid, self._owner.gid)
                os.fchmod(self._fd, mode & 0o7777)
        except OSError as error:
            self._abort()
            raise path_error(error, self._path) from None

    def _open_in_place(self, mode: int | None) -> None:
        """Open the existing file, set its mode unless ``mode`` is None, and truncate it."""
        # Without O_CREAT, which fs.protected_regular refuses for files of others in /tmp.
        self._fd = open_regular(self._path, os.O_WRONLY, self._account)
        try:
            if mode is not None:
                with as_file_user(self._account):
                    os.fchmod(self._fd, mode & 0o7777)
            os.ftruncate(self._fd, 0)
        except OSError as error:
            self._abort()
            raise path_error(error, self._path) from None

    def _stat_target(self) -> os.stat_result | None:
        """Return the stat(2) result of the file that the upload will write or replace; None if the file does not exist.

        If the path is a link, set the path of the upload to the link's target, so that the upload does not replace the link itself.

        Raises:
            OSError: The path does not lead to a regular file, or the account may not write the file.
        """
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            if os.path.islink(self._path):
                self._path = os.path.realpath(self._path)
            return None
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, "the path is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENXIO, "the path is a special file")
        if not os.access(self._path, os.W_OK, effective_ids=True):
            raise OSError(errno.EACCES, "the user may not write the file")
        if os.path.islink(self._path):
            self._path = os.path.realpath(self._path)
        return found

    def _take(self, channel: int, data: bytes, credit: int) -> None:
        if channel == BODY:
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                self._abort()
                self._call.respond(path_error(error, self._path))
                return
        self._call.consumed(credit)

    def _finish(self) -> None:
        try:
            if self._call.args["attributes"] is not None:
                with as_file_user(self._account):
                    _set_attributes(self._fd, self._call.args["attributes"])
            os.close(self._fd)
            self._fd = -1
            if self._temporary:
                with as_file_user(self._account):
                    os.rename(self._temporary, self._path)
                self._temporary = ""
        except OSError as error:
            self._abort()
            self._call.respond(path_error(error, self._path))
            return
        try:
            self._call.result(**stat_path(self._path, self._account, follow=True))
        except RpcError as error:
            self._call.respond(error)

    def _abort(self) -> None:
        """Remove the incomplete temporary file, and forget the call. What was written without a temporary file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary:
            try:
                with as_file_user(self._account):
                    os.unlink(self._temporary)
            except OSError:
                pass
            self._temporary = ""
        self._rpc.abandon(self._call)


def _has_other_names(found: os.stat_result) -> bool:
    """Return True if a file has more than one hard link inside the sandbox.

    The link count of a file of the image includes links outside the sandbox. Such a file is not counted: writing to it makes a copy, which has only
    one name.
    """
    if found.st_nlink == 1:
        return False
    try:
        return found.st_dev != os.stat(_IMAGE_FILE).st_dev
    except FileNotFoundError:
        return True  # the guest runs without an image, in a test


def _set_attributes(fd: int, attributes: dict[str, str]) -> None:
    """Replace the extended attributes of a file whose names begin with ``user.``. Does nothing if the file system has no attributes."""
    try:
        for name in os.listxattr(fd):
            if name.startswith("user.") and name not in attributes:
                os.removexattr(fd, name)
        for name, value in attributes.items():
            os.setxattr(fd, name, value.encode())
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
