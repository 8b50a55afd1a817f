"""A folder of a sandbox that is watched: what is created, modified, removed and moved in it, as it happens.

The work is done inside (``guest/programs/watching.py``): by inotify where the sandbox has it, which both kinds do, otherwise by looking.

Laws:
- What happens once it is watched is told, in order; ``overflow`` says where something may be missing.
- Whoever reads slowly gets an ``overflow`` in the end, and no memory of the service is taken for what he has not read.
- The last event says that the folder is gone; a watch that ends otherwise was let go of, or its sandbox has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandlot.core.content import programs
from sandlot.core.content.programs import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode
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
    helper = await programs.start(sandbox, "watching", {"path": path, "recursive": recursive, "folders": FOLDERS, "by": by}, user=user, holds=holds)
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
