"""Watches on folders of a sandbox: entries that are created, modified, removed or moved.

A program inside the sandbox watches (``guest/helpers/watch.py``): with inotify where the sandbox has it, as both isolations do, otherwise
by scanning. :class:`FolderWatch` streams the events to one client. :class:`BufferedFolderWatch`, a watcher of the HTTP API, keeps them until a
client asks.

Invariants:
- Everything that happens after the start of a watch is reported, in order. ``overflow`` marks a place where events may be missing.
- A client that reads slowly eventually gets an ``overflow``. The service holds no memory for events that a client of a stream has not read.
- The last event is ``gone``: the folder was removed or moved. A watch that ends without it was closed, or its sandbox has ended.
- A watcher belongs to its sandbox and ends with it. Watchers do not keep a sandbox from being idle.
- Events that a watcher keeps are limited in number, and their bytes count in the buffer budget (``core/node/buffer_budget.py``). ``overflow``
  replaces the events that were dropped.
- A watcher whose program ended, because the sandbox was suspended or a process inside ended the program, starts again at the next request and
  then reports ``overflow`` first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError, SandlotError
from sandlot.model.specs import MAX_PATH_BYTES, User, check_path

FOLDERS = 1_000
"""Maximum number of folders of one recursive watch."""
CREATED, MODIFIED, REMOVED, MOVED, OVERFLOW, GONE = "created", "modified", "removed", "moved", "overflow", "gone"
_KINDS = frozenset({CREATED, MODIFIED, REMOVED, MOVED, OVERFLOW})
_EVENTS = 1_000
"""Maximum number of events in one message of the program."""
MOST: Final = 32
"""Maximum number of watchers of one sandbox. Each is a process inside."""
EVENTS: Final = 4096
"""Maximum number of events that one watcher keeps."""
_EVENT_BYTES = 200
"""Memory of an event without its paths."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change in a watched folder.

    Args:
        kind: created, modified, removed or moved; overflow: events may be missing; gone: the folder itself was removed or moved.
        path: Absolute path inside the sandbox; empty for overflow.
        folder: True if the entry is a folder.
        source: Previous path of a moved entry.
    """

    kind: str
    path: str
    folder: bool = False
    source: str | None = None


class FolderWatch:
    """A stream of the events of one folder. Iterate it, then close it.

    Args:
        helper: Program inside the sandbox that watches.
        path: Folder as the caller named it.
        by: Method: ``inotify`` or ``scan``.
        root: Path of the folder without symbolic links. The paths of all events begin with it.
    """

    __slots__ = ("_helper", "by", "path", "root")

    def __init__(self, helper: GuestHelper, path: str, by: str, *, root: str = "") -> None:
        self._helper = helper
        self.path = path
        self.by = by
        self.root = root or path

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        """Yield events until the folder is gone.

        Raises:
            ConflictError: A process in the sandbox ended the program, or a message of the program is invalid.
            SandboxEndedError: The sandbox has ended.
        """
        async for message in self._helper:
            for event in _events(message):
                yield event
        yield FileEvent(GONE, self.path, folder=True)

    async def aclose(self) -> None:
        """Stop the watch. Idempotent."""
        self._helper.close()


async def watch(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False, by: str = "", holds: bool = True) -> FolderWatch:
    """Watch a folder. Changes after the return of this function are reported.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path. A symbolic link at its end is followed.
        user: User that watches. Folders that this user may not read are not watched.
        recursive: Watch the folders below it as well, later ones included.
        by: ``scan`` scans the folder instead of using inotify; an empty string chooses automatically.
        holds: Count the watch as activity of the sandbox, so that the sandbox is not idle.

    Raises:
        NotFoundError: ``path_not_found``.
        InvalidRequestError: The path is not a folder.
        LimitError: ``limit_exceeded``: more than 1,000 folders are below the folder.
        SandlotError: The sandbox has ended, or cannot start another process.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "watch", {"path": path, "recursive": recursive, "folders": FOLDERS, "by": by}, user=user, holds=holds)
    try:
        async with sandbox.connection():
            message = await anext(helper, None)
    except BaseException:
        helper.close()
        raise
    started = message if isinstance(message, Mapping) else {}
    root = started.get("root")
    valid = isinstance(root, str) and root.startswith("/") and len(root) <= MAX_PATH_BYTES
    return FolderWatch(helper, path, "scan" if started.get("by") == "scan" else "inotify", root=str(root) if valid else path)


def _events(message: Any) -> list[FileEvent]:  # noqa: ANN401 - sent by a guest, so it can be anything
    """Return the events of one message of the program.

    Raises:
        ConflictError: The message is invalid.
    """
    events = message.get("events") if isinstance(message, Mapping) else None
    if not isinstance(events, list) or len(events) > _EVENTS:
        raise _invalid_message()
    return [_event(event) for event in events]


def _event(event: Any) -> FileEvent:  # noqa: ANN401 - as above
    if not isinstance(event, dict):
        raise _invalid_message()
    kind, path, folder, source = (event.get(name) for name in ("kind", "path", "folder", "from"))
    if kind not in _KINDS or not isinstance(path, str) or not isinstance(folder, bool) or not isinstance(source, str | None):
        raise _invalid_message()
    if len(path) > MAX_PATH_BYTES or len(source or "") > MAX_PATH_BYTES:
        raise _invalid_message()
    return FileEvent(kind, path, folder, source)


def _invalid_message() -> ConflictError:
    return ConflictError(
        "The sandbox's report of the watched folder cannot be read.", code=ErrorCode.CONFLICT, hint="Check the sandbox for processes that forge it."
    )


class BufferedFolderWatch:
    """A watcher: a watched folder and its events since the last request.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path of the folder.
        user: User that watches.
        recursive: Watch the folders below it as well.
    """

    __slots__ = ("_events", "_lock", "_reserved_bytes", "_sandbox", "_task", "by", "id", "path", "recursive", "root", "user")

    def __init__(self, sandbox: Sandbox, path: str, user: User, *, recursive: bool) -> None:
        self._sandbox = sandbox
        self._events: deque[FileEvent] = deque()
        self._reserved_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.id = f"w{secrets.token_hex(8)}"
        self.path = path
        self.root = path
        """Path of the folder without symbolic links. The paths of all events begin with it."""
        self.by = ""
        self.user = user
        self.recursive = recursive

    @property
    def full(self) -> bool:
        """True after events were dropped, until the events are taken."""
        return bool(self._events) and self._events[-1].kind == OVERFLOW

    async def begin(self) -> None:
        """Start to watch.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.watch.watch`.
        """
        folder_watch = await watch(self._sandbox, self.path, user=self.user, recursive=self.recursive, holds=False)
        self.root, self.by = folder_watch.root, folder_watch.by
        self._task = self._sandbox.tasks.create_task(self._run(folder_watch))
        self._task.add_done_callback(lambda _: self._free_if_ended())

    async def take(self) -> Sequence[FileEvent]:
        """Return and drop the events since the last call, oldest first. No event follows ``gone``.

        Raises:
            SandlotError: The watch was interrupted and could not be started again.
        """
        async with self._lock:
            if self._task is None or not self._task.done() or (self._events and self._events[-1].kind == GONE):
                return self._drain()
            try:
                await self.begin()
            except NotFoundError as error:
                if error.code is not ErrorCode.PATH_NOT_FOUND:
                    raise
                return [*self._drain(), FileEvent(OVERFLOW, ""), FileEvent(GONE, self.path, folder=True)]
            return [*self._drain(), FileEvent(OVERFLOW, "")]

    def close(self) -> None:
        """Stop the watch. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        self._drain()

    async def _run(self, watch: FolderWatch) -> None:
        try:
            async for event in watch:
                self._keep(event)
        except SandlotError:
            return  # the next request reports `overflow`, or why the folder cannot be watched
        finally:
            await watch.aclose()

    def _keep(self, event: FileEvent) -> None:
        if self.full and event.kind != GONE:
            return
        if event.kind == GONE or len(self._events) >= EVENTS or not self._sandbox.buffers.try_take(_size(event)):
            event = event if event.kind == GONE else FileEvent(OVERFLOW, "")
            self._sandbox.buffers.take_anyway(_size(event))
        self._reserved_bytes += _size(event)
        self._events.append(event)

    def _drain(self) -> list[FileEvent]:
        events = list(self._events)
        self._events.clear()
        self._sandbox.buffers.give(self._reserved_bytes)
        self._reserved_bytes = 0
        return events

    def _free_if_ended(self) -> None:
        """Free the memory of the events if the sandbox ended: no client can ask for them then."""
        if self._sandbox.end_requested.is_set():
            self._drain()


def _close_all(watchers: dict[str, BufferedFolderWatch]) -> None:
    for watcher in watchers.values():
        watcher.close()


WATCHERS: Final[SandboxLocal[dict[str, BufferedFolderWatch]]] = SandboxLocal(lambda _: {}, _close_all)
"""Watches of a sandbox, by id."""


async def create(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> BufferedFolderWatch:
    """Create a watcher. Changes after the return of this function are kept.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path. A symbolic link at its end is followed.
        user: User that watches.
        recursive: Watch the folders below it as well.

    Raises:
        LimitError: ``limit_exceeded``: the sandbox has 32 watchers, or more than 1,000 folders are below the folder.
        SandlotError: As for :func:`sandlot.core.files.watch.watch`.
    """
    _check_live(sandbox)
    watchers = WATCHERS.of(sandbox)
    if len(watchers) >= MOST:
        raise LimitError(
            f"The sandbox has {MOST} watchers, the maximum.",
            code=ErrorCode.LIMIT_EXCEEDED,
            hint="Delete a watcher that is no longer needed, or watch one folder recursively.",
            fields={"watchers": MOST},
        )
    watcher = BufferedFolderWatch(sandbox, path, user, recursive=recursive)
    watchers[watcher.id] = watcher
    try:
        await watcher.begin()
    except BaseException:
        watchers.pop(watcher.id, None)
        raise
    return watcher


def find(sandbox: Sandbox, id_: str) -> BufferedFolderWatch:
    """Return a watcher.

    Raises:
        NotFoundError: ``not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    _check_live(sandbox)
    watcher = WATCHERS.of(sandbox).get(id_)
    if watcher is None:
        raise NotFoundError(
            f"There is no watcher {id_[:64]!r}.",
            code=ErrorCode.NOT_FOUND,
            hint="Create a new watcher: a watcher ends when its folder is removed or the service restarts.",
        )
    return watcher


def listing(sandbox: Sandbox) -> list[BufferedFolderWatch]:
    """Return the watchers of a sandbox, oldest first.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    _check_live(sandbox)
    return list(WATCHERS.of(sandbox).values())


async def take(sandbox: Sandbox, id_: str) -> Sequence[FileEvent]:
    """Return and drop the events of a watcher since the last call, oldest first. After ``gone``, the watcher is removed.

    Raises:
        NotFoundError: ``not_found``.
        SandlotError: The watch was interrupted and could not be started again.
    """
    watcher = find(sandbox, id_)
    events = await watcher.take()
    if events and events[-1].kind == GONE:
        remove(sandbox, id_)
    return events


def remove(sandbox: Sandbox, id_: str) -> None:
    """Remove a watcher.

    Raises:
        NotFoundError: ``not_found``.
    """
    find(sandbox, id_).close()
    del WATCHERS.of(sandbox)[id_]


def _check_live(sandbox: Sandbox) -> None:
    if sandbox.end_requested.is_set() or sandbox.ended.is_set():
        raise sandbox.ended_error()


def _size(event: FileEvent) -> int:
    return _EVENT_BYTES + 2 * (len(event.path) + len(event.source or ""))
