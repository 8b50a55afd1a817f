"""Keys where no service runs; and the key file of versions before there was a store: taken over once, then put aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import SystemClock
from sandlot.model.access import OwnerId, Quota
from sandlot.model.errors import ConflictError, ErrorCode, HostError
from sandlot.model.records import KeyRecord
from sandlot.model.repositories import KeyRepository
from sandlot.server import state
from sandlot.server.settings import Settings
from sandlot.store.store import open_store

FILE: Final = "keys.json"
ASIDE: Final = "keys.json.imported"
_Result = TypeVar("_Result")
_FORMAT: Final = 1


async def take_over(table: KeyRepository, data_dir: Path) -> int:
    """Put the keys of a data directory's key file into the store; how many. They get the default plan.

    Whatever it is interrupted by, the next one goes on: a key that is in the store already is left as it is.

    Raises:
        HostError: The file is there but cannot be read or understood.
    """
    file = data_dir / FILE
    try:
        text = await asyncio.to_thread(file.read_text, "utf-8")
    except FileNotFoundError:
        return 0
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from error
    records = parsed(text, file)
    for record in records:
        try:
            await table.add(record)
        except ConflictError:
            continue
    file.rename(file.with_name(ASIDE))
    return len(records)


async def with_keys(settings: Settings, work: Callable[[ApiKeys], Awaitable[_Result]]) -> _Result:
    """Do something with the keys of a service, on its store. One that runs sees it within a second.

    Args:
        settings: The service's.
        work: What to do.

    Raises:
        HostError: The data directory or the database cannot be used.
        UnavailableError: The database cannot be reached.
    """
    state.prepare(settings.data_dir)
    state.check_format(settings.data_dir)
    async with open_store(settings.database) as store:
        await take_over(store.keys, settings.data_dir)
        return await work(ApiKeys(store.keys, SystemClock()))


def parsed(text: str, file: Path) -> list[KeyRecord]:
    """The keys of a key file. Pure.

    Args:
        text: The file's content.
        file: For a message.

    Raises:
        HostError: It is none.
    """
    try:
        content = json.loads(text)
        entries = {_FORMAT: content["keys"]}[content["format"]]
        return [
            KeyRecord(
                id=OwnerId(str(entry["id"])),
                name=str(entry["name"]),
                sha256=bytes.fromhex(entry["sha256"]).hex(),
                operator=False,
                quota=Quota(),
                created_at=datetime.fromisoformat(entry["created_at"]),
            )
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> HostError:
    return HostError(
        f"The key file {file} of an earlier version cannot be read: {error}.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Restore it, or remove it and make new keys.",
    )
