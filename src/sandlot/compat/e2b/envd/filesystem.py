"""``filesystem.Filesystem``: what is there, made, moved and removed. Paths are relative to the user's home where they are not absolute.

Laws:
- A folder is listed in the order of a walk by name, what is in a folder right after it; no link is followed.
- What is removed may be gone already, and what is moved replaces what is there, as with E2B.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sandlot.compat.common import iter_directory
from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.rpc_routes import ConnectRpcCall
from sandlot.compat.e2b.envd.schemas import ListDirMessage, MoveMessage, PathMessage
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError
from sandlot.model.files import Entry

ENTRIES_MOST = 20_000
"""That one list tells of."""


async def stat(call: ConnectRpcCall, asked: PathMessage) -> Mapping[str, Any]:
    """What is at a path; a link is told as one."""
    found = await call.node.files.stat(call.principal, call.sandbox, translate.absolute(asked.path, call.user), user=call.user, follow=False)
    return {"entry": translate.entry(found)}


async def list_dir(call: ConnectRpcCall, asked: ListDirMessage) -> Mapping[str, Any]:
    """What is in a folder, and so many folders deep."""
    path = translate.absolute(asked.path, call.user)
    found: list[Entry] = []
    await _walk(call, path, max(1, asked.depth), found)
    return {"entries": [translate.entry(entry) for entry in found]}


async def make_dir(call: ConnectRpcCall, asked: PathMessage) -> Mapping[str, Any]:
    """Make a folder, and those above it."""
    path, user = translate.absolute(asked.path, call.user), call.user
    try:
        made = await call.node.files.make_directory(call.principal, call.sandbox, path, user=user, parents=False)
    except ConflictError as error:
        if error.code is ErrorCode.PATH_EXISTS and (await call.node.files.stat(call.principal, call.sandbox, path, user=user)).kind != "directory":
            raise InvalidRequestError(f"{path!r} is there already, and is no folder.", hint="Remove it first, or use another name.") from None
        raise
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
        made = await call.node.files.make_directory(call.principal, call.sandbox, path, user=user, parents=True)
    return {"entry": translate.entry(made)}


async def move(call: ConnectRpcCall, asked: MoveMessage) -> Mapping[str, Any]:
    """Move or rename; the folders above the new place are made."""
    source, target = (translate.absolute(path, call.user) for path in (asked.source, asked.destination))
    try:
        moved = await call.node.files.move(call.principal, call.sandbox, source, target, user=call.user, overwrite=True)
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
        # Raises where it is the source that is not there.
        await call.node.files.stat(call.principal, call.sandbox, source, user=call.user, follow=False)
        await call.node.files.make_directory(call.principal, call.sandbox, posixpath.dirname(target.rstrip("/")) or "/", user=call.user, parents=True)
        moved = await call.node.files.move(call.principal, call.sandbox, source, target, user=call.user, overwrite=True)
    return {"entry": translate.entry(moved)}


async def remove(call: ConnectRpcCall, asked: PathMessage) -> Mapping[str, Any]:
    """Remove a file, or a folder with all that is in it."""
    try:
        await call.node.files.delete(call.principal, call.sandbox, translate.absolute(asked.path, call.user), user=call.user, recursive=True)
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
    return {}


async def entry_at(call: ConnectRpcCall, path: str) -> Mapping[str, Any] | None:
    """What is at a path, where there is something that may be seen."""
    with suppress(SandlotError):
        return translate.entry(await call.node.files.stat(call.principal, call.sandbox, path, user=call.user, follow=False))
    return None


async def _walk(call: ConnectRpcCall, path: str, depth: int, found: list[Entry]) -> None:
    async for entry in iter_directory(call.node, call.principal, call.sandbox, path, user=call.user):
        found.append(entry)
        if len(found) > ENTRIES_MOST:
            raise LimitError(
                f"There are more than {ENTRIES_MOST} entries.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="List fewer folders at once, or run find in the sandbox.",
                fields={"max_entries": ENTRIES_MOST},
            )
        if entry.kind == "directory" and depth > 1:
            with suppress(NotFoundError):  # gone since its parent was read
                await _walk(call, entry.path, depth - 1, found)
