"""Which files a run created or changed: two looks at some folders, and what differs between them.

Laws:
- Exact: a file counts by inode, size, mtime and ctime, so that what was written with the same content, or had its times set back, counts too.
- Bounded: at most 20,000 entries are looked at below each folder and 1,000 files reported; ``more`` says that there may be others.
- Only regular files, hidden ones included; no link is followed below the folders. A folder that is not there yet counts as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import structlog

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.specs import MAX_PATH_BYTES, User, check_path

FOLDERS = 16
"""In one report."""
REPORTED = 1_000
_MOST = (1 << 63) - 1

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file that differs.

    Args:
        path: Absolute, inside the sandbox; begins with the folder as it was named.
        created: Whether it was not there before; otherwise it was, and is another now.
        size_bytes: Now.
        modified_ns: Now; since 1970, UTC.
    """

    path: str
    created: bool
    size_bytes: int
    modified_ns: int


class Mark:
    """The first moment. Ask for what changed once, or close it.

    Args:
        helper: Looks, and remembers.
    """

    __slots__ = ("_helper", "_sandbox")

    def __init__(self, sandbox: Sandbox, helper: GuestHelper) -> None:
        self._sandbox = sandbox
        self._helper = helper

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def changed(self) -> tuple[Sequence[ChangedFile], bool]:
        """What was created or changed since, by path, and whether there may be more. The mark is used up.

        Raises:
            ConflictError: What remembered the first moment is gone (something inside ended it), or tells nonsense, or more than it may.
            SandboxEndedError: The sandbox has ended.
        """
        found: list[ChangedFile] = []
        messages = 0
        try:
            async with self._sandbox.connection():
                await self._helper.tell({})
                async for told in self._helper:
                    found += parsed(told)
                    messages += 1
                    if max(messages, len(found)) > REPORTED:
                        raise _nonsense()
                result = await self._helper.result()
        finally:
            self.close()
        return found, result.get("more") is not False

    async def report(self) -> tuple[Sequence[ChangedFile], bool]:
        """What :meth:`changed` says; where it cannot, nothing is known: no files, and there may be some. Nothing is raised."""
        try:
            return await self.changed()
        except SandlotError as error:
            _log.info("changes.lost", sandbox=self._sandbox.id, code=str(error.code))
            return (), True

    def close(self) -> None:
        """Nobody asks any more. Idempotent."""
        self._helper.close()


async def mark(sandbox: Sandbox, folders: Sequence[str], user: User) -> Mark:
    """Look at some folders, to be asked later what changed in them.

    Args:
        sandbox: Where.
        folders: Absolute paths, 1 to 16.
        user: Who looks: what that user may not read is not seen.

    Raises:
        InvalidRequestError: No folders, too many, or one that is no path.
        SandlotError: It could not be looked (no room for a process), or the sandbox has ended.
    """
    if not 0 < len(folders) <= FOLDERS:
        raise InvalidRequestError(f"{len(folders)} folders were named; it must be from 1 to {FOLDERS}.", fields={"field": "folders"})
    for folder in folders:
        check_path(folder)
    helper = await helpers.start(sandbox, "changes", {"folders": list(folders)}, user=user)
    try:
        async with sandbox.connection():
            await anext(helper, None)  # one word, once it has looked; its error, where it could not, is raised
    except BaseException:
        helper.close()
        raise
    return Mark(sandbox, helper)


def parsed(told: Any) -> list[ChangedFile]:  # noqa: ANN401 - a guest's word
    """What one message of the program comes to.

    Raises:
        ConflictError: It is none.
    """
    files = told.get("files") if isinstance(told, dict) else None
    if not isinstance(files, list) or len(files) > REPORTED:
        raise _nonsense()
    return [_change(file) for file in files]


def _change(file: Any) -> ChangedFile:  # noqa: ANN401 - likewise
    if not isinstance(file, dict):
        raise _nonsense()
    path, created, size, modified_ns = (file.get(name) for name in ("path", "created", "size", "modified_ns"))
    if not isinstance(path, str) or len(path) > MAX_PATH_BYTES or not isinstance(created, bool):
        raise _nonsense()
    if type(size) is not int or type(modified_ns) is not int or not 0 <= size <= _MOST or not 0 <= modified_ns <= _MOST:
        raise _nonsense()
    return ChangedFile(path, created, size, modified_ns)


def _nonsense() -> ConflictError:
    return ConflictError("The sandbox's report of what changed cannot be read.", code=ErrorCode.CONFLICT, hint="Something inside forged it.")
