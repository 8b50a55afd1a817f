# Generated from src/sandlot/sdk/_async/events.py by scripts/unasync.py; change that file.
"""Events of sandboxes and other objects, as ``client.events``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.events import EventInfo


class Events:
    """Events of the caller's objects; with an operator's key, of everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, sandbox: str | None = None, limit: int | None = None) -> builtins.list[EventInfo]:
        """List events, newest first.

        Args:
            sandbox: Only events of this sandbox, by its id.
            limit: Maximum number of events. Default: all that the service keeps.
        """
        params = requests.omit_none(order="desc", sandbox=sandbox)
        return backend.collected(self._transport.paginate("/v1/events", "events", EventInfo, params=params, limit=limit))

    def iter(self, *, after: int = 0, sandbox: str | None = None, limit: int | None = None) -> Iterator[EventInfo]:
        """Iterate over events, oldest first, and read them page by page.

        Args:
            after: Only events with a larger ``sequence``.
            sandbox: Only events of this sandbox, by its id.
            limit: Maximum number of events. Default: all that the service keeps.
        """
        params = requests.omit_none(after=after, sandbox=sandbox)
        return self._transport.paginate("/v1/events", "events", EventInfo, params=params, limit=limit)

    def follow(self, *, after: int | None = None, sandbox: str | None = None) -> Iterator[EventInfo]:
        """Iterate over events as they happen. A broken stream is continued without a gap.

        Args:
            after: Start with stored events that have a larger ``sequence``. Default: only events from now on.
            sandbox: Only events of this sandbox, by its id.

        Raises:
            UnavailableError: The service cannot be reached, also after several attempts.
        """
        messages = self._transport.follow("/v1/events", after=after, params={"sandbox": sandbox})
        try:
            for message in messages:
                yield structure(EventInfo, message.data)
        finally:
            messages.close()
