"""``filesystem.Filesystem``: folders that are watched, as a stream or by a watcher that is asked again and again.

Law: Where something was missed there is nothing in E2B's words that says so: the events that there are are told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.filesystem import entry_at
from sandlot.compat.e2b.envd.rpc_routes import ConnectRpcCall, Told
from sandlot.compat.e2b.envd.schemas import WatcherMessage, WatchMessage
from sandlot.model.files import FileEvent, FolderWatch

WITH_ENTRIES = "+entries"
"""What a watcher's id ends with whose events tell what is at their paths: so nothing has to be remembered here."""


async def watch_dir(call: ConnectRpcCall, asked: WatchMessage) -> Told:
    """Tell what happens in a folder, until it is gone."""
    path = translate.absolute(asked.path, call.user)
    watch = await call.node.watches.watch(call.principal, call.sandbox, path, recursive=asked.recursive, user=call.user)
    return Told(_told(call, watch, entries=asked.include_entry), watch.aclose, translate.WATCH_KEEPALIVE)


async def create(call: ConnectRpcCall, asked: WatchMessage) -> Mapping[str, Any]:
    """Watch a folder for who comes back."""
    path = translate.absolute(asked.path, call.user)
    watcher = await call.node.watches.create(call.principal, call.sandbox, path, recursive=asked.recursive, user=call.user)
    return {"watcherId": watcher.id + (WITH_ENTRIES if asked.include_entry else "")}


async def events(call: ConnectRpcCall, asked: WatcherMessage) -> Mapping[str, Any]:
    """What has happened since the last time."""
    id_ = asked.watcher_id.removesuffix(WITH_ENTRIES)
    root = next((watch.root for watch in await call.node.watches.list(call.principal, call.sandbox) if watch.id == id_), "")
    happened = await call.node.watches.take(call.principal, call.sandbox, id_)
    return {"events": [event async for event in _events(call, happened, root, entries=asked.watcher_id != id_)]}


async def remove(call: ConnectRpcCall, asked: WatcherMessage) -> Mapping[str, Any]:
    """Watch no more."""
    await call.node.watches.delete(call.principal, call.sandbox, asked.watcher_id.removesuffix(WITH_ENTRIES))
    return {}


async def _told(call: ConnectRpcCall, watch: FolderWatch, *, entries: bool) -> AsyncIterator[Mapping[str, Any]]:
    yield {"start": {}}
    async for event in watch:
        async for told in _events(call, (event,), watch.root, entries=entries):
            yield {"filesystem": told}


async def _events(call: ConnectRpcCall, happened: Iterable[FileEvent], root: str, *, entries: bool) -> AsyncIterator[dict[str, Any]]:
    for event in happened:
        for told in translate.happened(event, root):
            if entries and told["type"] in {translate.CREATE, translate.WRITE}:
                found = await entry_at(call, event.path)
                if found is not None:
                    told["entry"] = found
            yield told
