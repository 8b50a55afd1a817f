"""Ranges of user and group ids for sandboxes that have a user namespace, each taken by one sandbox at a time.

A range is taken by a symbolic link whose name is the range's number and whose target is the sandbox's control group. So:

Laws:
- No two sandboxes of this host share an id, whichever service runs them, as long as all services share /run and see the same
  control groups: the folder is the host's, and taking is done under a lock. A service in a container that has a /run or a tree of
  groups of its own knows nothing of the others' ranges, and takes those of the living for stale or free.
- Nothing is lost to a crash: a link whose group is gone is stale and taken over. A sandbox's group is made before its range
  is taken and removed only once all its processes are dead, so that no link of a live one ever looks stale.
- The folder is below /run and empty after a boot, as are the groups.

The numbers: 0x70000000 to 0x7FFDFFFF is the part of the 32-bit ids that systemd's list of ranges ("Users, Groups, UIDs and
GIDs on systemd Systems") leaves unused, below the sign bit and above systemd-nspawn's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sandlot.model.errors import ErrorCode, UnavailableError

FIRST_ID = 0x70000000
IDS = 65536
RANGES = 4094
"""Up to 0x7FFDFFFF."""
FOLDER = Path("/run/sandlot/ids")
_LOCK = "lock"
_RETRY_AFTER_S = 2


class IdRanges:
    """All ranges of this host.

    Args:
        folder: Where it is written down who has which.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def take(self, owner: str, is_live: Callable[[str], bool], start: int = 0) -> int:
        """Take a range; the first id of it. The same owner gets the same range again.

        Args:
            owner: The name of a control group that exists.
            is_live: Whether the group of that name exists.
            start: Where to begin looking. Random, so that a range is not used again at once.

        Raises:
            UnavailableError: All are taken.
            OSError: The folder cannot be written to.
        """
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._locked():
            taken = self._taken()
            for number, other in taken.items():
                if other == owner:
                    return _first_id(number)
            for step in range(RANGES):
                number = (start + step) % RANGES
                link = self._folder / str(number)
                if number in taken:
                    if is_live(taken[number]):
                        continue
                    link.unlink()
                link.symlink_to(owner)
                return _first_id(number)
        raise UnavailableError(
            f"All {RANGES} ranges of user ids are in use.",
            code=ErrorCode.BUSY,
            hint="Kill a container that is not needed, or try again later.",
            fields={"retry_after_s": _RETRY_AFTER_S},
        )

    def release(self, owner: str) -> None:
        """Give back what an owner has; nothing is no error. Call it once the owner's group is gone."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            for number, other in self._taken().items():
                if other == owner:
                    (self._folder / str(number)).unlink()

    def owners(self) -> set[str]:
        """Everyone who has a range."""
        return set(self._taken().values())

    def _taken(self) -> dict[int, str]:
        taken: dict[int, str] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.isdecimal() and entry.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # given back meanwhile
                        taken[int(entry.name)] = os.readlink(entry.path)  # noqa: PTH115 - not a path to follow
        return taken

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _first_id(number: int) -> int:
    return FIRST_ID + number * IDS
