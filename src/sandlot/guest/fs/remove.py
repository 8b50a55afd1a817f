"""Removal of a folder tree of any depth: bottom up, without following links and without recursion.

Invariants:
- Only the folder that is being emptied is open, and system calls use names relative to this folder. So the depth of the tree is
  limited neither by the length of a path (4,095 bytes, PATH_MAX) nor by the number of descriptors.
- When a folder was emptied, its parent is opened as ``..``. Device and inode of the opened parent must be those that were read on the
  way down. If they differ, a program has moved the folder during the removal, and the removal fails
  (as in fts(3)).
- One step handles about ``STEP_ENTRIES`` entries, so that the removal does not delay other work of the guest.
"""

from __future__ import annotations

import errno
import os

from sandlot.guest.fs.paths import open_folder
from sandlot.guest.process.accounts import as_file_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from sandlot.guest.process.accounts import Account

STEP_ENTRIES = 100
"""Approximate number of directory entries that one step of a long operation handles."""


def remove_tree(path: str, account: Account) -> Generator[int, None, None]:
    """Remove a folder and everything in it. Yield after each step, so that the caller can do other work.

    Args:
        path: Path of the folder.
        account: Account whose permissions apply.

    Yields:
        Number of entries that the step has removed.

    Raises:
        OSError: An entry cannot be removed, or a program has moved a folder during the removal. Entries that were removed before
            the error are not restored.
    """
    removal = _Removal()
    try:
        with as_file_user(account):
            removal.enter(path)
        while removal.names:
            with as_file_user(account):
                gone = removal.step()
            yield gone
    finally:
        removal.close()


class _Removal:
    """State of the removal of a tree: the open folder, and the folders from the top of the tree down to the open folder.

    Attributes:
        names: Path of the top folder, then the name of each folder from there down to the open folder. Empty when the whole tree was removed.
    """

    __slots__ = ("_fd", "_identities", "_inner", "names")

    def __init__(self) -> None:
        self._fd = -1
        self.names: list[str] = []
        self._identities: list[tuple[int, int]] = []
        self._inner: list[list[str]] = []

    def close(self) -> None:
        """Close the descriptor of the open folder. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def enter(self, name: str) -> None:
        """Close the open folder, and open one of its subfolders. If no folder is open yet, open the top folder of the tree."""
        self._open(name)
        self.names.append(name)
        self._identities.append(self._identity())
        self._inner.append([])

    def step(self) -> int:
        """Visit folders and remove entries, about ``STEP_ENTRIES`` in all, and return the number of entries that were removed."""
        gone = looked = 0
        while self.names and looked < STEP_ENTRIES:
            inner = self._inner[-1]
            if not inner:
                removed = self._empty(inner)
                gone += removed
                looked += removed
            looked += 1
            if inner:
                self.enter(inner.pop())
            elif not self._has_entries():
                self._leave()
                gone += 1
        return gone

    def _empty(self, inner: list[str]) -> int:
        """Remove entries of the open folder that are not folders, and append the names of its subfolders to ``inner``.

        Stop after ``STEP_ENTRIES`` entries. Return the number of entries that were removed.
        """
        gone = 0
        with os.scandir(self._fd) as entries:
            for found in entries:
                if found.is_dir(follow_symlinks=False):
                    inner.append(found.name)
                else:
                    os.unlink(found.name, dir_fd=self._fd)
                    gone += 1
                if gone + len(inner) >= STEP_ENTRIES:
                    break
        return gone

    def _has_entries(self) -> bool:
        with os.scandir(self._fd) as entries:
            return next(entries, None) is not None

    def _leave(self) -> None:
        """Remove the open folder, which is empty, and open its parent."""
        name = self.names.pop()
        self._identities.pop()
        self._inner.pop()
        if not self.names:
            os.rmdir(name)
            return
        self._open("..")
        if self._identity() != self._identities[-1]:
            raise OSError(errno.EBUSY, "a folder was moved during the removal")
        os.rmdir(name, dir_fd=self._fd)

    def _open(self, name: str) -> None:
        opened = open_folder(name, self._fd if self._fd >= 0 else None)
        self.close()
        self._fd = opened

    def _identity(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino
