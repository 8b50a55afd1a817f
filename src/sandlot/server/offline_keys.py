"""Access to the API keys of a data directory, for commands that run while no service does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import SystemClock
from sandlot.server import data_dir
from sandlot.server.settings import Settings
from sandlot.store.store import open_store

_Result = TypeVar("_Result")


async def with_keys(settings: Settings, work: Callable[[ApiKeys], Awaitable[_Result]]) -> _Result:
    """Open the store of a service and do some work with its API keys. A running service notices a change within a second.

    Args:
        settings: Settings of the service.
        work: Function that is called with the keys; its result is returned.

    Raises:
        HostError: The data directory or the database cannot be used.
        UnavailableError: The database cannot be reached.
    """
    data_dir.prepare_data_dir(settings.data_dir)
    data_dir.check_format(settings.data_dir)
    async with open_store(settings.database) as store:
        return await work(ApiKeys(store.keys, SystemClock()))
