"""What makes a tree a sandbox's: its user, its folders, ``sudo`` - and what of the machine that built it has to go.

Laws:
- Nothing of the host stays: no host name, resolver, apt sources, apt options, credentials, logs or device nodes.
- ``/usr/local`` is ``user``'s, so that pip, uv and npm install there without asking for anything: the one place where every
  python and node of the image looks, whoever runs it.
- Nothing is written through a symbolic link: every path is walked without following one.
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
from sandlot.images.plan import USER_ID
from sandlot.link.payload import GUEST_ROOT, INTERPRETER_ARGV
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import WORKSPACE

HOME = "/home/user"
OUTPUT = "/output"
OWNED = "/usr/local"

SUDO = f'#!/bin/sh\nexec {" ".join(INTERPRETER_ARGV)} {GUEST_ROOT}/helpers/sudo.py "$@"\n'
"""Set-uid bits mean nothing in a gVisor sandbox, so ``sudo`` asks the guest, which runs as root."""

_FOLDERS: Mapping[str, tuple[int, int]] = {
    "/dev": (0o755, 0),
    "/etc": (0o755, 0),
    "/home": (0o755, 0),
    "/proc": (0o755, 0),
    "/root": (0o700, 0),
    "/run": (0o755, 0),
    "/sys": (0o755, 0),
    "/tmp": (0o1777, 0),  # noqa: S108 - inside of the image
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
"""Path -> (mode, owner and group)."""

_SCRATCH = ("/dev", "/tmp")  # noqa: S108 - inside of the image
"""Folders that end up empty."""

_EMPTIED = (*_SCRATCH, "/proc", "/sys", "/run", "/var/tmp", "/var/log", "/var/cache/apt", "/var/lib/apt/lists", "/root/.cache")  # noqa: S108 - the same
"""Folders whose files go; folders in them stay, because packages count on theirs."""

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

_FILES: Mapping[str, str] = {
    "/etc/hostname": "sandbox\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 sandbox\n",
}

_DEVICES: Mapping[str, tuple[int, int]] = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
"""For the build's own commands: major and minor numbers of the kernel's devices.txt."""


def furnish(root: Path, files: Mapping[str, str]) -> None:
    """Give a tree its user, folders, ``sudo`` and a recipe's files. Idempotent.

    Args:
        root: The tree.
        files: Absolute path inside -> text; one that begins with ``#!`` may be run.

    Raises:
        InvalidRequestError: A path leads through something that is no folder.
    """
    for path, (mode, owner) in _FOLDERS.items():
        _folder(root, path, mode, owner)
    _skeleton(root)
    _entry(root, "/etc/passwd", "root", "root:x:0:0:root:/root:/bin/sh", 0o644)
    _entry(root, "/etc/group", "root", "root:x:0:", 0o644)
    shell = "/bin/bash" if os.path.lexists(root / "bin/bash") else "/bin/sh"
    _entry(root, "/etc/passwd", "user", f"user:x:{USER_ID}:{USER_ID}::{HOME}:{shell}", 0o644)
    _entry(root, "/etc/group", "user", f"user:x:{USER_ID}:", 0o644)
    _entry(root, "/etc/shadow", "user", "user:*:19000:0:99999:7:::", 0o640)
    write(root, "/usr/bin/sudo", SUDO, 0o755)
    for path, text in files.items():
        write(root, path, text, 0o755 if text.startswith("#!") else 0o644)


def unsource(root: Path) -> None:
    """Forget where a new tree's Debian packages came from: the machine's mirrors are none of a sandbox's business."""
    for path in _SOURCES:
        with _parent(root, path) as (folder, name):
            if folder is not None:
                _remove_at(folder, name)


def give(root: Path) -> None:
    """Give ``user`` everything below ``/usr/local``, if the tree has one."""
    top = root / OWNED[1:]
    if top.is_symlink() or not top.is_dir():
        return
    for path, status in [("", top.lstat()), *tree.walk(top)]:
        if (status.st_uid, status.st_gid) != (USER_ID, USER_ID):
            os.chown(top / path, USER_ID, USER_ID, follow_symlinks=False)


def clean(root: Path) -> None:
    """Take away what belongs to the machine that built, and what nobody needs any more."""
    for path in _REMOVED:
        with _parent(root, path) as (folder, name):
            if folder is not None:
                _remove_at(folder, name)
    for path in _EMPTIED:
        _empty(root / path[1:])
    for path in _SCRATCH:
        for folder_left in (root / path[1:]).iterdir():
            shutil.rmtree(folder_left)
    for path, text in _FILES.items():
        write(root, path, text, 0o644)
    if (root / "etc/apt").is_dir():
        _folder(root, "/etc/apt/sources.list.d", 0o755, 0)
    root.chmod(0o755)


def devices(root: Path) -> None:
    """Make device nodes for the build's own commands, so that no mount of the host's /dev is needed; :func:`clean` takes them away."""
    for name, (major, minor) in _DEVICES.items():
        path = root / "dev" / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        path.chmod(0o666)
    _folder(root, "/dev/shm", 0o1777, 0)  # noqa: S108 - inside of the image; Python's multiprocessing has its locks there


def write(root: Path, path: str, text: str, mode: int) -> None:
    """Write a file of root's, replacing whatever has the name.

    Raises:
        InvalidRequestError: The path leads through something that is no folder.
    """
    with _parent(root, path, make=True) as (folder, name):
        assert folder is not None  # noqa: S101 - it was made
        _remove_at(folder, name)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)


def _empty(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        for path, status in list(tree.walk(folder)):
            if not stat.S_ISDIR(status.st_mode):
                (folder / path).unlink()


def _skeleton(root: Path) -> None:
    skeleton = root / "etc/skel"
    if not skeleton.is_dir():
        return
    for entry in sorted(skeleton.iterdir()):
        target = root / HOME[1:] / entry.name
        if entry.is_file() and not entry.is_symlink() and not os.path.lexists(target):
            write(root, f"{HOME}/{entry.name}", entry.read_text(encoding="utf-8"), 0o644)
            os.chown(target, USER_ID, USER_ID, follow_symlinks=False)


def _entry(root: Path, path: str, name: str, line: str, mode: int) -> None:
    """Add a line to one of passwd's files, where the name has none."""
    with _parent(root, path) as (folder, file):
        assert folder is not None  # noqa: S101 - /etc was made before
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(descriptor, "r+", encoding="utf-8") as lines:
            text = lines.read()
            if not any(known.startswith(f"{name}:") for known in text.splitlines()):
                lines.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")


def _folder(root: Path, path: str, mode: int, owner: int) -> None:
    with _parent(root, path, make=True) as (folder, name):
        assert folder is not None  # noqa: S101 - it was made
        descriptor = _open_folder(folder, name, path, make=True)
        try:
            os.fchown(descriptor, owner, owner)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


@contextmanager
def _parent(root: Path, path: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
    """The open folder that a path lies in, and its last part; None where that folder is missing."""
    *above, name = path.strip("/").split("/")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            try:
                below = _open_folder(descriptor, part, path, make=make)
            except FileNotFoundError:
                yield None, name
                return
            os.close(descriptor)
            descriptor = below
        yield descriptor, name
    finally:
        os.close(descriptor)


def _open_folder(parent: int, name: str, path: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (NotADirectoryError, OSError) as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise InvalidRequestError(f"{path} in the image leads through {name}, which is no folder.") from None
        raise


def _remove_at(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, dir_fd=folder)
