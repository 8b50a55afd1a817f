"""A walk through all folders below a folder, in the order of their names, without following links.

Invariants:
- No link is followed below the root. A folder is opened by its path. If its device or inode differs from the values that were read when
  the parent was visited, another folder has replaced the folder, and the folder is skipped.
- One folder is open at a time, even in a deep tree.
- A folder is visited before its subfolders, and subfolders are visited in the order of their names. So two walks of one tree have the same order.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.fs.paths import open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 100_000
"""Maximum number of entries of one folder. More names would take too much memory."""

Identity = tuple[int, int]


class Folder:
    """One folder of a walk.

    Args:
        inside: Path relative to the root of the walk, without a slash at either end; empty for the root.
        fd: Descriptor of the folder, open until the caller requests the next folder of the walk.

    Attributes:
        cut: True if some entries were not read, because of an error or because the folder has more than ``MAX_NAMES`` entries.
        error: Error of the system call that has failed; None if no call has failed.
    """

    __slots__ = ("_below", "cut", "error", "fd", "inside")

    def __init__(self, inside: str, fd: int) -> None:
        self.inside = inside
        self.fd = fd
        self.cut = False
        self.error: OSError | None = None
        self._below: list[tuple[str, Identity]] = []

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Return the name and the lstat(2) result of each entry. Subfolders are visited later in the walk."""
        names = os.listdir(self.fd)
        if len(names) > MAX_NAMES:
            self.cut = True
            return
        names.sort()
        for name in names:
            try:
                found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # the entry was removed after its folder was listed
            except OSError as error:  # the folder can be listed but not entered (mode r--)
                self.cut, self.error = True, error
                return
            if stat.S_ISDIR(found.st_mode):
                self._below.append((self.path(name), (found.st_dev, found.st_ino)))
            yield name, found

    def path(self, name: str) -> str:
        """Return the path of an entry, relative to the root."""
        return f"{self.inside}/{name}" if self.inside else name

    def below(self) -> list[tuple[str, Identity]]:
        """Return the subfolders that :meth:`entries` has found, each with its path and its (device, inode), in reverse order of names."""
        return self._below[::-1]


def walk(root: str, *, follow: bool = True) -> Iterator[Folder]:
    """Yield a folder and all folders below it. The caller must read the entries of a folder before it requests the next folder.

    Args:
        root: Absolute path of the folder.
        follow: True to follow links in ``root``.

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
                continue  # the folder was replaced by another folder
            yield folder
            pending += folder.below()
        finally:
            os.close(fd)


class UnreadableFolder(Folder):
    """A folder that could not be opened.

    Args:
        inside: Path relative to the root.
        error: Error of the failed system call.
    """

    __slots__ = ()

    def __init__(self, inside: str, error: OSError) -> None:
        super().__init__(inside, -1)
        self.error = error

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Return no entries."""
        return iter(())
