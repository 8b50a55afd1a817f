"""What happens to sandboxes, as Sandbase tells it: in lists and to webhooks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import rfc3339_ms
from sandlot.model.errors import InvalidRequestError
from sandlot.model.records import EventRecord, WebhookRecord, event_id

RESOURCE: Final = "sandbox"
"""The only kind of thing that events are about here; sessions and models are the vendor's."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "sandbox.created": "sandbox.lifecycle.created",
        "sandbox.updated": "sandbox.lifecycle.updated",
        "sandbox.paused": "sandbox.lifecycle.paused",
        "sandbox.hibernated": "sandbox.lifecycle.paused",
        "sandbox.resumed": "sandbox.lifecycle.resumed",
        "sandbox.woken": "sandbox.lifecycle.resumed",
        "sandbox.ended": "sandbox.lifecycle.killed",
    }
)
"""Our word -> the vendor's. What is not here is not told."""


def event(record: EventRecord) -> Mapping[str, Any]:
    """An event as it is listed, and as a webhook is sent it."""
    happened = record.event
    return {
        "id": event_id(record),
        "resourceType": RESOURCE,
        "resourceID": happened.sandbox,
        "type": TYPES.get(happened.type, happened.type),
        "sandboxID": happened.sandbox,
        "data": dict(happened.data),
        "createdAt": rfc3339_ms(happened.at),
    }


def ours(types: Sequence[str]) -> list[str]:
    """The events that a webhook asks for by the vendor's words; none is all that the vendor has.

    Raises:
        InvalidRequestError: There is no such event.
    """
    for each in types:
        if each not in TYPES.values():
            raise InvalidRequestError(f"unknown event: {each[:64]}.", hint=f"There are: {', '.join(theirs(TYPES))}.", fields={"field": "events"})
    return [word for word, told in TYPES.items() if not types or told in types]


def theirs(events: Iterable[str]) -> list[str]:
    """The vendor's words for what a webhook is told, each once."""
    return list(dict.fromkeys(TYPES[event] for event in events if event in TYPES))


def webhook(record: WebhookRecord) -> dict[str, Any]:
    """A webhook, without its secret."""
    told = theirs(record.events)
    return {
        "id": record.id,
        "name": record.name or "",
        "url": record.url,
        "resourceType": RESOURCE,
        "events": [] if set(told) == set(TYPES.values()) else told,
        "enabled": record.enabled,
        "createdAt": rfc3339_ms(record.created_at),
    }
