"""A walk through the folders below a folder, in the order of their names, that follows no link.

Invariants:
- No link is followed below the root. A folder is opened by its path, and is used only if it is the one that its parent named (device and
  inode), whatever was put in its place meanwhile.
- One folder is open at a time, however deep the tree is.
- A folder comes before those in it, in the order of names: two walks of the same tree are the same.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.fs.paths import open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 100_000
"""Entries of one folder; more names would take too much memory."""

Identity = tuple[int, int]


class Folder:
    """One folder of a walk.

    Args:
        inside: Its path below the root, without a slash at either end; empty for the root.
        fd: Its descriptor, open until the next folder is requested.

    Attributes:
        cut: True if some of its entries were not seen.
        error: Why not, if a system call failed.
    """

    __slots__ = ("_below", "cut", "error", "fd", "inside")

    def __init__(self, inside: str, fd: int) -> None:
        self.inside = inside
        self.fd = fd
        self.cut = False
        self.error: OSError | None = None
        self._below: list[tuple[str, Identity]] = []

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Return names and lstat(2) of its entries. Folders among them are visited later in the walk."""
        names = os.listdir(self.fd)
        if len(names) > MAX_NAMES:
            self.cut = True
            return
        names.sort()
        for name in names:
            try:
                found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since the folder was read
            except OSError as error:  # the folder may be read and not entered (mode r--)
                self.cut, self.error = True, error
                return
            if stat.S_ISDIR(found.st_mode):
                self._below.append((self.path(name), (found.st_dev, found.st_ino)))
            yield name, found

    def path(self, name: str) -> str:
        """Return the path of an entry below the root."""
        return f"{self.inside}/{name}" if self.inside else name

    def below(self) -> list[tuple[str, Identity]]:
        """Return the folders that were seen in it, last name first."""
        return self._below[::-1]


def walk(root: str, *, follow: bool = True) -> Iterator[Folder]:
    """Return a folder and all folders below it; the entries of each must be read before the next is requested.

    Args:
        root: Absolute path.
        follow: True if links in that path are followed.

    Raises:
        OSError: The root cannot be opened.
    """
    if follow:
        root = os.path.realpath(root)
    found = os.lstat(root)
    pending: list[tuple[str, Identity]] = [("", (found.st_dev, found.st_ino))]
    while pending:
        inside, identity = pending.pop()
        try:
            fd = open_folder(f"{root}/{inside}" if inside else root)
        except OSError as error:
            if not inside:
                raise
            yield UnreadableFolder(inside, error)
            continue
        folder = Folder(inside, fd)
        try:
            opened = os.fstat(fd)
            if (opened.st_dev, opened.st_ino) != identity:
                continue  # another folder has its name now
            yield folder
            pending += folder.below()
        finally:
            os.close(fd)


class UnreadableFolder(Folder):
    """A folder that could not be opened.

    Args:
        inside: Its path below the root.
        error: The failed system call.
    """

    __slots__ = ()

    def __init__(self, inside: str, error: OSError) -> None:
        super().__init__(inside, -1)
        self.error = error

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Return no entries."""
        return iter(())
