"""Folders as values: what is in them as one digest, and copies by hard link.

A tree here was made by Debian's packages and our own builder, as root. Nothing follows a symbolic link inside of it.
"""

from __future__ import annotations

import ctypes
import filecmp
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sum:
    """What a tree holds.

    Args:
        digest: SHA-256 in hexadecimal over every path with its type, mode, owner, time and content.
        files: How many entries.
        size_bytes: Bytes of all regular files, a file of several names counted once.
    """

    digest: str
    files: int
    size_bytes: int


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below a folder, parents first, in one order everywhere: path relative to it, and its lstat."""
    folders = [""]
    while folders:
        folder = folders.pop()
        below = []
        with os.scandir(root / folder) as entries:
            found = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
        for name, status in found:
            path = f"{folder}/{name}" if folder else name
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
        folders.extend(reversed(below))


def summary(root: Path) -> Sum:
    """Read a whole tree."""
    total = hashlib.sha256()
    files = size = 0
    seen: dict[tuple[int, int], bytes] = {}
    for path, status in walk(root):
        files += 1
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(root / path))  # noqa: PTH115 - a Path would normalise the target
        elif stat.S_ISREG(status.st_mode):
            inode = (status.st_dev, status.st_ino)
            if inode not in seen:
                with (root / path).open("rb") as file:
                    seen[inode] = hashlib.file_digest(file, "sha256").digest()
                size += status.st_size
            content = seen[inode]
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            content = str(status.st_rdev).encode()
        # A folder's time changes with whatever is put beside its files and says nothing about them; a link's cannot matter.
        when = int(status.st_mtime) if stat.S_ISREG(status.st_mode) else 0
        total.update(b"%s\0%o %d %d %d %d\0" % (os.fsencode(path), status.st_mode, status.st_uid, status.st_gid, when, len(content)) + content)
    return Sum(total.hexdigest(), files, size)


def link(source: Path, target: Path) -> int:
    """A copy by hard links: new folders, the same files. How many entries.

    Args:
        source: An existing tree.
        target: A folder on the same file system; made where it is missing.
    """
    if not target.exists():
        _folder_like(source.lstat(), target)
    folders = []
    count = 0
    for path, status in walk(source):
        count += 1
        if stat.S_ISDIR(status.st_mode):
            _folder_like(status, target / path)
            folders.append((target / path, status))
        else:
            os.link(source / path, target / path, follow_symlinks=False)
    # Last, because every name made in a folder moves its time.
    for folder, status in folders:
        os.utime(folder, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return count


def share(original: Path, copied: Path) -> int:
    """Give files of a copy that are still what they were the original's inode again; how many bytes that saves.

    So an image costs the disk and the page cache only what it adds to its parent.
    """
    saved = 0
    for path, status in walk(copied):
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            continue
        try:
            other = (original / path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        same = (other.st_mode, other.st_uid, other.st_gid, other.st_size, other.st_mtime_ns) == (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_size,
            status.st_mtime_ns,
        )
        if same and other.st_ino != status.st_ino and filecmp.cmp(original / path, copied / path, shallow=False):
            spare = copied / f"{path}.sandlot-shared"
            os.link(original / path, spare)
            spare.replace(copied / path)
            saved += status.st_size
    return saved


def settle_times(root: Path, *, since_s: float, to_s: int) -> None:
    """Set the time of everything that was made or changed since, so that two builds are alike.

    What came out of packages keeps its own: byte code holds its source's time.
    """
    for path, status in walk(root):
        if status.st_mtime >= since_s:
            os.utime(root / path, (to_s, to_s), follow_symlinks=False)


def sync(folder: Path) -> None:
    """Write everything of a folder's file system to the disk, syncfs(2)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def _folder_like(status: os.stat_result, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, status.st_uid, status.st_gid)
    folder.chmod(stat.S_IMODE(status.st_mode))
