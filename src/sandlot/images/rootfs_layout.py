"""Complete a root file system for sandboxes: create the user, the folders and ``sudo``, and remove the traces of the build.

Invariants:
- Nothing of the host stays in an image: no host name, resolver, apt sources, apt options, credentials, logs or device nodes.
- ``/usr/local`` belongs to ``user``, so that pip, uv and npm can install packages there. Every Python and Node.js of the image looks for packages in
  ``/usr/local``, whichever user runs it.
- Nothing is written through a symbolic link: every path is opened folder by folder, without following links.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.images import tree
from sandlot.images.command_lines import USER_ID
from sandlot.link.payload import GUEST_ROOT, INTERPRETER_ARGV
from sandlot.model.errors import InvalidRequestError
from sandlot.model.paths import WORKSPACE

HOME = "/home/user"
OUTPUT = "/output"
OWNED = "/usr/local"

SUDO = f'#!/bin/sh\nexec {" ".join(INTERPRETER_ARGV)} {GUEST_ROOT}/helpers/sudo.py "$@"\n'
"""Text of ``/usr/bin/sudo``. It sends the command to the guest, which runs as root: set-uid bits have no effect in a gVisor sandbox."""

FOLDERS: Mapping[str, tuple[int, int]] = {
    "/dev": (0o755, 0),
    "/etc": (0o755, 0),
    "/home": (0o755, 0),
    "/proc": (0o755, 0),
    "/root": (0o700, 0),
    "/run": (0o755, 0),
    "/sys": (0o755, 0),
    "/tmp": (0o1777, 0),  # noqa: S108 - inside the image
    "/usr": (0o755, 0),
    "/usr/bin": (0o755, 0),
    "/var": (0o755, 0),
    "/var/tmp": (0o1777, 0),  # noqa: S108 - the same
    HOME: (0o755, USER_ID),
    f"{HOME}/.local": (0o755, USER_ID),
    f"{HOME}/.local/bin": (0o755, USER_ID),
    WORKSPACE: (0o755, USER_ID),
    OUTPUT: (0o755, USER_ID),
}
"""Folders of every image: mode, and the id of both owner and group, by path."""

_SCRATCH = ("/dev", "/tmp")  # noqa: S108 - inside the image
"""Folders from which all files and subfolders are removed after a build."""

_EMPTIED = (*_SCRATCH, "/proc", "/sys", "/run", "/var/tmp", "/var/log", "/var/cache/apt", "/var/lib/apt/lists", "/root/.cache")  # noqa: S108 - the same
"""Folders from which all files are removed after a build. Subfolders stay, because installed packages expect them."""

_REMOVED = (
    "/.dockerenv",
    "/etc/.pwd.lock",
    "/etc/apt/apt.conf.d/99mmdebstrap",
    "/etc/group-",
    "/etc/gshadow-",
    "/etc/hostname",
    "/etc/machine-id",
    "/etc/passwd-",
    "/etc/resolv.conf",
    "/etc/shadow-",
    "/etc/subgid-",
    "/etc/subuid-",
    "/var/cache/debconf/config.dat-old",
    "/var/cache/debconf/templates.dat-old",
    "/var/cache/ldconfig/aux-cache",
    "/var/lib/dbus/machine-id",
    "/var/lib/dpkg/diversions-old",
    "/var/lib/dpkg/status-old",
    "/var/lib/dpkg/statoverride-old",
)

_SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")

FILES: Mapping[str, str] = {
    "/etc/hostname": "sandbox\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 sandbox\n",
}
"""Files of every image that replace what a build has left: text by path."""

_DEVICES: Mapping[str, tuple[int, int]] = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
"""Major and minor number of each device node in /dev that commands of a build need, by name (the kernel's devices.txt)."""


def apply_layout(root: Path, files: Mapping[str, str]) -> None:
    """Create the user, the folders, ``sudo`` and the files of a recipe in a tree. Idempotent.

    :func:`sandlot.builds.merge_program.layout.apply_layout` does the same in a sandbox for images of users; a change here is needed there, too.

    Args:
        root: Folder that contains the tree.
        files: Text of each file of the recipe, by absolute path inside the tree. Files that begin with ``#!`` become executable.

    Raises:
        InvalidRequestError: A parent of one of the paths is not a folder.
    """
    for path, (mode, owner) in FOLDERS.items():
        _make_folder(root, path, mode, owner)
    _copy_skeleton(root)
    _add_entry(root, "/etc/passwd", "root", "root:x:0:0:root:/root:/bin/sh", 0o644)
    _add_entry(root, "/etc/group", "root", "root:x:0:", 0o644)
    shell = "/bin/bash" if os.path.lexists(root / "bin/bash") else "/bin/sh"
    _add_entry(root, "/etc/passwd", "user", f"user:x:{USER_ID}:{USER_ID}::{HOME}:{shell}", 0o644)
    _add_entry(root, "/etc/group", "user", f"user:x:{USER_ID}:", 0o644)
    _add_entry(root, "/etc/shadow", "user", "user:*:19000:0:99999:7:::", 0o640)
    write_file(root, "/usr/bin/sudo", SUDO, 0o755)
    for path, text in files.items():
        write_file(root, path, text, 0o755 if text.startswith("#!") else 0o644)


def remove_apt_sources(root: Path) -> None:
    """Remove the apt sources from a new tree, because they name the machine's mirrors, which sandboxes must not see."""
    for path in _SOURCES:
        with _open_parent(root, path) as (folder, name):
            if folder is not None:
                _remove_at(folder, name)


def chown_usr_local(root: Path) -> None:
    """Make ``user`` the owner of ``/usr/local`` and everything in it. Do nothing if the tree has no ``/usr/local``."""
    top = root / OWNED[1:]
    if top.is_symlink() or not top.is_dir():
        return
    for path, status in [("", top.lstat()), *tree.walk(top)]:
        if (status.st_uid, status.st_gid) != (USER_ID, USER_ID):
            os.chown(top / path, USER_ID, USER_ID, follow_symlinks=False)


def remove_build_traces(root: Path) -> None:
    """Remove from a tree all files that came from the machine that built it, and the caches and logs of the build."""
    for path in _REMOVED:
        with _open_parent(root, path) as (folder, name):
            if folder is not None:
                _remove_at(folder, name)
    for path in _EMPTIED:
        _remove_files(root / path[1:])
    for path in _SCRATCH:
        for folder_left in (root / path[1:]).iterdir():
            shutil.rmtree(folder_left)
    for path, text in FILES.items():
        write_file(root, path, text, 0o644)
    if (root / "etc/apt").is_dir():
        _make_folder(root, "/etc/apt/sources.list.d", 0o755, 0)
    root.chmod(0o755)


def create_device_nodes(root: Path) -> None:
    """Create device nodes for the commands of a build, so that the host's /dev need not be mounted. :func:`remove_build_traces` removes the nodes."""
    for name, (major, minor) in _DEVICES.items():
        path = root / "dev" / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        path.chmod(0o666)
    _make_folder(root, "/dev/shm", 0o1777, 0)  # noqa: S108 - inside the image; Python's multiprocessing keeps its locks there


def write_file(root: Path, path: str, text: str, mode: int) -> None:
    """Write a file whose owner is the user root, replacing a file or folder at its path.

    Args:
        root: Folder that contains the tree.
        path: Absolute path of the file inside the tree. Missing parent folders are created.
        text: Content of the file.
        mode: Permission bits of the file.

    Raises:
        InvalidRequestError: A parent of the path is not a folder.
    """
    with _open_parent(root, path, create=True) as (folder, name):
        assert folder is not None  # noqa: S101 - it was created
        _remove_at(folder, name)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)


def _remove_files(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        for path, status in list(tree.walk(folder)):
            if not stat.S_ISDIR(status.st_mode):
                (folder / path).unlink()


def _copy_skeleton(root: Path) -> None:
    skeleton = root / "etc/skel"
    if not skeleton.is_dir():
        return
    for entry in sorted(skeleton.iterdir()):
        target = root / HOME[1:] / entry.name
        if entry.is_file() and not entry.is_symlink() and not os.path.lexists(target):
            write_file(root, f"{HOME}/{entry.name}", entry.read_text(encoding="utf-8"), 0o644)
            os.chown(target, USER_ID, USER_ID, follow_symlinks=False)


def _add_entry(root: Path, path: str, name: str, line: str, mode: int) -> None:
    """Add a line to a file such as /etc/passwd, unless the file already has an entry for ``name``."""
    with _open_parent(root, path) as (folder, file):
        assert folder is not None  # noqa: S101 - /etc was created before
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(descriptor, "r+", encoding="utf-8") as lines:
            text = lines.read()
            if not any(known.startswith(f"{name}:") for known in text.splitlines()):
                lines.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")


def _make_folder(root: Path, path: str, mode: int, owner: int) -> None:
    with _open_parent(root, path, create=True) as (folder, name):
        assert folder is not None  # noqa: S101 - it was created
        descriptor = _open_folder(folder, name, path, create=True)
        try:
            os.fchown(descriptor, owner, owner)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


@contextmanager
def _open_parent(root: Path, path: str, *, create: bool = False) -> Iterator[tuple[int | None, str]]:
    """Open the parent folder of a path. Yield the folder's descriptor (None if the folder does not exist) and the last part of the path."""
    *above, name = path.strip("/").split("/")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            try:
                below = _open_folder(descriptor, part, path, create=create)
            except FileNotFoundError:
                yield None, name
                return
            os.close(descriptor)
            descriptor = below
        yield descriptor, name
    finally:
        os.close(descriptor)


def _open_folder(parent: int, name: str, path: str, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (NotADirectoryError, OSError) as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise InvalidRequestError(f"The path {path} cannot be created in the image: {name} is not a folder.") from None
        raise


def _remove_at(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, dir_fd=folder)
