"""Removing a whole tree: bottom up, without following links, without recursion, however deep it is.

Laws:
- Names are given relative to the folder that is being emptied, the only one that is held open: no path may be longer than 4,095
  bytes (PATH_MAX), and no process holds as many descriptors as a tree may have levels.
- On the way up ``..`` must lead to where it was come from: somebody may have moved the folder meanwhile (as in fts(3)).
- Every step is short, so that others get their turn.
"""

from __future__ import annotations

import errno
import os

from sandlot.guest.files.folders import open_folder
from sandlot.guest.files.paths import As

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from sandlot.guest.spawn import Account

STEP_ENTRIES = 100
"""Entries that are dealt with before others get their turn."""


def remove_tree(path: str, who: Account) -> Generator[int, None, None]:
    """Remove a folder and all that is in it; gives how many entries went with each step.

    Args:
        path: The folder.
        who: As whom.

    Raises:
        OSError: It cannot be removed, or was moved meanwhile. What went is gone.
    """
    removal = _Removal()
    try:
        with As(who):
            removal.enter(path)
        while removal.names:
            with As(who):
                gone = removal.step()
            yield gone
    finally:
        removal.close()


class _Removal:
    """Where the removal is: the open folder, and the way to it."""

    __slots__ = ("_fd", "_identities", "_inner", "names")

    def __init__(self) -> None:
        self._fd = -1
        self.names: list[str] = []
        self._identities: list[tuple[int, int]] = []
        self._inner: list[list[str]] = []

    def close(self) -> None:
        """Let go of the open folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def enter(self, name: str) -> None:
        """Go down."""
        self._open(name)
        self.names.append(name)
        self._identities.append(self._identity())
        self._inner.append([])

    def step(self) -> int:
        """Some entries; how many went."""
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
            elif not self._left_some():
                self._leave()
                gone += 1
        return gone

    def _empty(self, inner: list[str]) -> int:
        """Remove what is no folder, and note what is one; at most a step's worth."""
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

    def _left_some(self) -> bool:
        with os.scandir(self._fd) as entries:
            return next(entries, None) is not None

    def _leave(self) -> None:
        """Remove the open folder, which is empty, and go up."""
        name = self.names.pop()
        self._identities.pop()
        self._inner.pop()
        if not self.names:
            os.rmdir(name)
            return
        self._open("..")
        if self._identity() != self._identities[-1]:
            raise OSError(errno.EBUSY, "moved")
        os.rmdir(name, dir_fd=self._fd)

    def _open(self, name: str) -> None:
        opened = open_folder(name, self._fd if self._fd >= 0 else None)
        self.close()
        self._fd = opened

    def _identity(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino
