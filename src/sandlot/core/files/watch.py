"""Watches on folders of a sandbox, which report entries that are created, modified, removed or moved.

A helper program inside the sandbox (``guest/helpers/watch.py``) watches the folder: with inotify, or by scanning if the sandbox has no inotify.
There are two kinds of watches:

- :class:`StreamedFolderWatch` streams the events to one client.
- :class:`BufferedFolderWatch` keeps the events until a client fetches them. The HTTP API calls this kind a watcher.

Invariants:
- All changes after the start of a watch are reported, in order. An ``overflow`` event says that events may be missing before the next event.
- For a :class:`StreamedFolderWatch`, the service keeps no events. If the client reads too slowly, the helper program drops events and reports
  ``overflow``.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from sandlot.core.concurrency import StreamCloser
from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError, SandlotError
from sandlot.model.files import FileEvent, FileEventKind, FolderWatch, Watch
from sandlot.model.specs import MAX_PATH_BYTES, User
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
SYNC_TIMEOUT_S: Final = 2.0
"""Seconds that :meth:`WatchService.take` waits for the helper program to report the latest events."""
_EVENT_BYTES = 200
"""Bytes of memory that an event takes without its paths."""


class WatchService:
    """Watches of folders.

    The streams of :meth:`watch` are held by their clients. The watches of :meth:`create` are kept by the service, by id.
    """

    def __init__(self, registry: SandboxRegistry) -> None:
        self._registry = registry
        self.watches: Final[SandboxLocal[dict[str, BufferedFolderWatch]]] = SandboxLocal(lambda _: {}, _close_all)
        """Watches of a sandbox, by id."""

    async def watch(
        self, principal: Principal, sandbox: str, path: str, *, recursive: bool = False, holds: bool = True, user: User | None = None
    ) -> FolderWatch:
        """Watch a folder. All changes that happen after this call has returned are reported.

        If the last part of the path is a symbolic link, the link is followed. A recursive watch includes folders that are created later. Folders that
        the user may not read are not watched. While the stream is open, the sandbox does not count as idle, unless ``holds`` is False.

        Raises:
            NotFoundError: The folder does not exist (``path_not_found``).
            InvalidRequestError: The path is not a folder.
            LimitError: More than 1,000 folders are below the folder (``limit_exceeded``).
        """
        live = self._registry.find(sandbox, principal)
        return await _watch(live, path, user=user or live.spec.user, recursive=recursive, holds=holds)

    async def create(self, principal: Principal, sandbox: str, path: str, *, recursive: bool = False, user: User | None = None) -> Watch:
        """Create a watch that keeps all changes that happen after this call has returned, until :meth:`take` returns them.

        The arguments are those of :meth:`watch`. The watch does not count as activity of the sandbox.

        Raises:
            LimitError: The sandbox has 32 watches, or more than 1,000 folders are below the folder (``limit_exceeded``).
        """
        live = self._live(principal, sandbox)
        watches = self.watches.of(live)
        if len(watches) >= MAX_WATCHERS:
            raise LimitError(
                f"The sandbox has {MAX_WATCHERS} watchers, the maximum.",
                hint="Delete a watcher that is no longer needed, or watch one folder recursively.",
                fields={"watchers": MAX_WATCHERS},
            )
        watch = BufferedFolderWatch(live, path, user or live.spec.user, recursive=recursive)
        watches[watch.id] = watch
        try:
            await watch.begin()
        except BaseException:
            watches.pop(watch.id, None)
            raise
        return watch.describe()

    async def list(self, principal: Principal, sandbox: str) -> tuple[Watch, ...]:
        """Return the watches of a sandbox, oldest first."""
        return tuple(watch.describe() for watch in self.watches.of(self._live(principal, sandbox)).values())

    async def take(self, principal: Principal, sandbox: str, id_: str) -> tuple[FileEvent, ...]:
        """Remove and return the events that a watch keeps, oldest first. If the last event is ``gone``, the watch is deleted.

        Raises:
            NotFoundError: The sandbox has no watch with this id (``not_found``).
        """
        watches = self.watches.of(self._live(principal, sandbox))
        events = await _find(watches, id_).take()
        if events and events[-1].kind is FileEventKind.GONE:
            _delete(watches, id_)
        return tuple(events)

    async def delete(self, principal: Principal, sandbox: str, id_: str) -> None:
        """Delete a watch.

        Raises:
            NotFoundError: The sandbox has no watch with this id (``not_found``).
        """
        _delete(self.watches.of(self._live(principal, sandbox)), id_)

    def _live(self, principal: Principal, sandbox: str) -> Sandbox:
        live = self._registry.find(sandbox, principal)
        if live.end_requested.is_set() or live.ended.is_set():
            raise live.ended_error()
        return live


class StreamedFolderWatch:
    """A watch that streams the events of one folder to one client.

    Args:
        path: Path of the folder as the caller named it.
        by: Method of the helper program, ``inotify`` or ``scan``.
        root: Path of the folder with all symbolic links resolved. The paths of all events begin with this path.
    """

    __slots__ = ("_closer", "_helper", "_is_gone", "_received", "_syncs", "by", "path", "root")

    def __init__(self, helper: GuestHelper, path: str, by: str, root: str) -> None:
        self._helper = helper
        self._received: deque[FileEvent | None] = deque()
        self._syncs: deque[asyncio.Event] = deque()
        self._is_gone = False
        self._closer = StreamCloser()
        self.path = path
        self.by = by
        self.root = root

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        """Return the next event. The last event is ``gone``.

        Raises:
            ConflictError: A process in the sandbox ended the helper program, or the program sent an invalid message.
        """
        return await self._closer.wait_next(self._next_event)

    async def aclose(self) -> None:
        """Stop the watch. Idempotent."""
        for synced in self._syncs:
            synced.set()
        await self._closer.aclose()
        self._helper.close()

    async def sync(self) -> None:
        """Wait until the iteration has returned all events that happened before this call, or the watch has ended.

        Raises:
            SandlotError: The helper program has ended.
        """
        synced = asyncio.Event()
        self._syncs.append(synced)
        try:
            await self._helper.tell({"sync": True})
        except SandlotError:
            self._syncs.remove(synced)
            raise
        await synced.wait()

    async def _next_event(self) -> FileEvent:
        while True:
            while self._received:
                event = self._received.popleft()
                if event is not None:
                    return event
                if self._syncs:
                    self._syncs.popleft().set()
            if self._is_gone:
                raise StopAsyncIteration
            try:
                self._received.extend(_events(await anext(self._helper)))
            except StopAsyncIteration:
                self._is_gone = True
                self._received.append(FileEvent(FileEventKind.GONE, self.path, folder=True))


async def _watch(sandbox: Sandbox, path: str, *, user: User, recursive: bool, holds: bool) -> StreamedFolderWatch:
    """Watch a folder of a live sandbox: :meth:`WatchService.watch`."""
    path = sandbox.absolute_path(path)
    helper = await helpers.start(sandbox, WATCH, {"path": path, "recursive": recursive, "folders": MAX_FOLDERS, "by": ""}, user=user, holds=holds)
    try:
        async with sandbox.connection():
            message = await anext(helper, None)
    except BaseException:
        helper.close()
        raise
    started = message if isinstance(message, Mapping) else {}
    root = started.get("root")
    valid = isinstance(root, str) and root.startswith("/") and len(root) <= MAX_PATH_BYTES
    return StreamedFolderWatch(helper, path, SCAN if started.get("by") == SCAN else INOTIFY, str(root) if valid else path)


def _events(message: Any) -> Sequence[FileEvent | None]:  # noqa: ANN401 - a guest sends this value, so it can be anything
    """Return the events of one message of the helper program. None stands for the response to a ``sync``.

    Raises:
        ConflictError: The message is invalid.
    """
    if isinstance(message, Mapping) and "synced" in message:
        return (None,)
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

    __slots__ = ("_events", "_lock", "_reserved_bytes", "_sandbox", "_task", "_watch", "by", "id", "path", "recursive", "root", "user")

    def __init__(self, sandbox: Sandbox, path: str, user: User, *, recursive: bool) -> None:
        self._sandbox = sandbox
        self._events: deque[FileEvent] = deque()
        self._reserved_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._watch: StreamedFolderWatch | None = None
        self._lock = asyncio.Lock()
        self.id = f"w{secrets.token_hex(8)}"
        self.path = self.root = sandbox.absolute_path(path)
        """Path of the folder with all symbolic links resolved. The paths of all events begin with this path."""
        self.by = ""
        self.user = user
        self.recursive = recursive

    @property
    def full(self) -> bool:
        """True from the moment that an event is dropped until a client takes the events that are kept."""
        return bool(self._events) and self._events[-1].kind is FileEventKind.OVERFLOW

    def describe(self) -> Watch:
        """Return the properties of the watch."""
        return Watch(self.id, self.path, self.root, self.by, self.recursive)

    async def begin(self) -> None:
        """Start to watch the folder."""
        self._watch = folder_watch = await _watch(self._sandbox, self.path, user=self.user, recursive=self.recursive, holds=False)
        self.root, self.by = folder_watch.root, folder_watch.by
        self._task = self._sandbox.tasks.create_task(self._run(folder_watch))
        self._task.add_done_callback(lambda _: self._free_if_ended())

    async def take(self) -> Sequence[FileEvent]:
        """Remove and return the events that the watcher keeps, oldest first. A ``gone`` event is always the last event.

        If the sandbox runs, the events include everything that happened before this call.
        """
        async with self._lock:
            if self._watch is not None and self._task is not None and not self._task.done() and self._sandbox.awake.is_set():
                with suppress(SandlotError, TimeoutError):  # a watch that has ended starts again below
                    async with asyncio.timeout(SYNC_TIMEOUT_S):
                        await self._watch.sync()
            if self._task is None or not self._task.done() or (self._events and self._events[-1].kind is FileEventKind.GONE):
                return self._drain()
            try:
                await self.begin()
            except SandlotError as error:
                if error.code not in {ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}:
                    raise
                return [*self._drain(), FileEvent(FileEventKind.OVERFLOW, ""), FileEvent(FileEventKind.GONE, self.path, folder=True)]
            return [*self._drain(), FileEvent(FileEventKind.OVERFLOW, "")]

    def close(self) -> None:
        """Stop the watch. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        self._drain()

    async def _run(self, watch: StreamedFolderWatch) -> None:
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


def _find(watches: Mapping[str, BufferedFolderWatch], id_: str) -> BufferedFolderWatch:
    watch = watches.get(id_)
    if watch is None:
        raise NotFoundError(
            f"There is no watcher {id_[:64]!r}.",
            code=ErrorCode.WATCHER_NOT_FOUND,
            hint="Create a new watcher. A watcher ends when its folder is removed or the service restarts.",
        )
    return watch


def _delete(watches: dict[str, BufferedFolderWatch], id_: str) -> None:
    _find(watches, id_).close()
    del watches[id_]


def _size(event: FileEvent) -> int:
    return _EVENT_BYTES + 2 * (len(event.path) + len(event.source or ""))
