"""Ranges of user and group ids for sandboxes with a user namespace. Each range belongs to one sandbox at a time.

A range is taken by a symbolic link. Its name is the number of the range, and its target is the control group of the sandbox.

Invariants:
- No two sandboxes of this host share an id, whichever service runs them, if all services share /run and see the same control groups: the folder is
  the host's, and ranges are taken under a lock. A service in a container with its own /run or its own tree of groups does not see the ranges of
  others, and treats ranges of live sandboxes as stale or free.
- A crash loses no range. A link whose group is gone is stale and may be taken over. The group of a sandbox is created before its range is taken, and
  removed only when all its processes are dead, so the link of a live sandbox never looks stale.
- The folder is below /run and empty after a boot, as are the groups.

The ids 0x70000000 to 0x7FFDFFFF are the part of the 32-bit ids that systemd's list of ranges ("Users, Groups, UIDs and GIDs on systemd Systems")
leaves unused: below the sign bit and above the ids of systemd-nspawn.
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
"""Number of ranges, up to the id 0x7FFDFFFF."""
FOLDER = Path("/run/sandlot/ids")
_LOCK = "lock"
_RETRY_AFTER_S = 2


class IdRanges:
    """All id ranges of this host.

    Args:
        folder: Folder of the links.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def take(self, owner: str, is_live: Callable[[str], bool], start: int = 0) -> int:
        """Take a range and return its first id. An owner that has a range gets the same one again.

        Args:
            owner: Name of an existing control group.
            is_live: Returns whether the control group with a name exists.
            start: First range to try. Pass a random number, so that a range is not reused at once.

        Raises:
            UnavailableError: All ranges are taken.
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
            hint="Kill a container that is no longer needed, or retry later.",
            fields={"retry_after_s": _RETRY_AFTER_S},
        )

    def release(self, owner: str) -> None:
        """Release the range of an owner, if it has one. Call this when the owner's group is gone."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            for number, other in self._taken().items():
                if other == owner:
                    (self._folder / str(number)).unlink()

    def owners(self) -> set[str]:
        """Return all owners of ranges."""
        return set(self._taken().values())

    def _taken(self) -> dict[int, str]:
        taken: dict[int, str] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.isdecimal() and entry.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # released meanwhile
                        taken[int(entry.name)] = os.readlink(entry.path)  # noqa: PTH115 - not a path
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
