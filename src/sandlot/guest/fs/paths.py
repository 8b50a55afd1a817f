"""Paths in the sandbox: opening files with the permissions of a user, records of files, and errors for failed system calls."""

from __future__ import annotations

import errno
import os
import stat

from sandlot.guest.errors import RpcError
from sandlot.guest.process.accounts import as_file_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.process.accounts import Account

_FOLDER_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of open(2) for a folder. O_DIRECTORY is missing because of a defect of gVisor (release 20240729).

In gVisor, ``O_DIRECTORY | O_NOFOLLOW`` follows a link at the end of a path; Linux refuses such a link. With O_NOFOLLOW alone, gVisor and
Linux both refuse such a link. Therefore :func:`open_folder` omits O_DIRECTORY and checks the type of the opened file.
"""

_CODES = {
    errno.ENOENT: ("path_not_found", "{path} does not exist.", "Check the path."),
    errno.ENOTDIR: ("path_not_directory", "A part of {path} is not a folder.", "Check the path."),
    errno.EISDIR: ("path_is_directory", "{path} is a folder.", "Pass the path of a file."),
    errno.EEXIST: ("path_exists", "{path} already exists.", "Choose another name, or allow overwriting."),
    errno.ENOTEMPTY: ("path_not_empty", "{path} is a folder that is not empty.", "Remove the folder recursively."),
    errno.EACCES: ("permission_denied", "The user has no permission for {path}.", "Use user='root', or change the permissions."),
    errno.EPERM: ("permission_denied", "The user has no permission for {path}.", "Use user='root', or change the permissions."),
    errno.EROFS: ("permission_denied", "{path} is on a read-only file system.", "Choose another folder."),
    errno.ELOOP: ("path_link_loop", "{path} contains too many symbolic links.", "Check the links."),
    errno.ENAMETOOLONG: ("path_invalid", "{path} or a name in this path is too long.", "Use at most 255 bytes for a name and 4,095 for a path."),
    errno.ENOSPC: ("disk_full", "The sandbox's disk is full; {path} was not written.", "Remove files, or use a larger disk."),
    errno.EDQUOT: ("disk_full", "The sandbox's disk is full; {path} was not written.", "Remove files, or use a larger disk."),
    errno.ENXIO: ("path_not_regular", "{path} is not a regular file.", "Pass the path of a file."),
    errno.EINVAL: ("invalid_request", "{path} cannot be used for this operation.", "Check the path."),
    errno.EXDEV: ("invalid_request", "{path} is on another file system.", "Copy the file or folder instead."),
    errno.ETXTBSY: ("conflict", "{path} is a running program.", "Remove the file before you write it."),
    errno.EBUSY: ("conflict", "{path} is in use.", "Try another path."),
}


def path_error(error: OSError, path: str) -> RpcError:
    """Return the error to send to the host for a failed system call.

    Args:
        error: Error of the system call. Its ``errno`` selects code, message and hint.
        path: Path to show in the message, cut to 300 characters.
    """
    shown = repr(path[:300])
    code, text, hint = _CODES.get(error.errno or 0, ("invalid_request", "{path}: " + (error.strerror or "failed") + ".", ""))
    return RpcError(code, text.replace("{path}", shown), hint)


def describe(path: str, found: os.stat_result, attributes: str | None = None) -> dict[str, Any]:
    """Return the record of a file (name, kind, size, mode, owner, mtime and more) that the ``file.*`` calls send to the host.

    Args:
        path: Path of the file. If the file is a link, the path is also used to read the target.
        found: Result of stat(2) or lstat(2) for the path.
        attributes: Prefix of the names of extended attributes to include. None includes no attributes.
    """
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
        "attributes": None if attributes is None or kind not in {"file", "directory"} else _attributes(path, attributes),
    }


def _attributes(path: str, prefix: str) -> dict[str, str]:
    """Return the extended attributes whose names begin with a prefix and whose values are UTF-8."""
    found = {}
    try:
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(prefix):
                found[name] = os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        pass  # the file system has no attributes, or the file was removed meanwhile
    return {name: value.decode() for name, value in found.items() if _is_text(value) and _is_text(os.fsencode(name))}


def _is_text(value: bytes) -> bool:
    return value.decode("utf-8", "replace").encode() == value


def stat_path(path: str, account: Account, *, follow: bool, attributes: str | None = None) -> dict[str, Any]:
    """Return the record of a file, looked up with the permissions of a user.

    Args:
        path: Path of the file.
        account: Account whose permissions apply.
        follow: True to follow a link at the end of the path. False to describe the link itself.
        attributes: As for :func:`describe`.

    Raises:
        RpcError: The file does not exist, or the account has no permission for a folder of the path.
    """
    try:
        with as_file_user(account):
            return describe(path, os.stat(path) if follow else os.lstat(path), attributes)
    except OSError as error:
        raise path_error(error, path) from None


def resolve_path(path: str, account: Account) -> dict[str, Any]:
    """Return the record of the file to which a path leads, with the path that contains no links.

    Raises:
        RpcError: The file does not exist, or the account has no permission for a folder of the path.
    """
    try:
        with as_file_user(account):
            real = os.path.realpath(path, strict=True)
            return describe(real, os.stat(real))
    except OSError as error:
        raise path_error(error, path) from None


def open_regular(path: str, flags: int, account: Account, mode: int = 0o644) -> int:
    """Open a regular file with the permissions of a user, and return its descriptor.

    Other kinds of files are refused. Opening never blocks, even if the path leads to a FIFO or a device.

    Args:
        path: Path of the file.
        flags: Access mode and further flags of open(2).
        account: Account whose permissions apply.
        mode: Permission bits of a file that is created.

    Raises:
        RpcError: The file cannot be opened, or is not a regular file.
    """
    try:
        with as_file_user(account):
            fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        raise path_error(error, path) from None
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        if stat.S_ISDIR(kind):
            raise path_error(OSError(errno.EISDIR, "folder"), path)
        raise path_error(OSError(errno.ENXIO, "special file"), path)
    return fd


def make_folders(path: str, owner: Account | None = None) -> None:
    """Create a folder and its missing parents, like mkdir -p. An existing folder is no error.

    Args:
        path: Path of the folder.
        owner: Owner of the created folders. None: the user that creates them.

    Raises:
        NotADirectoryError: The path, or a part of the path, leads to something other than a folder.
        OSError: A folder cannot be created.
    """
    missing = []
    if owner is not None:
        above = path
        while above and not os.path.lexists(above):
            missing.append(above)
            above = os.path.dirname(above)
    try:
        os.makedirs(path, 0o755, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    for made in missing:
        give_folder(made, owner)


def give_folder(path: str, owner: Account | None) -> None:
    """Change the owner of a folder. Does nothing if ``owner`` is None."""
    if owner is not None:
        fd = open_folder(path)  # a program may have replaced the folder by a link
        try:
            os.fchown(fd, owner.uid, owner.gid)
        finally:
            os.close(fd)


def open_folder(path: str, dir_fd: int | None = None) -> int:
    """Open a folder for reading, and return its descriptor. A link as the last part of the path is refused; other links are followed.

    Args:
        path: Path of the folder.
        dir_fd: Descriptor of the folder that a relative path starts from. None starts from the working directory.

    Raises:
        NotADirectoryError: The path leads to something other than a folder.
        OSError: The folder cannot be opened. The errno ELOOP means that the last part of the path is a link.
    """
    fd = os.open(path, _FOLDER_FLAGS, dir_fd=dir_fd)
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return fd
