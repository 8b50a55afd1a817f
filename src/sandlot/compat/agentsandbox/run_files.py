"""The files that a run made: found, and kept in the file store.

Laws:
- A file that was not there before counts, and one that was and has another size or another time of change. What was put there for the
  run and left alone does not, nor do links, hidden files and folders, and what Python compiles.
- A small tree is looked at from here, a message for each folder. A large one is tracked by a program inside, whose start costs more than a few
  of these (``track`` of ``processes.run``).
- At most 50 files and 100 MiB are kept of one run, and eight seconds are spent on it; whoever asked is told how many were not.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ForbiddenError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.files import ChangedFile, Entry
from sandlot.model.records import FileRecord
from sandlot.model.specs import MIB, WORKSPACE

OUTPUT = "/output"
"""Where the vendor's own plugin tells models to put what they want back; its SDK says /workspace. Both are looked at."""
FOLDERS = (OUTPUT, WORKSPACE)
"""Where runs leave what they make; the first one's files are kept first."""

FEW_FOLDERS = 12
"""Looked at from here before a run; a program inside takes as long to start as so many messages take."""
MANY_FOLDERS = 250
"""The same after it, where no program waits inside."""
MOST_ENTRIES = 20_000
MOST_PAGES = 100
"""Of one folder: five times what a guest needs for so many entries."""

ANSWER_S = 10.0
"""Of the time that a client waits, for what comes after its run."""
COLLECT_S = 8.0
"""Of these, for its files."""
AT_ONCE = 4
"""Files that are kept side by side: most of the time of each is waiting for the host's disk."""
KEPT_FILES = 50
KEPT_BYTES = 100 * MIB

_COMPILED = "__pycache__"
_log = structlog.get_logger("sandlot.compat")

Seen = Mapping[str, tuple[int, int]]
"""Path -> size and time of change."""
Changed = tuple[Sequence[ChangedFile], bool]
"""Files that a run has changed, and True if there may be more: the result of tracking."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that a run made.

    Args:
        path: Absolute, inside.
        size_bytes: When it was found.
    """

    path: str
    size_bytes: int


class FileBaseline:
    """Files of a sandbox before a run.

    Args:
        node: Node that has the sandbox.
        principal: Principal that runs the code.
        sandbox: Id of the sandbox.
        seen: The files. None: the tree is too large to be listed, so the run has to track :attr:`tracked`.
    """

    def __init__(self, node: Node, principal: Principal, sandbox: str, seen: Seen | None) -> None:
        self.node = node
        self.principal = principal
        self.sandbox = sandbox
        self._seen = seen

    @classmethod
    async def look(cls, node: Node, principal: Principal, sandbox: str) -> FileBaseline:
        """List the files of a sandbox.

        Raises:
            SandlotError: The files could not be listed, or the sandbox has ended.
        """
        seen, whole = await _look(node, principal, sandbox, FEW_FOLDERS)
        return cls(node, principal, sandbox, seen if whole else None)

    @property
    def tracked(self) -> Sequence[str]:
        """Folders that the run has to track; none if the files were listed."""
        return FOLDERS if self._seen is None else ()

    async def made(self, changed: Changed | None) -> tuple[Sequence[Found], bool]:
        """Return the files that the run made, the most wanted first, and True if there may be more.

        Args:
            changed: Result of tracking; None if nothing was tracked.

        Raises:
            SandlotError: The files could not be listed, or the sandbox has ended.
        """
        if changed is not None:
            return ordered(Found(file.path, file.size_bytes) for file in changed[0] if not is_hidden(file.path)), changed[1]
        seen, whole = await _look(self.node, self.principal, self.sandbox, MANY_FOLDERS)
        before = self._seen or {}
        return ordered(Found(path, now[0]) for path, now in seen.items() if before.get(path) != now), not whole


def seen(put: Iterable[Entry]) -> Seen:
    """Return the files of a sandbox that was made for the run: what was put into it. Pure."""
    return {entry.path: (entry.size, entry.modified_ns) for entry in put}


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """What became of the files that a run made.

    Args:
        records: Those that were kept.
        left: How many were found and not kept.
        more: Whether there may be others that were not found.
    """

    records: Sequence[FileRecord] = ()
    left: int = 0
    more: bool = False


async def collect(before: FileBaseline, changed: Changed | None = None, time_s: float | None = None) -> CollectedFiles:
    """Find the files that a run made, and keep them. The run has its result, whatever becomes of these: nothing is raised.

    Args:
        before: The files before the run. The quota of its principal bounds each file, as an upload.
        changed: Result of tracking; None if nothing was tracked.
        time_s: Seconds after which no more files are kept. Tracking has taken some of the client's time. None: ``COLLECT_S``.
    """
    store, principal, sandbox = before.node.file_store, before.principal, before.sandbox
    found: Sequence[Found] = ()
    more, gone = True, 0
    kept: dict[int, FileRecord] = {}
    turns = asyncio.Semaphore(AT_ONCE)

    spare_bytes = 0

    async def keep(number: int, file: Found) -> None:
        nonlocal gone, spare_bytes
        async with turns:
            # A guest's word of a size binds it: what a file has more than was said is taken from what no file was promised.
            more_bytes, spare_bytes = spare_bytes, 0
            try:
                kept[number] = record = await store.keep(principal, sandbox, file.path, max_bytes=file.size_bytes + more_bytes)
                more_bytes -= max(0, record.size_bytes - file.size_bytes)
            except NotFoundError:
                gone += 1  # a process that was left in the background has removed it
            except (ForbiddenError, InvalidRequestError):
                pass  # its user cannot read it, or it is no file any more
            except SandlotError as error:
                _log.warning("files.not_kept", sandbox=sandbox, code=str(error.code))
            finally:
                spare_bytes += more_bytes

    with suppress(TimeoutError):
        async with asyncio.timeout(COLLECT_S if time_s is None else time_s):
            try:
                found, more = await before.made(changed)
            except SandlotError as error:
                _log.warning("files.not_found", sandbox=sandbox, code=str(error.code))
            few = chosen(found)
            spare_bytes = KEPT_BYTES - sum(file.size_bytes for file in few)
            async with asyncio.TaskGroup() as group:
                for number, file in enumerate(few):
                    group.create_task(keep(number, file))
    return CollectedFiles([kept[number] for number in sorted(kept)], len(found) - len(kept) - gone, more)


def chosen(found: Sequence[Found]) -> list[Found]:
    """Those of some files, in their order, that are kept. Pure."""
    few: list[Found] = []
    left_bytes = KEPT_BYTES
    for file in found:
        if len(few) < KEPT_FILES and file.size_bytes <= left_bytes:
            few.append(file)
            left_bytes -= file.size_bytes
    return few


def ordered(found: Iterable[Found]) -> list[Found]:
    """Files in the order in which they are kept: folder by folder, those at the top first. Pure."""

    def rank(file: Found) -> tuple[int, int, str]:
        folder = next((number for number, folder in enumerate(FOLDERS) if file.path.startswith(f"{folder}/")), len(FOLDERS))
        return folder, file.path.count("/"), file.path

    return sorted(found, key=rank)


def is_hidden(path: str) -> bool:
    """Whether a path below one of the folders is nothing that a run is asked for. Pure."""
    return any(part.startswith(".") or part == _COMPILED for part in path.split("/"))


async def _look(node: Node, principal: Principal, sandbox: str, most_folders: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """The files below the folders, and whether these are all."""
    seen: dict[str, tuple[int, int]] = {}
    waiting = list(FOLDERS)
    whole = True
    left = MOST_ENTRIES
    while waiting and most_folders > 0 and left > 0:
        batch, waiting = waiting[:most_folders], waiting[most_folders:]
        most_folders -= len(batch)
        for folder, entries in zip(batch, await asyncio.gather(*(_entries(node, principal, sandbox, folder) for folder in batch)), strict=True):
            left -= len(entries)
            whole = whole and len(entries) < MOST_ENTRIES
            for entry in entries:
                path = posixpath.join(folder, entry.name)
                if is_hidden(entry.name):
                    continue
                if entry.kind == "file":
                    seen[path] = (entry.size, entry.modified_ns)
                elif entry.kind == "directory":
                    waiting.append(path)
    return seen, whole and not waiting


async def _entries(node: Node, principal: Principal, sandbox: str, folder: str) -> list[Entry]:
    """What is in a folder; nothing where there is none that the user may look into."""
    entries: list[Entry] = []
    pages, more = 0, True
    try:
        while more and len(entries) < MOST_ENTRIES:
            page = await node.files.list(principal, sandbox, folder, offset=len(entries))
            entries += page.entries
            pages += 1
            more = page.more and bool(page.entries) and pages < MOST_PAGES
    except (NotFoundError, ForbiddenError, InvalidRequestError):  # gone, closed, or no folder any more
        return []
    return entries
