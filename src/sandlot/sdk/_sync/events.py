# Made from src/sandlot/sdk/_async/events.py by scripts/unasync.py; change that file, not this one.
"""Events of sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

from sandlot.model.errors import UnavailableError
from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.events import EventInfo

AGAIN_S = 1.0
MAX_TRIES = 10
"""To go on with a stream that was cut, without anything new between them."""


class Events:
    """What happens to sandboxes: your own; with an operator's key everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, after: int = 0, sandbox: str | None = None, limit: int | None = None) -> list[EventInfo]:
        """What happened, oldest first, as far back as the service keeps it.

        Args:
            after: What has a larger number than that.
            sandbox: What happened to that one only.
            limit: So many at most; all of them where left out.
        """
        params = requests.omit_none(after=after, sandbox=sandbox)
        return backend.collected(self._transport.paginate("/v1/events", "events", EventInfo, params=params, limit=limit))

    def follow(self, *, after: int | None = None, sandbox: str | None = None) -> Iterator[EventInfo]:
        """What happens, as it happens, until you stop iterating. A stream that is cut goes on where it was.

        Args:
            after: First what has a larger number than that; None is what happens from now on.
            sandbox: What happens to that one only.

        Raises:
            UnavailableError: The service is gone, and does not come back.
        """
        seen, tries = after, 0
        while True:
            try:
                with self._transport.event_stream("GET", "/v1/events", params=requests.omit_none(after=seen, sandbox=sandbox)) as told:
                    for event in told:
                        tries = 0
                        if event.name == "position":
                            seen = int(event.data["after"])
                        else:
                            happened = structure(EventInfo, event.data)
                            seen = happened.sequence
                            yield happened
            except UnavailableError:
                tries += 1
                if tries > MAX_TRIES:
                    raise
            backend.sleep(AGAIN_S)
