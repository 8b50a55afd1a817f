"""Which regular files were created or changed under some folders between two moments.

The request names the folders; ``{"marked": True}`` answers it once they were looked through. Whatever message comes next makes the
second moment; the result has what differs.

Laws:
- A file differs by inode, size, mtime or ctime (stat(2)); ctime moves with every write, rename and change of rights, and nobody can set it.
- The kernel stamps files with a clock that ticks every few milliseconds (CLOCK_REALTIME_COARSE): a change in the tick of the first look
  would go unseen, so the first moment is not before that tick is over.
- At most ``FILES`` entries are looked at below each folder, in an order that is always the same. What lies beyond is neither reported nor
  mistaken for new: where either look was cut off, what only the other one reached does not count, and ``more`` says so.
"""

from __future__ import annotations

import os
import stat
import time

from sandlot.guest.helpers.helper import receive, serve, tell
from sandlot.guest.helpers.walk import Unopened, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.helpers.walk import Folder

    Key = tuple[int, int, int, int]
    Place = tuple[list[str], str]

FILES = 20_000
REPORTED = 1_000
REPORTED_BYTES = 256 * 1024
"""Of paths in one report."""
BATCH = 100
COARSE = 5
"""CLOCK_REALTIME_COARSE, clock_gettime(2); python 3.11 has no name for it."""
TICK_S = 0.05
"""Longer than any tick: a file of the future (somebody set the clock) is not waited for."""


class Look:
    """What was found below one folder at one moment.

    Args:
        root: The folder.
        most: Entries to look at.
    """

    __slots__ = ("files", "newest_ns", "reached", "root", "unseen")

    def __init__(self, root: str, most: int = FILES) -> None:
        self.root = root
        self.files: dict[str, dict[str, Key]] = {}
        self.newest_ns = 0
        self.reached: Place | None = None
        """Where it was cut off; None where it went to the end."""
        self.unseen: list[str] = []
        """Folders on the way that could not be looked through."""
        self._look(most)

    @property
    def complete(self) -> bool:
        """Whether nothing was left out."""
        return self.reached is None and not self.unseen

    def saw(self, inside: str, name: str) -> bool:
        """Whether it would have found this file, had it been there."""
        if self.reached is not None and (inside.split("/"), name) >= self.reached:
            return False
        return not any(folder in {"", inside} or inside.startswith(f"{folder}/") for folder in self.unseen)

    def _look(self, most: int) -> None:
        try:
            for folder in walk(self.root):
                if isinstance(folder, Unopened):
                    self.unseen.append(folder.inside)
                    continue
                most = self._look_in(folder, most)
                if folder.cut:
                    self.unseen.append(folder.inside)
                if self.reached is not None:
                    return
        except (FileNotFoundError, NotADirectoryError):
            return  # nothing is there: all that comes is new
        except OSError:
            self.unseen.append("")

    def _look_in(self, folder: Folder, most: int) -> int:
        """Look at the files of one folder; how many entries may be looked at after it."""
        found: dict[str, Key] = {}
        for name, status in folder.entries():
            if not most:
                self.reached = (folder.inside.split("/"), name)
                break
            most -= 1
            if stat.S_ISREG(status.st_mode):
                found[name] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                self.newest_ns = max(self.newest_ns, status.st_ctime_ns)
        if found:
            self.files[folder.inside] = found
        return most


def settle(looks: list[Look]) -> None:
    """Let the tick pass in which the newest of the files was written."""
    newest_ns = max((look.newest_ns for look in looks), default=0)
    until_s = time.monotonic() + TICK_S
    while time.clock_gettime_ns(COARSE) <= newest_ns and time.monotonic() < until_s:
        time.sleep(0.001)


def differing(before: Look, after: Look) -> list[dict[str, Any]]:
    """The files that one look has otherwise than the other. Pure."""
    found = []
    for inside, files in after.files.items():
        known = before.files.get(inside, {})
        for name, key in files.items():
            earlier = known.get(name)
            if earlier == key or (earlier is None and not before.saw(inside, name)):
                continue
            path = f"{after.root.rstrip('/')}/{inside}/{name}" if inside else f"{after.root.rstrip('/')}/{name}"
            found.append({"path": path, "created": earlier is None, "size": key[1], "modified_ns": max(0, key[2])})
    return found


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Look, wait, look again."""
    folders = list(dict.fromkeys(request["folders"]))
    before = [Look(folder) for folder in folders]
    settle(before)
    tell({"marked": True})
    receive()
    more = False
    told: dict[str, dict[str, Any]] = {}
    for earlier in before:
        after = Look(earlier.root)
        more = more or not (after.complete and earlier.complete)
        told.update({file["path"]: file for file in differing(earlier, after)})
    report: list[dict[str, Any]] = []
    size = 0
    for file in sorted(told.values(), key=lambda file: file["path"]):
        size += len(os.fsencode(file["path"]))
        if len(report) == REPORTED or size > REPORTED_BYTES:
            more = True
            break
        report.append(file)
    for at in range(0, len(report), BATCH):
        tell({"files": report[at : at + BATCH]})
    return {"more": more}


def main() -> None:
    """The program."""
    serve(work)
