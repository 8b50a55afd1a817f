"""Ranges of user and group ids for sandboxes with a user namespace. Each range belongs to one sandbox at a time.

A range is taken with a symbolic link. The name of the link is the number of the range, and the target is the name of the sandbox's control group.

Invariants:
- If all services of this host share /run and see the same control groups, no two sandboxes of the host share an id: all services use one folder of
  links, and take ranges under a lock. A service in a container with its own /run or its own tree of groups does not see the
  ranges that other services have taken. Such a service treats ranges of live sandboxes as stale or free.
- A crash makes no range unusable. A link whose group is gone is stale and may be taken over. The group of a sandbox is created before its range is
  taken, and removed only when all its processes are dead, so the link of a live sandbox never looks stale.
- After a boot there are neither links nor control groups. The links are gone because their folder is below /run.

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
"""First id of the first range."""
IDS = 65536
"""Number of ids in each range."""
RANGES = 4094
"""Number of ranges. The last id of the last range is 0x7FFDFFFF."""
FOLDER = Path("/run/sandlot/ids")
"""Folder of the links on this host."""
_LOCK = "lock"
_RETRY_AFTER_S = 2


class IdRanges:
    """All id ranges of this host.

    Args:
        folder: Folder of the symbolic links with which ranges are taken; created when the first range is taken.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def take(self, owner: str, is_live: Callable[[str], bool], start: int = 0) -> int:
        """Take a range for an owner and return the first id of the range. An owner that already has a range gets the same range.

        Args:
            owner: Name of the sandbox's control group, which must exist.
            is_live: Function that returns whether a control group with the given name exists.
            start: Number of the first range to try. Pass a random number, so that a released range is not taken again at once.

        Raises:
            UnavailableError: All ranges are taken by owners that exist.
            OSError: The folder with the symbolic links of the ranges cannot be written to.
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
            hint="Kill a sandbox that has the same isolation and is no longer needed, or retry later.",
            fields={"retry_after_s": _RETRY_AFTER_S},
        )

    def release(self, owner: str) -> None:
        """Release the range of an owner, if the owner has a range. Call this after the control group of the owner has been removed."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            for number, other in self._taken().items():
                if other == owner:
                    (self._folder / str(number)).unlink()

    def owners(self) -> set[str]:
        """Return the names of all control groups that own a range, including groups that no longer exist."""
        return set(self._taken().values())

    def _taken(self) -> dict[int, str]:
        taken: dict[int, str] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.isdecimal() and entry.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # the range was released meanwhile
                        taken[int(entry.name)] = os.readlink(entry.path)  # noqa: PTH115 - the target is a name, not a path
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
