"""The key file of versions before there was a store: taken over once, then put aside."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from sandlot.model.access import OwnerId, Quota
from sandlot.model.errors import ConflictError, ErrorCode, HostError
from sandlot.model.records import KeyRecord
from sandlot.model.storage import KeyTable

FILE: Final = "keys.json"
ASIDE: Final = "keys.json.imported"
_FORMAT: Final = 1
_log = structlog.get_logger("sandlot.server")


async def take_over(table: KeyTable, data_dir: Path) -> int:
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
    _log.info("keys.imported", count=len(records))
    return len(records)


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
