"""Finds regular files that were created or changed in folders between two moments.

The request names the folders. The helper examines the folders and sends ``{"marked": True}``: this is the first moment. The second moment is the
next message of the host: the helper examines the folders again and sends the differences.

Invariants:
- A file counts as changed if its inode, size, mtime or ctime (stat(2)) differs. Every write, rename and change of mode changes the ctime, and no
  program can set the ctime.
- The kernel's clock for file times advances every few milliseconds (CLOCK_REALTIME_COARSE). If a file were changed again within the same clock
  tick, its ctime would not differ. Therefore the helper waits until the tick of the newest file is over before it sends ``marked``.
- At most ``MAX_FILES`` entries below each folder are examined, in a fixed order. If one of the two examinations stops at this limit, entries
  that only the other examination has reached are not reported, and ``more`` is true.
"""

from __future__ import annotations

import os
import stat
import time

from sandlot.guest.helpers.helper import receive_message, send_message, serve
from sandlot.guest.helpers.walk import UnreadableFolder, walk
from sandlot.protocol.helpers import MAX_CHANGED_FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.helpers.walk import Folder

    Key = tuple[int, int, int, int]
    Place = tuple[list[str], str]

MAX_FILES = 20_000
"""Maximum number of entries that are examined below each folder."""
MAX_REPORTED_BYTES = 256 * 1024
"""Maximum total length of the reported paths."""
BATCH = 100
"""Maximum number of files in one message."""
COARSE = 5
"""Number of the clock CLOCK_REALTIME_COARSE (clock_gettime(2)), which Python 3.11 does not define."""
TICK_S = 0.05
"""Maximum number of seconds to wait for the next clock tick. This is longer than any tick, and ends the wait if a file's time is in the future."""


class FolderScan:
    """Record of the regular files below one folder at one moment. Creating the object examines the folder.

    Args:
        root: Path of the folder.
        max_entries: Maximum number of entries to examine.

    Attributes:
        files: Folder -> name -> inode, size, mtime and ctime of the file.
        newest_ns: Latest ctime of a file, in nanoseconds since the epoch.
        first_unexamined: Folder and name of the first entry that was not examined because of ``max_entries``. None if the limit was not
            reached.
        unseen: Folders that could not be examined completely.
    """

    __slots__ = ("files", "first_unexamined", "newest_ns", "root", "unseen")

    def __init__(self, root: str, max_entries: int = MAX_FILES) -> None:
        self.root = root
        self.files: dict[str, dict[str, Key]] = {}
        self.newest_ns = 0
        self.first_unexamined: Place | None = None
        self.unseen: list[str] = []
        self._look(max_entries)

    @property
    def complete(self) -> bool:
        """True if all entries below the folder were examined."""
        return self.first_unexamined is None and not self.unseen

    def covers(self, inside: str, name: str) -> bool:
        """Return True if the examination reached a path, so that a regular file at this path would have been recorded.

        False means that the path was not examined: a folder of the path could not be examined completely, or the limit of entries was
        reached before the path.

        Args:
            inside: Folder of the file, relative to the root.
            name: Name of the file.
        """
        if self.first_unexamined is not None and (inside.split("/"), name) >= self.first_unexamined:
            return False
        return not any(folder in {"", inside} or inside.startswith(f"{folder}/") for folder in self.unseen)

    def _look(self, max_entries: int) -> None:
        try:
            for folder in walk(self.root):
                if isinstance(folder, UnreadableFolder):
                    self.unseen.append(folder.inside)
                    continue
                max_entries = self._look_in(folder, max_entries)
                if folder.cut:
                    self.unseen.append(folder.inside)
                if self.first_unexamined is not None:
                    return
        except (FileNotFoundError, NotADirectoryError):
            return  # the folder does not exist: all files that it contains later are new
        except OSError:
            self.unseen.append("")

    def _look_in(self, folder: Folder, max_entries: int) -> int:
        """Examine the files of one folder, and return the number of entries that may still be examined."""
        found: dict[str, Key] = {}
        for name, status in folder.entries():
            if not max_entries:
                self.first_unexamined = (folder.inside.split("/"), name)
                break
            max_entries -= 1
            if stat.S_ISREG(status.st_mode):
                found[name] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                self.newest_ns = max(self.newest_ns, status.st_ctime_ns)
        if found:
            self.files[folder.inside] = found
        return max_entries


def wait_for_next_tick(scans: list[FolderScan]) -> None:
    """Wait, at most ``TICK_S`` seconds, until the clock for file times has passed the newest ctime of all recorded files."""
    newest_ns = max((scan.newest_ns for scan in scans), default=0)
    until_s = time.monotonic() + TICK_S
    while time.clock_gettime_ns(COARSE) <= newest_ns and time.monotonic() < until_s:
        time.sleep(0.001)


def difference(before: FolderScan, after: FolderScan) -> list[dict[str, Any]]:
    """Return a record of each file that was created or changed between two examinations of the same folder."""
    found = []
    for inside, files in after.files.items():
        known = before.files.get(inside, {})
        for name, key in files.items():
            earlier = known.get(name)
            if earlier == key or (earlier is None and not before.covers(inside, name)):
                continue
            path = f"{after.root.rstrip('/')}/{inside}/{name}" if inside else f"{after.root.rstrip('/')}/{name}"
            found.append({"path": path, "created": earlier is None, "size": key[1], "modified_ns": max(0, key[2])})
    return found


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Examine the folders, wait for the next message of the host, examine the folders again, and send the differences."""
    folders = list(dict.fromkeys(request["folders"]))
    before = [FolderScan(folder) for folder in folders]
    wait_for_next_tick(before)
    send_message({"marked": True})
    receive_message()
    more = False
    found: dict[str, dict[str, Any]] = {}
    for earlier in before:
        after = FolderScan(earlier.root)
        more = more or not (after.complete and earlier.complete)
        found.update({file["path"]: file for file in difference(earlier, after)})
    report: list[dict[str, Any]] = []
    size = 0
    for file in sorted(found.values(), key=lambda file: file["path"]):
        size += len(os.fsencode(file["path"]))
        if len(report) == MAX_CHANGED_FILES or size > MAX_REPORTED_BYTES:
            more = True
            break
        report.append(file)
    for at in range(0, len(report), BATCH):
        send_message({"files": report[at : at + BATCH]})
    return {"more": more}


def main() -> None:
    """Run the helper that finds changed files."""
    serve(work)
