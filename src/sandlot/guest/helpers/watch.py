"""Watches a folder and reports the entries that are created, modified, removed and moved in it.

The helper uses inotify(7) if the kernel supports it. Otherwise it scans the folder every second, and misses files that exist only between
two scans.

Invariants:
- With inotify, every change after the message ``{"watching": ...}`` is reported. If events were lost or a scan was incomplete, ``overflow`` is
  reported.
- No link is followed. At most the requested number of folders is watched.
- A file that is created with content is reported as created and modified.
- Changes of one file within a short time are reported as one event, so a program that writes a gigabyte causes few events.
- The watch ends when the watched folder is removed, moved or unmounted.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import path_error
from sandlot.guest.helpers import inotify
from sandlot.guest.helpers.helper import REQUESTS, receive_message, send_message, serve
from sandlot.guest.helpers.inotify import Inotify
from sandlot.guest.helpers.walk import UnreadableFolder, walk
from sandlot.protocol.helpers import INOTIFY, SCAN, WATCH_EVENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.helpers.inotify import InotifyEvent

CREATED, MODIFIED, REMOVED, MOVED, OVERFLOW = WATCH_EVENTS
BATCH_DELAY_S = 0.03
"""Seconds to wait after an event, so that further events are reported together with this event."""
SCAN_INTERVAL_S = 1.0
MAX_SCANNED = 20_000
"""Maximum number of entries that one scan examines."""
MAX_EVENTS = 100
"""Maximum number of events in one message."""
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED


class TooManyFoldersError(Exception):
    """There are more folders to watch than the request or the kernel allows."""


class Batch:
    """Events that are reported together, without duplicates."""

    __slots__ = ("_events", "_known")

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, kind: str, path: str = "", *, folder: bool = False, source: str | None = None) -> None:
        """Add an event to this batch. Omits duplicates.

        Args:
            kind: Kind of the event, such as ``CREATED``.
            path: Path of the entry; for a move, its new path. Empty for ``OVERFLOW``.
            folder: True if the entry is a folder.
            source: Old path of a moved entry; None for other events.
        """
        if kind in {CREATED, MODIFIED, OVERFLOW}:
            if (kind, path) in self._known:
                return
            self._known.add((kind, path))
        else:
            self._known -= {(CREATED, path), (MODIFIED, path)}
        self._events.append({"kind": kind, "path": path, "folder": folder, "from": source})

    def add_found(self, path: str, status: os.stat_result) -> None:
        """Add the events of an entry that was created unseen. A file with content was also modified."""
        self.add(CREATED, path, folder=stat.S_ISDIR(status.st_mode))
        if stat.S_ISREG(status.st_mode) and status.st_size:
            self.add(MODIFIED, path)

    def has_created(self, path: str) -> bool:
        """Return True if the batch reports the entry as created."""
        return (CREATED, path) in self._known

    def send(self) -> None:
        """Send the events of the batch to the host, at most ``MAX_EVENTS`` in one message."""
        for at in range(0, len(self._events), MAX_EVENTS):
            send_message({"events": self._events[at : at + MAX_EVENTS]})


class InotifyWatcher:
    """Watches a folder with inotify(7).

    Args:
        root: Absolute path that contains no link.
        recursive: True to also watch all subfolders, at any depth.
        max_folders: Maximum number of watched folders.

    Raises:
        OSError: inotify cannot be used.
    """

    __slots__ = ("_folders", "_max_folders", "_queue", "_recursive", "_root", "_watch", "fd")

    def __init__(self, root: str, *, recursive: bool, max_folders: int) -> None:
        self._root = root
        self._recursive = recursive
        self._max_folders = max_folders
        self._folders: dict[int, str] = {}
        self._queue = Inotify()
        self.fd = self._queue.fd
        self._watch = self._queue.add(root)
        self._folders[self._watch] = ""
        if recursive:
            self._enter("", None)

    def report(self) -> bool:
        """Send the events since the last report to the host. Return False if the watched folder was removed, moved or unmounted."""
        batch = Batch()
        events = list(self._queue.read())
        arrived = {event.cookie: event for event in events if event.mask & inotify.MOVED_TO}
        left = {event.cookie for event in events if event.mask & inotify.MOVED_FROM}
        alive = True
        for event in events:
            if event.mask & inotify.OVERFLOW:
                batch.add(OVERFLOW)
                self._entered("", batch)
            elif event.watch == self._watch and event.mask & _GONE:
                alive = False
            elif event.mask & inotify.IGNORED:
                self._folders.pop(event.watch, None)
            elif event.watch in self._folders and event.name:
                self._take(event, arrived, left, batch)
        batch.send()
        return alive

    def _take(self, event: InotifyEvent, arrived: dict[int, InotifyEvent], left: set[int], batch: Batch) -> None:
        inside, folder = self._path(event), bool(event.mask & inotify.ISDIR)
        path = f"{self._root.rstrip('/')}/{inside}"
        if event.mask & inotify.MOVED_FROM:
            to = arrived.get(event.cookie)
            if to is None or to.watch not in self._folders:
                self._leave(inside)
                batch.add(REMOVED, path, folder=folder)
                return
            self._rename(inside, self._path(to))
            batch.add(MOVED, f"{self._root.rstrip('/')}/{self._path(to)}", folder=folder, source=path)
        elif event.mask & inotify.DELETE:
            batch.add(REMOVED, path, folder=folder)
        elif event.mask & (inotify.CREATE | inotify.MOVED_TO):
            if event.mask & inotify.MOVED_TO and event.cookie in left:
                return  # this move is reported with its MOVED_FROM event
            batch.add(CREATED, path, folder=folder)
            if folder:
                self._entered(inside, batch)
        elif event.mask & inotify.MODIFY or (event.mask & inotify.ATTRIB and not batch.has_created(path)):
            batch.add(MODIFIED, path, folder=folder)

    def _path(self, event: InotifyEvent) -> str:
        above = self._folders[event.watch]
        return f"{above}/{event.name}" if above else event.name

    def _entered(self, inside: str, batch: Batch) -> None:
        """Watch a new folder, and report the entries that were created before the watch began."""
        if not self._recursive:
            return
        try:
            self._enter(inside, batch)
        except TooManyFoldersError:
            batch.add(OVERFLOW)
        except OSError:
            return  # the folder was removed meanwhile

    def _enter(self, start: str, batch: Batch | None) -> None:
        root = self._root.rstrip("/")
        known = set(self._folders.values())
        for folder in walk(f"{root}/{start}" if start else self._root, follow=False):
            inside = "/".join(filter(None, (start, folder.inside)))
            if isinstance(folder, UnreadableFolder):
                continue
            if inside not in known:
                if len(self._folders) >= self._max_folders:
                    raise TooManyFoldersError
                try:
                    self._folders[self._queue.add(f"{root}/{inside}" if inside else self._root)] = inside
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise TooManyFoldersError from None
                    continue
            for name, found in folder.entries():
                if batch is not None and inside not in known:
                    batch.add_found(f"{root}/{inside}/{name}", found)

    def _leave(self, inside: str) -> None:
        """Remove the watches of a folder that was moved away, and of all folders below it."""
        for watch, known in list(self._folders.items()):
            if known == inside or known.startswith(f"{inside}/"):
                del self._folders[watch]
                self._queue.remove(watch)

    def _rename(self, source: str, target: str) -> None:
        for watch, known in self._folders.items():
            if known == source or known.startswith(f"{source}/"):
                self._folders[watch] = target + known[len(source) :]


class PollingWatcher:
    """Watches a folder by scanning it.

    Args:
        root: Absolute path that contains no link.
        recursive: True to also scan all subfolders, at any depth.
    """

    __slots__ = ("_known", "_recursive", "_root", "fd")

    def __init__(self, root: str, *, recursive: bool) -> None:
        self._root = root
        self._recursive = recursive
        self.fd = -1
        self._known, _ = self._scan()

    def report(self) -> bool:
        """Scan the folder, and send the differences since the last scan to the host. Return False if the folder cannot be read."""
        batch = Batch()
        try:
            now, whole = self._scan()
        except OSError:
            return False
        before, self._known = self._known, now
        if not whole:
            batch.add(OVERFLOW)
        gone = {key[:2]: path for path, key in before.items() if path not in now}
        for path, key in now.items():
            earlier = before.get(path)
            source = gone.pop(key[:2], None) if earlier is None else None
            if source is not None:
                batch.add(MOVED, path, folder=key[2], source=source)
            elif earlier is None or earlier[:2] != key[:2]:
                batch.add(CREATED, path, folder=key[2])
                if key[3]:
                    batch.add(MODIFIED, path)
            elif earlier != key and not key[2]:
                batch.add(MODIFIED, path)
        for identity, path in gone.items():
            batch.add(REMOVED, path, folder=before[path][:2] == identity and before[path][2])
        batch.send()
        return True

    def _scan(self) -> tuple[dict[str, Any], bool]:
        seen: dict[str, Any] = {}
        root = self._root.rstrip("/")
        for folder in walk(self._root):
            for name, found in folder.entries():
                if len(seen) == MAX_SCANNED:
                    return seen, False
                folds = stat.S_ISDIR(found.st_mode)
                size = found.st_size if stat.S_ISREG(found.st_mode) else 0
                seen[f"{root}/{folder.path(name)}"] = (found.st_dev, found.st_ino, folds, size, found.st_mtime_ns, found.st_ctime_ns)
            if not self._recursive:
                break
        return seen, True


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Watch the folder of the request until the folder is removed, moved or unmounted, or until the host closes the input.

    Each further message of the host is answered with ``synced``, after all events that have happened before.
    """
    root = os.path.realpath(request["path"])
    try:
        found = os.stat(root)
        os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        watched = _watched(root, recursive=request["recursive"], max_folders=request["folders"], by=request["by"])
    except OSError as error:
        raise path_error(error, request["path"]) from None
    send_message({"watching": True, "by": INOTIFY if watched.fd >= 0 else SCAN, "root": root.encode("utf-8", "replace").decode()})
    poll = select.poll()
    poll.register(REQUESTS, select.POLLIN | select.POLLHUP)
    if watched.fd >= 0:
        poll.register(watched.fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(SCAN_INTERVAL_S * 1000)}
        is_requested = REQUESTS in ready
        if is_requested:
            try:
                receive_message()
            except EOFError:
                return {"gone": False}
        elif ready:
            time.sleep(BATCH_DELAY_S)
        if not watched.report() or not _same(root, found):
            return {"gone": True}
        if is_requested:
            send_message({"synced": True})


def _same(root: str, found: os.stat_result) -> bool:
    try:
        now = os.lstat(root)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)


def _watched(root: str, *, recursive: bool, max_folders: int, by: str) -> InotifyWatcher | PollingWatcher:
    if by != SCAN:
        try:
            return InotifyWatcher(root, recursive=recursive, max_folders=max_folders)
        except TooManyFoldersError:
            raise RpcError(
                "limit_exceeded",
                f"{root[:300]!r} has more than {max_folders} folders to watch, or the user's limit of inotify watches is reached.",
                "Watch a smaller folder.",
            ) from None
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EMFILE, errno.ENOSPC}:
                raise
    return PollingWatcher(root, recursive=recursive)


def main() -> None:
    """Run the helper that watches a folder."""
    serve(work)
