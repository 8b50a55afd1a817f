"""Methods of ``filesystem.Filesystem``: files, directories and watches. Relative paths begin in the user's home directory.

Invariants:
- As at E2B, methods have the permissions of root, and created directories belong to the user.
- A listing is a walk by name: the entries of a directory follow the directory. Symbolic links are not followed.
- As at E2B, it is not an error if a removed path does not exist, and a move replaces its target.
- The events of a watch cannot state that events were lost; the known events are sent.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from sandlot.compat.common import iter_directory
from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.rpc_routes import ConnectRpcCall, RpcStream
from sandlot.compat.e2b.envd.schemas import ListDirMessage, MoveMessage, PathMessage, WatcherMessage, WatchMessage
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError
from sandlot.model.files import Entry, FileEvent, FolderWatch
from sandlot.model.specs import User

MAX_ENTRIES = 20_000
"""Maximum number of entries of one listing."""
WITH_ENTRIES: Final = "+entries"
"""Suffix of the ids of watchers whose events include the entries of their paths, so that the option need not be stored."""


async def stat(call: ConnectRpcCall, message: PathMessage) -> Mapping[str, Any]:
    """Return the entry of a path. A symbolic link is not followed."""
    return {"entry": await _describe(call, translate.absolute(message.path, call.home))}


async def list_dir(call: ConnectRpcCall, message: ListDirMessage) -> Mapping[str, Any]:
    """List a directory to a depth."""
    entries: list[Entry] = []
    await _walk(call, translate.absolute(message.path, call.home), max(1, message.depth), entries)
    return {"entries": [await _translate(call, entry) for entry in entries]}


async def make_dir(call: ConnectRpcCall, message: PathMessage) -> Mapping[str, Any]:
    """Create a directory and its parents, which belong to the user."""
    files, path, owner = call.node.files, translate.absolute(message.path, call.home), call.user
    try:
        created = await files.make_directory(call.principal, call.sandbox, path, user=User.ROOT, parents=False, owner=owner)
    except ConflictError as error:
        if error.code is ErrorCode.PATH_EXISTS and (await files.stat(call.principal, call.sandbox, path, user=User.ROOT)).kind != "directory":
            raise InvalidRequestError(f"{path!r} exists and is not a directory.", hint="Remove the file, or use another path.") from None
        raise
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
        created = await files.make_directory(call.principal, call.sandbox, path, user=User.ROOT, parents=True, owner=owner)
    return {"entry": translate.entry(created)}


async def move(call: ConnectRpcCall, message: MoveMessage) -> Mapping[str, Any]:
    """Move a file or directory. Parents of the target are created, and belong to the user."""
    files = call.node.files
    source, target = (translate.absolute(path, call.home) for path in (message.source, message.destination))
    try:
        await files.move(call.principal, call.sandbox, source, target, user=User.ROOT, overwrite=True)
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
        await files.stat(call.principal, call.sandbox, source, user=User.ROOT, follow=False)  # raises if the source does not exist
        parent = posixpath.dirname(target.rstrip("/")) or "/"
        await files.make_directory(call.principal, call.sandbox, parent, user=User.ROOT, parents=True, owner=call.user)
        await files.move(call.principal, call.sandbox, source, target, user=User.ROOT, overwrite=True)
    return {"entry": await _describe(call, target)}


async def remove(call: ConnectRpcCall, message: PathMessage) -> Mapping[str, Any]:
    """Delete a file, or a directory with its content."""
    path = translate.absolute(message.path, call.home)
    try:
        await call.node.files.delete(call.principal, call.sandbox, path, user=User.ROOT, recursive=True)
    except NotFoundError as error:
        if error.code is not ErrorCode.PATH_NOT_FOUND:
            raise
    return {}


async def _walk(call: ConnectRpcCall, path: str, depth: int, entries: list[Entry]) -> None:
    listing = iter_directory(call.node, call.principal, call.sandbox, path, user=User.ROOT, attributes=translate.METADATA_PREFIX)
    async for entry in listing:
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            raise LimitError(
                f"There are more than {MAX_ENTRIES} entries.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="List fewer directories at once, or run find in the sandbox.",
                fields={"max_entries": MAX_ENTRIES},
            )
        if entry.kind == "directory" and depth > 1:
            with suppress(NotFoundError):  # removed since its parent was read
                await _walk(call, entry.path, depth - 1, entries)


async def _describe(call: ConnectRpcCall, path: str) -> dict[str, Any]:
    """Return the entry of a path, with its metadata."""
    files = call.node.files
    return await _translate(
        call, await files.stat(call.principal, call.sandbox, path, user=User.ROOT, follow=False, attributes=translate.METADATA_PREFIX)
    )


async def _translate(call: ConnectRpcCall, entry: Entry) -> dict[str, Any]:
    target = None
    if entry.kind == "symlink":
        with suppress(InvalidRequestError, NotFoundError, ConflictError):  # the link leads nowhere
            target = await call.node.files.resolve(call.principal, call.sandbox, entry.path, user=User.ROOT)
    return translate.entry(entry, target)


# -- watches --------------------------------------------------------------------------------------------------------


async def watch_dir(call: ConnectRpcCall, message: WatchMessage) -> RpcStream:
    """Stream the events of a directory until the directory is removed."""
    path = translate.absolute(message.path, call.home)
    watch = await call.node.watches.watch(call.principal, call.sandbox, path, recursive=message.recursive, user=User.ROOT)
    return RpcStream(_watch_messages(call, watch, with_entries=message.include_entry), watch.aclose, translate.WATCH_KEEPALIVE)


async def create_watcher(call: ConnectRpcCall, message: WatchMessage) -> Mapping[str, Any]:
    """Create a watcher, whose events the client reads with ``GetWatcherEvents``."""
    path = translate.absolute(message.path, call.home)
    watcher = await call.node.watches.create(call.principal, call.sandbox, path, recursive=message.recursive, user=User.ROOT)
    return {"watcherId": watcher.id + (WITH_ENTRIES if message.include_entry else "")}


async def get_watcher_events(call: ConnectRpcCall, message: WatcherMessage) -> Mapping[str, Any]:
    """Return the events of a watcher since the last call."""
    id_ = message.watcher_id.removesuffix(WITH_ENTRIES)
    root = next((watch.root for watch in await call.node.watches.list(call.principal, call.sandbox) if watch.id == id_), "")
    events = await call.node.watches.take(call.principal, call.sandbox, id_)
    return {"events": [event async for event in _client_events(call, events, root, with_entries=message.watcher_id != id_)]}


async def remove_watcher(call: ConnectRpcCall, message: WatcherMessage) -> Mapping[str, Any]:
    """Delete a watcher."""
    await call.node.watches.delete(call.principal, call.sandbox, message.watcher_id.removesuffix(WITH_ENTRIES))
    return {}


async def _watch_messages(call: ConnectRpcCall, watch: FolderWatch, *, with_entries: bool) -> AsyncIterator[Mapping[str, Any]]:
    yield {"start": {}}
    async for event in watch:
        async for client_event in _client_events(call, (event,), watch.root, with_entries=with_entries):
            yield {"filesystem": client_event}


async def _client_events(call: ConnectRpcCall, events: Iterable[FileEvent], root: str, *, with_entries: bool) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        for client_event in translate.file_events(event, root):
            if with_entries and client_event["type"] in {translate.CREATE, translate.WRITE}:
                with suppress(SandlotError):  # removed
                    client_event["entry"] = await _describe(call, event.path)
            yield client_event
