"""Find the files that an execution created or changed, by comparing folders before and after the execution.

A helper program inside the sandbox compares the folders (``guest/helpers/changes.py``).

Invariants:
- A file counts as changed if its inode, size, mtime or ctime differs. A file that was rewritten with the same content, or whose mtime was set
  back, is therefore reported too.
- At most 20,000 entries below each folder are compared, and at most 1,000 files are reported. A result says whether these limits may have hidden
  other files.
- Only regular files are reported, hidden files included. Symbolic links below the folders are not followed. A missing folder counts as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, InvalidRequestError, SandlotError
from sandlot.model.files import MAX_TRACKED_FOLDERS, ChangedFile
from sandlot.model.specs import MAX_PATH_BYTES, User
from sandlot.protocol.helpers import CHANGES, MAX_CHANGED_FILES

_MAX_NUMBER = (1 << 63) - 1

_log = structlog.get_logger("sandlot.core")


class ChangeTracker:
    """Compares folders with their state before an execution. Call :meth:`changed` or :meth:`report` once, or :meth:`close`."""

    __slots__ = ("_helper", "_sandbox")

    def __init__(self, sandbox: Sandbox, helper: GuestHelper) -> None:
        self._sandbox = sandbox
        self._helper = helper

    async def changed(self) -> tuple[Sequence[ChangedFile], bool]:
        """Return the created and changed files, sorted by path, and True if there may be more such files. Closes the tracker.

        Raises:
            ConflictError: A process in the sandbox ended the helper program, or the report of the program is invalid or too long.
        """
        found: list[ChangedFile] = []
        messages = 0
        try:
            async with self._sandbox.connection():
                await self._helper.tell({})
                async for message in self._helper:
                    found += parse_report(message)
                    messages += 1
                    if max(messages, len(found)) > MAX_CHANGED_FILES:
                        raise _invalid_report()
                result = await self._helper.result()
        finally:
            self.close()
        return found, result.get("more") is not False

    async def report(self) -> tuple[Sequence[ChangedFile], bool]:
        """Return the result of :meth:`changed`. If the comparison fails, return no files and True instead of raising a ``SandlotError``."""
        try:
            return await self.changed()
        except SandlotError as error:
            _log.info("changes.not_reported", sandbox=self._sandbox.id, code=str(error.code))
            return (), True

    def close(self) -> None:
        """End the helper program. Idempotent."""
        self._helper.close()


async def track(sandbox: Sandbox, folders: Sequence[str], user: User) -> ChangeTracker:
    """Record the state of folders before an execution.

    Args:
        sandbox: Sandbox that has the folders.
        folders: 1 to 16 paths.
        user: User that reads the folders. Files in folders that this user may not read are not reported.

    Raises:
        InvalidRequestError: ``folders`` has no path or more than 16 paths, or a path is invalid.
    """
    if not 0 < len(folders) <= MAX_TRACKED_FOLDERS:
        raise InvalidRequestError(f"The request names {len(folders)} folders; 1 to {MAX_TRACKED_FOLDERS} are allowed.", fields={"field": "folders"})
    helper = await helpers.start(sandbox, CHANGES, {"folders": [sandbox.absolute_path(folder) for folder in folders]}, user=user)
    try:
        async with sandbox.connection():
            await anext(helper, None)  # the first message reports that the helper program has recorded the state; a failure is raised here
    except BaseException:
        helper.close()
        raise
    return ChangeTracker(sandbox, helper)


def parse_report(message: Any) -> list[ChangedFile]:  # noqa: ANN401 - a guest sends this value, so it can be anything
    """Return the files of one message of the helper program.

    Raises:
        ConflictError: The message is invalid.
    """
    files = message.get("files") if isinstance(message, dict) else None
    if not isinstance(files, list) or len(files) > MAX_CHANGED_FILES:
        raise _invalid_report()
    return [_changed_file(file) for file in files]


def _changed_file(file: Any) -> ChangedFile:  # noqa: ANN401 - a guest sends this value, so it can be anything
    if not isinstance(file, dict):
        raise _invalid_report()
    path, created, size, modified_ns = (file.get(name) for name in ("path", "created", "size", "modified_ns"))
    if not isinstance(path, str) or len(path) > MAX_PATH_BYTES or not isinstance(created, bool):
        raise _invalid_report()
    if type(size) is not int or type(modified_ns) is not int or not 0 <= size <= _MAX_NUMBER or not 0 <= modified_ns <= _MAX_NUMBER:
        raise _invalid_report()
    return ChangedFile(path, created, size, modified_ns)


def _invalid_report() -> ConflictError:
    return ConflictError(
        "The sandbox sent an invalid report of changed files.",
        hint="Check the sandbox for a process that forges the report.",
    )
