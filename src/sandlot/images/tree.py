"""Operations on trees of files: digests, copies by hard links, and normalized times.

The functions run as root. None of them follows a symbolic link inside a tree.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """Digest and size of a tree of files.

    Args:
        digest: SHA-256, in hexadecimal, of every path with its type, mode, owner, time and content.
        files: Number of files, folders and other entries.
        size_bytes: Total size of all regular files. The size of a file with several hard links is added once.
    """

    digest: str
    files: int
    size_bytes: int


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path and the lstat result of every entry below a folder, in a fixed order. Folders precede their content."""
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


def summarize(root: Path) -> TreeSummary:
    """Read all files of a tree. Return the digest and size of the tree."""
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
        # Only times of files are part of the digest: the time of a folder changes with every new entry, and the time of a link has no effect.
        when = int(status.st_mtime) if stat.S_ISREG(status.st_mode) else 0
        total.update(b"%s\0%o %d %d %d %d\0" % (os.fsencode(path), status.st_mode, status.st_uid, status.st_gid, when, len(content)) + content)
    return TreeSummary(total.hexdigest(), files, size)


def link_tree(source: Path, target: Path) -> int:
    """Copy a tree: create new folders that contain hard links to the same files. Return the number of copied entries.

    Args:
        source: Folder with the tree to copy.
        target: Folder for the copy, on the same file system. Created if it does not exist.
    """
    if not target.exists():
        _make_folder_like(source.lstat(), target)
    folders = []
    count = 0
    for path, status in walk(source):
        count += 1
        if stat.S_ISDIR(status.st_mode):
            _make_folder_like(status, target / path)
            folders.append((target / path, status))
        else:
            os.link(source / path, target / path, follow_symlinks=False)
    # Times of folders are set last, because every new entry changes the time of its folder.
    for folder, status in folders:
        os.utime(folder, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return count


def share_unchanged(original: Path, copied: Path) -> int:
    """Replace unchanged files of a copied tree with hard links to the original files, and return the number of saved bytes.

    An image then takes disk space and page cache only for the files that differ from its parent image.

    Args:
        original: Folder with the original tree.
        copied: Folder with the copy.
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


def normalize_times(root: Path, *, since_s: float, to_s: int) -> None:
    """Set the modification time of all entries that a build created or changed, so that two builds of the same inputs are equal.

    Files of packages keep their times, because byte code contains the time of its source.

    Args:
        root: Folder with the tree.
        since_s: Start of the build, in seconds since the epoch. Entries with an earlier modification time are not changed.
        to_s: New modification time, in seconds since the epoch.
    """
    for path, status in walk(root):
        if status.st_mtime >= since_s:
            os.utime(root / path, (to_s, to_s), follow_symlinks=False)


def _make_folder_like(status: os.stat_result, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, status.st_uid, status.st_gid)
    folder.chmod(stat.S_IMODE(status.st_mode))
