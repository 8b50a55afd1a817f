"""The files that a run created or changed, found by comparison and kept in the file store.

Invariants:
- A file counts if it is new, or has another size or modification time than before the run. Files that were copied in for the run and not changed,
  links, hidden files and directories, and compiled Python files do not count.
- A small tree is listed from here, with one message for each directory. A large tree is tracked by a program inside, whose start takes as long as a
  few of these messages (``track`` of ``processes.run``).
- At most 50 files and 100 MiB of one run are kept, within eight seconds. The response counts the other files.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from sandlot.compat.common import iter_directory
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ForbiddenError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.files import ChangedFile, Entry
from sandlot.model.paths import WORKSPACE
from sandlot.model.records import FileRecord
from sandlot.model.specs import MIB

OUTPUT: Final = "/output"
"""Directory to which the vendor's plugin for models asks to write results; the vendor's SDK names ``/workspace``."""
DIRECTORIES: Final = (OUTPUT, WORKSPACE)
"""Directories in which runs leave files. Files of the first one are kept first."""

FEW_DIRECTORIES = 12
"""Maximum number of directories that are listed before a run. To list more takes longer than to start a program inside."""
MANY_DIRECTORIES = 250
"""Maximum number of directories that are listed after a run that was not tracked."""
MAX_LISTED: Final = 20_000
"""Maximum number of entries that are listed."""

RESPONSE_MARGIN_S: Final = 10.0
"""Seconds of the client's timeout that are left for the work after a run."""
COLLECT_S = 8.0
"""Seconds of :data:`RESPONSE_MARGIN_S` in which files are kept."""
CONCURRENCY: Final = 4
"""Number of files that are kept at the same time: most of the time of each is waiting for the host's disk."""
KEPT_FILES: Final = 50
KEPT_BYTES = 100 * MIB

_COMPILED: Final = "__pycache__"
_log = structlog.get_logger("sandlot.compat")

Snapshot = Mapping[str, tuple[int, int]]
"""Path -> size in bytes and modification time in nanoseconds."""
Changed = tuple[Sequence[ChangedFile], bool]
"""Files that a run has changed, and True if there may be more: the result of tracking."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a run created or changed."""

    path: str
    size_bytes: int


class FileBaseline:
    """Files of a sandbox before a run.

    Args:
        node: Node that has the sandbox.
        principal: Principal that runs the code.
        sandbox: Id of the sandbox.
        files: The files. None: the tree is too large to be listed, so the run has to track :attr:`tracked`.
    """

    def __init__(self, node: Node, principal: Principal, sandbox: str, files: Snapshot | None) -> None:
        self.node = node
        self.principal = principal
        self.sandbox = sandbox
        self._files = files

    @classmethod
    async def scan(cls, node: Node, principal: Principal, sandbox: str) -> FileBaseline:
        """List the files of a sandbox.

        Raises:
            SandlotError: The files could not be listed, or the sandbox has ended.
        """
        files, complete = await _scan(node, principal, sandbox, FEW_DIRECTORIES)
        return cls(node, principal, sandbox, files if complete else None)

    @property
    def tracked(self) -> Sequence[str]:
        """Directories that the run has to track; none if the files were listed."""
        return DIRECTORIES if self._files is None else ()

    async def find_changed(self, changed: Changed | None) -> tuple[Sequence[FoundFile], bool]:
        """Return the files that the run created or changed, in the order in which they are kept, and True if there may be more.

        Args:
            changed: Result of tracking. None: nothing was tracked.

        Raises:
            SandlotError: The files could not be listed, or the sandbox has ended.
        """
        if changed is not None:
            return ranked(FoundFile(file.path, file.size_bytes) for file in changed[0] if not is_hidden(file.path)), changed[1]
        files, complete = await _scan(self.node, self.principal, self.sandbox, MANY_DIRECTORIES)
        before = self._files or {}
        return ranked(FoundFile(path, now[0]) for path, now in files.items() if before.get(path) != now), not complete


def snapshot(entries: Iterable[Entry]) -> Snapshot:
    """Return the files of a sandbox that was created for the run: those that were copied into it. Pure."""
    return {entry.path: (entry.size, entry.modified_ns) for entry in entries}


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """Result of collecting the files of a run.

    Args:
        records: Files that were kept.
        omitted: Number of files that were found and not kept.
        incomplete: Whether there may be files that were not found.
    """

    records: Sequence[FileRecord] = ()
    omitted: int = 0
    incomplete: bool = False


async def collect(baseline: FileBaseline, changed: Changed | None = None, time_s: float | None = None) -> CollectedFiles:
    """Find the files that a run created or changed, and keep them. Errors are logged and not raised, because the run has its result.

    Args:
        baseline: Files before the run. The quota of its principal bounds each file, as it bounds an upload.
        changed: Result of tracking. None: nothing was tracked.
        time_s: Seconds after which no more files are kept; tracking has used some of the client's time. None: ``COLLECT_S``.
    """
    store, principal, sandbox = baseline.node.file_store, baseline.principal, baseline.sandbox
    found: Sequence[FoundFile] = ()
    incomplete, vanished = True, 0
    kept: dict[int, FileRecord] = {}
    slots = asyncio.Semaphore(CONCURRENCY)
    spare_bytes = 0

    async def keep(number: int, file: FoundFile) -> None:
        nonlocal vanished, spare_bytes
        async with slots:
            # The guest reported the size. If the file is larger, the excess is taken from bytes that no other file needs.
            excess_bytes, spare_bytes = spare_bytes, 0
            try:
                kept[number] = record = await store.keep(principal, sandbox, file.path, max_bytes=file.size_bytes + excess_bytes)
                excess_bytes -= max(0, record.size_bytes - file.size_bytes)
            except NotFoundError:
                vanished += 1  # removed by a background process
            except (ForbiddenError, InvalidRequestError):
                pass  # not readable by the user, or not a file any more
            except SandlotError as error:
                _log.warning("files.not_kept", sandbox=sandbox, code=str(error.code))
            finally:
                spare_bytes += excess_bytes

    with suppress(TimeoutError):
        async with asyncio.timeout(COLLECT_S if time_s is None else time_s):
            try:
                found, incomplete = await baseline.find_changed(changed)
            except SandlotError as error:
                _log.warning("files.not_found", sandbox=sandbox, code=str(error.code))
            selected = select_files(found)
            spare_bytes = KEPT_BYTES - sum(file.size_bytes for file in selected)
            async with asyncio.TaskGroup() as group:
                for number, file in enumerate(selected):
                    group.create_task(keep(number, file))
    return CollectedFiles([kept[number] for number in sorted(kept)], len(found) - len(kept) - vanished, incomplete)


def select_files(files: Sequence[FoundFile]) -> list[FoundFile]:
    """Return the files that are kept, in their order, within the limits of number and size. Pure."""
    selected: list[FoundFile] = []
    remaining_bytes = KEPT_BYTES
    for file in files:
        if len(selected) < KEPT_FILES and file.size_bytes <= remaining_bytes:
            selected.append(file)
            remaining_bytes -= file.size_bytes
    return selected


def ranked(files: Iterable[FoundFile]) -> list[FoundFile]:
    """Return files in the order in which they are kept: by directory of :data:`DIRECTORIES`, top-level files first. Pure."""

    def rank(file: FoundFile) -> tuple[int, int, str]:
        number = next((number for number, directory in enumerate(DIRECTORIES) if file.path.startswith(f"{directory}/")), len(DIRECTORIES))
        return number, file.path.count("/"), file.path

    return sorted(files, key=rank)


def is_hidden(path: str) -> bool:
    """Return whether a path is hidden or belongs to compiled Python files. Pure."""
    return any(part.startswith(".") or part == _COMPILED for part in path.split("/"))


async def _scan(node: Node, principal: Principal, sandbox: str, max_directories: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """Return the files below :data:`DIRECTORIES`, and True if these are all."""
    files: dict[str, tuple[int, int]] = {}
    waiting = list(DIRECTORIES)
    complete = True
    remaining = MAX_LISTED
    while waiting and max_directories > 0 and remaining > 0:
        batch, waiting = waiting[:max_directories], waiting[max_directories:]
        max_directories -= len(batch)
        for directory, entries in zip(batch, await asyncio.gather(*(_entries(node, principal, sandbox, path) for path in batch)), strict=True):
            remaining -= len(entries)
            complete = complete and len(entries) < MAX_LISTED
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                path = posixpath.join(directory, entry.name)
                if entry.kind == "file":
                    files[path] = (entry.size, entry.modified_ns)
                elif entry.kind == "directory":
                    waiting.append(path)
    return files, complete and not waiting


async def _entries(node: Node, principal: Principal, sandbox: str, directory: str) -> list[Entry]:
    """Return the first ``MAX_LISTED`` entries of a directory; none if the user cannot read it or it does not exist any more."""
    entries: list[Entry] = []
    with suppress(NotFoundError, ForbiddenError, InvalidRequestError):
        async for entry in iter_directory(node, principal, sandbox, directory):
            entries.append(entry)
            if len(entries) == MAX_LISTED:
                break
        return entries
    return []
