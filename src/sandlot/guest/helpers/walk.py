"""Folders below a folder, one at a time, in the order of their names, each opened without following a link.

Laws:
- No link is followed below the root: a folder is opened by its path, and it must be the very one that its parent named (device and
  inode), whatever somebody has put in its place meanwhile.
- One folder is held open at a time, however deep the tree is.
- The order is that of the names, a folder before those in it: two walks of the same tree are the same walk.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.fs.paths import open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = 100_000
"""Of one folder that are looked at; more would be a memory's worth of names."""

Identity = tuple[int, int]


class Folder:
    """One folder of a walk.

    Args:
        inside: Its path below the root, without a slash at either end; the root's own is empty.
        fd: Open while the walk is at it.
    """

    __slots__ = ("_below", "cut", "error", "fd", "inside")

    def __init__(self, inside: str, fd: int) -> None:
        self.inside = inside
        self.fd = fd
        self.cut = False
        """Whether not all of it was seen."""
        self.error: OSError | None = None
        self._below: list[tuple[str, Identity]] = []

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """What is in it: names and what lstat(2) says of them. Folders among them come later in the walk, unless :meth:`leave_out` is asked."""
        names = os.listdir(self.fd)
        if len(names) > NAMES:
            self.cut = True
            return
        names.sort()
        for name in names:
            try:
                found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since the folder was read
            except OSError as error:  # it may be read and not entered (mode r--)
                self.cut, self.error = True, error
                return
            if stat.S_ISDIR(found.st_mode):
                self._below.append((self.path(name), (found.st_dev, found.st_ino)))
            yield name, found

    def path(self, name: str) -> str:
        """The path of an entry below the root."""
        return f"{self.inside}/{name}" if self.inside else name

    def below(self) -> list[tuple[str, Identity]]:
        """The folders that were seen in it, last name first."""
        return self._below[::-1]


def walk(root: str, *, follow: bool = True) -> Iterator[Folder]:
    """Every folder from a root on; each is to be looked through before the next is asked for.

    Args:
        root: Absolute.
        follow: Whether links on the way to it are followed.

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
            yield Unopened(inside, error)
            continue
        folder = Folder(inside, fd)
        try:
            opened = os.fstat(fd)
            if (opened.st_dev, opened.st_ino) != identity:
                continue  # another one has its name by now
            yield folder
            pending += folder.below()
        finally:
            os.close(fd)


class Unopened(Folder):
    """A folder that could not be looked through.

    Args:
        inside: Its path below the root.
        error: Why.
    """

    __slots__ = ()

    def __init__(self, inside: str, error: OSError) -> None:
        super().__init__(inside, -1)
        self.error = error

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Nothing."""
        return iter(())
