"""Watches on folders of a sandbox, which report entries that are created, modified, removed or moved.

A helper program inside the sandbox (``guest/helpers/watch.py``) watches the folder: with inotify, or by scanning if the sandbox has no inotify.
There are two kinds of watches:

- :class:`FolderWatch` streams the events to one client.
- :class:`BufferedFolderWatch` keeps the events until a client fetches them. The HTTP API calls this kind a watcher.

Invariants:
- All changes after the start of a watch are reported, in order. An ``overflow`` event says that events may be missing before the next event.
- For a :class:`FolderWatch`, the service keeps no events. If the client reads too slowly, the helper program drops events and reports ``overflow``.
- If the folder is removed or moved, the last event is ``gone``. A watch that ends without ``gone`` was closed, or its sandbox has ended.
- A watcher ends with its sandbox. Watchers do not count as activity of the sandbox.
- The number of events that a watcher keeps is limited, and their bytes count in the buffer budget (``model/buffer_budget.py``). ``overflow``
  replaces the events that were dropped.
- The helper program of a watcher ends if the sandbox is suspended or a process inside kills the program. The next request for the events starts
  the program again and gets an ``overflow`` event.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError, SandlotError
from sandlot.model.files import FileEvent, FileEventKind
from sandlot.model.specs import MAX_PATH_BYTES, User, check_path
from sandlot.protocol.helpers import INOTIFY, SCAN, WATCH, WATCH_EVENTS

MAX_FOLDERS = 1_000
"""Maximum number of folders of one recursive watch."""
_KINDS = frozenset(WATCH_EVENTS)
_MAX_MESSAGE_EVENTS = 1_000
"""Maximum number of events in one message of the helper program."""
MAX_WATCHERS: Final = 32
"""Maximum number of watchers of one sandbox. Each watcher is a process inside the sandbox."""
MAX_EVENTS: Final = 4096
"""Maximum number of events that one watcher keeps."""
_EVENT_BYTES = 200
"""Bytes of memory that an event takes without its paths."""


class FolderWatch:
    """A stream of the events of one folder. Iterate over the events, then close the watch.

    Args:
        path: Path of the folder as the caller named it.
        by: Method of the helper program, ``inotify`` or ``scan``.
        root: Path of the folder with all symbolic links resolved. The paths of all events begin with this path.
    """

    __slots__ = ("_helper", "by", "path", "root")

    def __init__(self, helper: GuestHelper, path: str, by: str, root: str) -> None:
        self._helper = helper
        self.path = path
        self.by = by
        self.root = root

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        """Yield events until the folder is gone.

        Raises:
            ConflictError: A process in the sandbox ended the helper program, or the program sent an invalid message.
        """
        async for message in self._helper:
            for event in _events(message):
                yield event
        yield FileEvent(FileEventKind.GONE, self.path, folder=True)

    async def aclose(self) -> None:
        """Stop the watch. Idempotent."""
        self._helper.close()


async def watch(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False, by: str = "", holds: bool = True) -> FolderWatch:
    """Watch a folder. All changes that happen after this function has returned are reported.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path. If the last part of the path is a symbolic link, the link is followed.
        user: User that watches the folder. Folders that this user may not read are not watched.
        recursive: Also watch all folders below this folder, including folders that are created later.
        by: ``scan``: scan the folder even if inotify is available. Empty: choose automatically.
        holds: Count the watch as activity of the sandbox.

    Raises:
        NotFoundError: The folder does not exist (``path_not_found``).
        InvalidRequestError: The path is not a folder.
        LimitError: More than 1,000 folders are below the folder (``limit_exceeded``).
    """
    check_path(path)
    helper = await helpers.start(sandbox, WATCH, {"path": path, "recursive": recursive, "folders": MAX_FOLDERS, "by": by}, user=user, holds=holds)
    try:
        async with sandbox.connection():
            message = await anext(helper, None)
    except BaseException:
        helper.close()
        raise
    started = message if isinstance(message, Mapping) else {}
    root = started.get("root")
    valid = isinstance(root, str) and root.startswith("/") and len(root) <= MAX_PATH_BYTES
    return FolderWatch(helper, path, SCAN if started.get("by") == SCAN else INOTIFY, str(root) if valid else path)


def _events(message: Any) -> list[FileEvent]:  # noqa: ANN401 - a guest sends this value, so it can be anything
    """Return the events of one message of the helper program.

    Raises:
        ConflictError: The message is invalid.
    """
    events = message.get("events") if isinstance(message, Mapping) else None
    if not isinstance(events, list) or len(events) > _MAX_MESSAGE_EVENTS:
        raise _invalid_message()
    return [_event(event) for event in events]


def _event(event: Any) -> FileEvent:  # noqa: ANN401 - a guest sends this value, so it can be anything
    if not isinstance(event, dict):
        raise _invalid_message()
    kind, path, folder, source = (event.get(name) for name in ("kind", "path", "folder", "from"))
    if kind not in _KINDS or not isinstance(path, str) or not isinstance(folder, bool) or not isinstance(source, str | None):
        raise _invalid_message()
    if len(path) > MAX_PATH_BYTES or len(source or "") > MAX_PATH_BYTES:
        raise _invalid_message()
    return FileEvent(FileEventKind(kind), path, folder, source)


def _invalid_message() -> ConflictError:
    return ConflictError(
        "The sandbox sent an invalid report about the watched folder.",
        hint="Check the sandbox for a process that forges the report.",
    )


class BufferedFolderWatch:
    """A watched folder and its events since the last :meth:`take`. The HTTP API calls this object a watcher.

    Args:
        recursive: Also watch all folders below this folder.
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
        """Path of the folder with all symbolic links resolved. The paths of all events begin with this path."""
        self.by = ""
        self.user = user
        self.recursive = recursive

    @property
    def full(self) -> bool:
        """True from the moment that an event is dropped until a client takes the events that are kept."""
        return bool(self._events) and self._events[-1].kind is FileEventKind.OVERFLOW

    async def begin(self) -> None:
        """Start to watch the folder."""
        folder_watch = await watch(self._sandbox, self.path, user=self.user, recursive=self.recursive, holds=False)
        self.root, self.by = folder_watch.root, folder_watch.by
        self._task = self._sandbox.tasks.create_task(self._run(folder_watch))
        self._task.add_done_callback(lambda _: self._free_if_ended())

    async def take(self) -> Sequence[FileEvent]:
        """Remove and return the events that the watcher keeps, oldest first. A ``gone`` event is always the last event."""
        async with self._lock:
            if self._task is None or not self._task.done() or (self._events and self._events[-1].kind is FileEventKind.GONE):
                return self._drain()
            try:
                await self.begin()
            except NotFoundError as error:
                if error.code is not ErrorCode.PATH_NOT_FOUND:
                    raise
                return [*self._drain(), FileEvent(FileEventKind.OVERFLOW, ""), FileEvent(FileEventKind.GONE, self.path, folder=True)]
            return [*self._drain(), FileEvent(FileEventKind.OVERFLOW, "")]

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
            return  # the next `take` starts the helper program again, or raises the error that prevents this
        finally:
            await watch.aclose()

    def _keep(self, event: FileEvent) -> None:
        if self.full and event.kind is not FileEventKind.GONE:
            return
        size = _size(event)
        if event.kind is FileEventKind.GONE:
            self._sandbox.buffers.take_anyway(size)
        elif len(self._events) >= MAX_EVENTS or not self._sandbox.buffers.try_take(size):
            event = FileEvent(FileEventKind.OVERFLOW, "")
            size = _size(event)
            self._sandbox.buffers.take_anyway(size)
        self._reserved_bytes += size
        self._events.append(event)

    def _drain(self) -> list[FileEvent]:
        events = list(self._events)
        self._events.clear()
        self._sandbox.buffers.give(self._reserved_bytes)
        self._reserved_bytes = 0
        return events

    def _free_if_ended(self) -> None:
        """Drop the events if the sandbox has ended, because no client can take the events then."""
        if self._sandbox.end_requested.is_set():
            self._drain()


def _close_all(watchers: dict[str, BufferedFolderWatch]) -> None:
    for watcher in watchers.values():
        watcher.close()


WATCHERS: Final[SandboxLocal[dict[str, BufferedFolderWatch]]] = SandboxLocal(lambda _: {}, _close_all)
"""Watchers of a sandbox, by id."""


async def create(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> BufferedFolderWatch:
    """Create a watcher. The watcher reports all changes that happen after this function has returned.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path. If the last part of the path is a symbolic link, the link is followed.
        user: User that watches the folder.
        recursive: Also watch all folders below this folder.

    Raises:
        LimitError: The sandbox has 32 watchers, or more than 1,000 folders are below the folder (``limit_exceeded``).
    """
    _check_live(sandbox)
    watchers = WATCHERS.of(sandbox)
    if len(watchers) >= MAX_WATCHERS:
        raise LimitError(
            f"The sandbox has {MAX_WATCHERS} watchers, the maximum.",
            hint="Delete a watcher that is no longer needed, or watch one folder recursively.",
            fields={"watchers": MAX_WATCHERS},
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
    """Return the watcher with the id ``id_``.

    Raises:
        NotFoundError: The sandbox has no watcher with this id (``not_found``).
    """
    _check_live(sandbox)
    watcher = WATCHERS.of(sandbox).get(id_)
    if watcher is None:
        raise NotFoundError(
            f"There is no watcher {id_[:64]!r}.",
            hint="Create a new watcher. A watcher ends when its folder is removed or the service restarts.",
        )
    return watcher


def listing(sandbox: Sandbox) -> list[BufferedFolderWatch]:
    """Return the watchers of a sandbox, oldest first."""
    _check_live(sandbox)
    return list(WATCHERS.of(sandbox).values())


async def take(sandbox: Sandbox, id_: str) -> Sequence[FileEvent]:
    """Remove and return the events that a watcher keeps, oldest first. If the last event is ``gone``, the watcher is removed.

    Raises:
        NotFoundError: The sandbox has no watcher with this id (``not_found``).
    """
    watcher = find(sandbox, id_)
    events = await watcher.take()
    if events and events[-1].kind is FileEventKind.GONE:
        remove(sandbox, id_)
    return events


def remove(sandbox: Sandbox, id_: str) -> None:
    """Remove a watcher.

    Raises:
        NotFoundError: The sandbox has no watcher with this id (``not_found``).
    """
    find(sandbox, id_).close()
    del WATCHERS.of(sandbox)[id_]


def _check_live(sandbox: Sandbox) -> None:
    if sandbox.end_requested.is_set() or sandbox.ended.is_set():
        raise sandbox.ended_error()


def _size(event: FileEvent) -> int:
    return _EVENT_BYTES + 2 * (len(event.path) + len(event.source or ""))
