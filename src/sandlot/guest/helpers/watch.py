"""Watches a folder, and tells what is created, modified, removed and moved in it.

By inotify(7) where there is one, otherwise by looking again every second: then what comes and goes between two looks goes unseen.

Laws:
- What happens after ``{"watching": ...}`` was told is told; where something may have been missed, ``overflow`` says so.
- No link is followed, and at most so many folders are watched as the request says.
- Changes to one file within a moment are one event: whoever writes a gigabyte is told of a few times.
- When the folder itself is removed, moved or unmounted, that is the last thing told.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time

from sandlot.guest.helpers import inotify
from sandlot.guest.helpers.helper import REQUESTS, Refused, failed, serve, tell
from sandlot.guest.helpers.inotify import Inotify
from sandlot.guest.helpers.walk import Unopened, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from sandlot.guest.helpers.inotify import Told

MOMENT_S = 0.03
LOOK_S = 1.0
SCANNED = 20_000
"""Entries that are looked at where there is no inotify."""
BATCH = 100
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED


class Full(Exception):  # noqa: N818 - not an error: some of it is not watched
    """There are more folders than may be watched."""


class Batch:
    """What one moment brought, each thing once."""

    __slots__ = ("_events", "_known")

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, kind: str, path: str = "", *, folder: bool = False, source: str | None = None) -> None:
        """One event. That what was just created is modified as well goes without saying."""
        if kind in {"created", "modified", "overflow"}:
            if (kind, path) in self._known or (kind == "modified" and ("created", path) in self._known):
                return
            self._known.add((kind, path))
        else:
            self._known -= {("created", path), ("modified", path)}
        self._events.append({"kind": kind, "path": path, "folder": folder, "from": source})

    def send(self) -> None:
        """Tell it."""
        for at in range(0, len(self._events), BATCH):
            tell({"events": self._events[at : at + BATCH]})


class ByInotify:
    """A folder that the kernel watches.

    Args:
        root: Absolute, no link.
        recursive: Whether the folders in it are watched too.
        most: Folders at most.

    Raises:
        OSError: There is no inotify to be had.
    """

    __slots__ = ("_folders", "_most", "_queue", "_recursive", "_root", "_watch", "fd")

    def __init__(self, root: str, *, recursive: bool, most: int) -> None:
        self._root = root
        self._recursive = recursive
        self._most = most
        self._folders: dict[int, str] = {}
        self._queue = Inotify()
        self.fd = self._queue.fd
        self._watch = self._queue.add(root)
        self._folders[self._watch] = ""
        if recursive:
            self._enter("", None)

    def look(self) -> bool:
        """Tell what has happened; False once the folder is gone."""
        batch = Batch()
        told = list(self._queue.read())
        arrived = {event.cookie: event for event in told if event.mask & inotify.MOVED_TO}
        left = {event.cookie for event in told if event.mask & inotify.MOVED_FROM}
        alive = True
        for event in told:
            if event.mask & inotify.OVERFLOW:
                batch.add("overflow")
                self._entered("", batch)
            elif event.watch == self._watch and event.mask & _GONE:
                alive = False
            elif event.mask & inotify.IGNORED:
                self._folders.pop(event.watch, None)
            elif event.watch in self._folders and event.name:
                self._take(event, arrived, left, batch)
        batch.send()
        return alive

    def _take(self, event: Told, arrived: dict[int, Told], left: set[int], batch: Batch) -> None:
        inside, folder = self._path(event), bool(event.mask & inotify.ISDIR)
        path = f"{self._root.rstrip('/')}/{inside}"
        if event.mask & inotify.MOVED_FROM:
            to = arrived.get(event.cookie)
            if to is None or to.watch not in self._folders:
                self._leave(inside)
                batch.add("removed", path, folder=folder)
                return
            self._rename(inside, self._path(to))
            batch.add("moved", f"{self._root.rstrip('/')}/{self._path(to)}", folder=folder, source=path)
        elif event.mask & inotify.DELETE:
            batch.add("removed", path, folder=folder)
        elif event.mask & (inotify.CREATE | inotify.MOVED_TO):
            if event.mask & inotify.MOVED_TO and event.cookie in left:
                return  # told when it left
            batch.add("created", path, folder=folder)
            if folder:
                self._entered(inside, batch)
        elif event.mask & (inotify.MODIFY | inotify.ATTRIB):
            batch.add("modified", path, folder=folder)

    def _path(self, event: Told) -> str:
        above = self._folders[event.watch]
        return f"{above}/{event.name}" if above else event.name

    def _entered(self, inside: str, batch: Batch) -> None:
        """A folder is new: watch it, and tell what came into it before that."""
        if not self._recursive:
            return
        try:
            self._enter(inside, batch)
        except Full:
            batch.add("overflow")
        except OSError:
            return  # gone again

    def _enter(self, start: str, batch: Batch | None) -> None:
        root = self._root.rstrip("/")
        known = set(self._folders.values())
        for folder in walk(f"{root}/{start}" if start else self._root, follow=False):
            inside = "/".join(filter(None, (start, folder.inside)))
            if isinstance(folder, Unopened):
                continue
            if inside not in known:
                if len(self._folders) >= self._most:
                    raise Full
                try:
                    self._folders[self._queue.add(f"{root}/{inside}" if inside else self._root)] = inside
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise Full from None
                    continue
            for name, found in folder.entries():
                if batch is not None and inside not in known:
                    batch.add("created", f"{root}/{inside}/{name}", folder=stat.S_ISDIR(found.st_mode))

    def _leave(self, inside: str) -> None:
        """A folder was moved away, with all that is in it."""
        for watch, known in list(self._folders.items()):
            if known == inside or known.startswith(f"{inside}/"):
                del self._folders[watch]
                self._queue.remove(watch)

    def _rename(self, source: str, target: str) -> None:
        for watch, known in self._folders.items():
            if known == source or known.startswith(f"{source}/"):
                self._folders[watch] = target + known[len(source) :]


class ByLooking:
    """A folder that is looked at again and again.

    Args:
        root: Absolute, no link.
        recursive: Whether the folders in it are looked at too.
    """

    __slots__ = ("_known", "_recursive", "_root", "fd")

    def __init__(self, root: str, *, recursive: bool) -> None:
        self._root = root
        self._recursive = recursive
        self.fd = -1
        self._known, _ = self._seen()

    def look(self) -> bool:
        """Tell what is otherwise than before; False once the folder is gone."""
        batch = Batch()
        try:
            now, whole = self._seen()
        except OSError:
            return False
        before, self._known = self._known, now
        if not whole:
            batch.add("overflow")
        gone = {key[:2]: path for path, key in before.items() if path not in now}
        for path, key in now.items():
            earlier = before.get(path)
            source = gone.pop(key[:2], None) if earlier is None else None
            if source is not None:
                batch.add("moved", path, folder=key[2], source=source)
            elif earlier is None or earlier[:2] != key[:2]:
                batch.add("created", path, folder=key[2])
            elif earlier != key and not key[2]:
                batch.add("modified", path)
        for identity, path in gone.items():
            batch.add("removed", path, folder=before[path][:2] == identity and before[path][2])
        batch.send()
        return True

    def _seen(self) -> tuple[dict[str, Any], bool]:
        seen: dict[str, Any] = {}
        root = self._root.rstrip("/")
        for folder in walk(self._root):
            for name, found in folder.entries():
                if len(seen) == SCANNED:
                    return seen, False
                folds = stat.S_ISDIR(found.st_mode)
                seen[f"{root}/{folder.path(name)}"] = (found.st_dev, found.st_ino, folds, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if not self._recursive:
                break
        return seen, True


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Watch until it is gone."""
    root = os.path.realpath(request["path"])
    try:
        found = os.stat(root)
        os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        watched = _watched(root, recursive=request["recursive"], most=request["folders"], by=request["by"])
    except OSError as error:
        raise failed(error, request["path"]) from None
    tell({"watching": True, "by": "inotify" if watched.fd >= 0 else "scan", "root": root.encode("utf-8", "replace").decode()})
    poll = select.poll()
    poll.register(REQUESTS, select.POLLIN | select.POLLHUP)
    if watched.fd >= 0:
        poll.register(watched.fd, select.POLLIN)
    while True:
        ready = poll.poll(LOOK_S * 1000)
        if _ended(ready):
            return {"gone": False}
        if ready:
            time.sleep(MOMENT_S)
        if not watched.look() or not _same(root, found):
            return {"gone": True}


def _ended(ready: Iterable[tuple[int, int]]) -> bool:
    """Whether the host wants no more: nothing else comes on that descriptor."""
    return any(fd == REQUESTS for fd, _ in ready)


def _same(root: str, found: os.stat_result) -> bool:
    try:
        now = os.lstat(root)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)


def _watched(root: str, *, recursive: bool, most: int, by: str) -> ByInotify | ByLooking:
    if by != "scan":
        try:
            return ByInotify(root, recursive=recursive, most=most)
        except Full:
            raise Refused(
                "limit_exceeded", f"There are more than {most} folders below it, or more than may be watched.", "Watch a smaller folder."
            ) from None
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EMFILE, errno.ENOSPC}:
                raise
    return ByLooking(root, recursive=recursive)


def main() -> None:
    """The program."""
    serve(work)
