"""A folder of a sandbox that is watched: what is created, modified, removed and moved in it, as it happens.

The work is done inside (``guest/programs/watching.py``): by inotify where the sandbox has it, which both kinds do, otherwise by looking.

Laws:
- What happens once it is watched is told, in order; ``overflow`` says where something may be missing.
- Whoever reads slowly gets an ``overflow`` in the end, and no memory of the service is taken for what he has not read.
- The last event says that the folder is gone; a watch that ends otherwise was let go of, or its sandbox has ended.

Folders that are watched for a client that comes back for what has happened: what a watch tells is kept until it is asked for.

Laws:
- A watcher belongs to its sandbox and ends with it. It keeps no sandbox from being idle.
- What is kept is bounded, in events and in bytes, which are counted (``core/node/buffer_budget.py``); where something was left out, ``overflow``
  stands in its place.
- One whose watch was cut, because its sandbox slept or something inside ended it, begins anew when it is asked, and says ``overflow`` first.
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
"""That one watch watches."""
CREATED, MODIFIED, REMOVED, MOVED, OVERFLOW, GONE = "created", "modified", "removed", "moved", "overflow", "gone"
_KINDS = frozenset({CREATED, MODIFIED, REMOVED, MOVED, OVERFLOW})
_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One thing that happened.

    Args:
        kind: created, modified, removed, moved; overflow: something may have been missed; gone: the folder itself.
        path: Absolute, inside the sandbox; empty of overflow.
        folder: Whether it is a folder.
        source: Where it was before, of what was moved.
    """

    kind: str
    path: str
    folder: bool = False
    source: str | None = None


class FolderWatch:
    """One folder that is watched: iterate, and close it in the end.

    Args:
        helper: Watches.
        path: The folder.
        by: ``inotify`` or ``scan``.
        root: Where it is, without links: what all paths of events begin with.
    """

    __slots__ = ("_helper", "by", "path", "root")

    def __init__(self, helper: GuestHelper, path: str, by: str, *, root: str = "") -> None:
        self._helper = helper
        self.path = path
        self.by = by
        self.root = root or path

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        """What happens, until the folder is gone.

        Raises:
            ConflictError: What watched it was ended by something inside.
            SandboxEndedError: The sandbox has ended.
        """
        async for told in self._helper:
            for event in _events(told):
                yield event
        yield FileEvent(GONE, self.path, folder=True)

    async def aclose(self) -> None:
        """Watch no more. Idempotent."""
        self._helper.close()


async def watch(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False, by: str = "", holds: bool = True) -> FolderWatch:
    """Watch a folder; it is watched when this returns.

    Args:
        sandbox: Where.
        path: Absolute; a link at its end is followed.
        user: Who watches: folders that this user may not read are not watched.
        recursive: Whether the folders in it are watched too, those that come later included.
        by: ``scan`` to do without inotify.
        holds: Whether the sandbox is not idle while it is watched.

    Raises:
        NotFoundError: ``path_not_found``.
        InvalidRequestError: It is no folder.
        LimitError: ``limit_exceeded``: there are more than 1,000 folders below it.
        SandlotError: The sandbox has ended, or has no room for a process.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "watching", {"path": path, "recursive": recursive, "folders": FOLDERS, "by": by}, user=user, holds=holds)
    try:
        async with sandbox.connection():
            told = await anext(helper, None)
    except BaseException:
        helper.close()
        raise
    begun = told if isinstance(told, Mapping) else {}
    root = begun.get("root")
    known = isinstance(root, str) and root.startswith("/") and len(root) <= MAX_PATH_BYTES
    return FolderWatch(helper, path, "scan" if begun.get("by") == "scan" else "inotify", root=str(root) if known else path)


def _events(told: Any) -> list[FileEvent]:  # noqa: ANN401 - a guest's word
    """What one message of the program comes to.

    Raises:
        ConflictError: It is none.
    """
    events = told.get("events") if isinstance(told, Mapping) else None
    if not isinstance(events, list) or len(events) > _EVENTS:
        raise _nonsense()
    return [_event(event) for event in events]


def _event(event: Any) -> FileEvent:  # noqa: ANN401 - likewise
    if not isinstance(event, dict):
        raise _nonsense()
    kind, path, folder, source = (event.get(name) for name in ("kind", "path", "folder", "from"))
    if kind not in _KINDS or not isinstance(path, str) or not isinstance(folder, bool) or not isinstance(source, str | None):
        raise _nonsense()
    if len(path) > MAX_PATH_BYTES or len(source or "") > MAX_PATH_BYTES:
        raise _nonsense()
    return FileEvent(kind, path, folder, source)


def _nonsense() -> ConflictError:
    return ConflictError("What the sandbox tells of the folder cannot be read.", code=ErrorCode.CONFLICT, hint="Something inside forged it.")


MOST: Final = 32
"""Of one sandbox: each is a process inside."""
EVENTS: Final = 4096
"""That one keeps."""
_OWN_BYTES = 200


class BufferedFolderWatch:
    """One folder that is watched, and what has happened in it since somebody asked.

    Args:
        sandbox: Where.
        path: The folder.
        user: Who watches.
        recursive: Whether the folders in it are watched too.
    """

    __slots__ = ("_events", "_sandbox", "_taken_bytes", "_task", "_turn", "by", "id", "path", "recursive", "root", "user")

    def __init__(self, sandbox: Sandbox, path: str, user: User, *, recursive: bool) -> None:
        self._sandbox = sandbox
        self._events: deque[FileEvent] = deque()
        self._taken_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self.id = f"w{secrets.token_hex(8)}"
        self.path = path
        self.root = path
        """Where that is, without links: what the paths of events begin with."""
        self.by = ""
        self.user = user
        self.recursive = recursive

    @property
    def full(self) -> bool:
        """Whether something had to be left out of what waits."""
        return bool(self._events) and self._events[-1].kind == OVERFLOW

    async def begin(self) -> None:
        """Watch from now on.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.watch.watch`.
        """
        folder_watch = await watch(self._sandbox, self.path, user=self.user, recursive=self.recursive, holds=False)
        self.root, self.by = folder_watch.root, folder_watch.by
        self._task = self._sandbox.tasks.create_task(self._run(folder_watch))
        self._task.add_done_callback(lambda _: self._give_if_over())

    async def take(self) -> Sequence[FileEvent]:
        """What has happened since the last time, oldest first; ``gone`` is the last word.

        Raises:
            SandlotError: It was cut, and could not begin anew.
        """
        async with self._turn:
            if self._task is None or not self._task.done() or (self._events and self._events[-1].kind == GONE):
                return self._emptied()
            try:
                await self.begin()
            except NotFoundError as error:
                if error.code is not ErrorCode.PATH_NOT_FOUND:
                    raise
                return [*self._emptied(), FileEvent(OVERFLOW, ""), FileEvent(GONE, self.path, folder=True)]
            return [*self._emptied(), FileEvent(OVERFLOW, "")]

    def close(self) -> None:
        """Watch no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        self._emptied()

    async def _run(self, watch: FolderWatch) -> None:
        try:
            async for event in watch:
                self._keep(event)
        except SandlotError:
            return  # whoever asks next is told that something is missing, or why it cannot be watched
        finally:
            await watch.aclose()

    def _keep(self, event: FileEvent) -> None:
        if self.full and event.kind != GONE:
            return
        size = _size(event)
        if event.kind != GONE and (len(self._events) >= EVENTS or not self._sandbox.buffers.has(size)):
            event = FileEvent(OVERFLOW, "")
            size = _size(event)
        self._sandbox.buffers.take_anyway(size)
        self._taken_bytes += size
        self._events.append(event)

    def _emptied(self) -> list[FileEvent]:
        events = list(self._events)
        self._events.clear()
        self._sandbox.buffers.give(self._taken_bytes)
        self._taken_bytes = 0
        return events

    def _give_if_over(self) -> None:
        """The sandbox is no more: nobody will ask."""
        if self._sandbox.end_requested.is_set():
            self._emptied()


def _close_all(watchers: dict[str, BufferedFolderWatch]) -> None:
    for watcher in watchers.values():
        watcher.close()


WATCHERS: Final[SandboxLocal[dict[str, BufferedFolderWatch]]] = SandboxLocal(lambda _: {}, _close_all)
"""Watches of a sandbox, by id."""


async def create(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> BufferedFolderWatch:
    """Watch a folder for whoever asks later; it is watched when this returns.

    Args:
        sandbox: Where.
        path: Absolute; a link at its end is followed.
        user: Who watches.
        recursive: Whether the folders in it are watched too.

    Raises:
        LimitError: ``limit_exceeded``: the sandbox has as many watchers as it may, or there are too many folders.
        SandlotError: As for :func:`sandlot.core.files.watch.watch`.
    """
    _check_lives(sandbox)
    watchers = WATCHERS.of(sandbox)
    if len(watchers) >= MOST:
        raise LimitError(
            f"The sandbox has {MOST} watchers, which is as many as it may.",
            code=ErrorCode.LIMIT_EXCEEDED,
            hint="Remove one that nobody asks any more, or watch one folder recursively.",
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
    """A watcher by its id.

    Raises:
        NotFoundError: ``not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    _check_lives(sandbox)
    watcher = WATCHERS.of(sandbox).get(id_)
    if watcher is None:
        raise NotFoundError(
            f"There is no watcher {id_[:64]!r}.",
            code=ErrorCode.NOT_FOUND,
            hint="It was removed, its folder is gone, or the service was started anew. Create another one.",
        )
    return watcher


def listing(sandbox: Sandbox) -> list[BufferedFolderWatch]:
    """Those that a sandbox has, oldest first.

    Raises:
        SandboxEndedError: It has ended.
    """
    _check_lives(sandbox)
    return list(WATCHERS.of(sandbox).values())


async def take(sandbox: Sandbox, id_: str) -> Sequence[FileEvent]:
    """What has happened in a watched folder since it was asked last. One whose folder is gone tells that, and is removed.

    Raises:
        NotFoundError: ``not_found``: there is no such watcher.
        SandlotError: It was cut, and could not begin anew.
    """
    watcher = find(sandbox, id_)
    events = await watcher.take()
    if events and events[-1].kind == GONE:
        remove(sandbox, id_)
    return events


def remove(sandbox: Sandbox, id_: str) -> None:
    """Watch no more.

    Raises:
        NotFoundError: ``not_found``.
    """
    find(sandbox, id_).close()
    del WATCHERS.of(sandbox)[id_]


def _check_lives(sandbox: Sandbox) -> None:
    if sandbox.end_requested.is_set() or sandbox.ended.is_set():
        raise sandbox.ended_error()


def _size(event: FileEvent) -> int:
    return _OWN_BYTES + 2 * (len(event.path) + len(event.source or ""))
