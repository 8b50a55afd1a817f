"""Events and webhooks of the Sandbase API: payloads of webhooks and objects of lists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import rfc3339_ms
from sandlot.model.errors import InvalidRequestError
from sandlot.model.records import EventRecord, WebhookRecord, event_id

RESOURCE: Final = "sandbox"
"""Only resource of events; the vendor also has sessions and models."""

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
"""Event type of Sandlot -> event type of the vendor. Other events are not sent."""


def event(record: EventRecord) -> Mapping[str, Any]:
    """Return an event, as lists have it and as webhooks are sent it."""
    source = record.event
    return {
        "id": event_id(record),
        "resourceType": RESOURCE,
        "resourceID": source.sandbox,
        "type": TYPES.get(source.type, source.type),
        "sandboxID": source.sandbox,
        "data": dict(source.data),
        "createdAt": rfc3339_ms(source.at),
    }


def parse_types(types: Sequence[str]) -> list[str]:
    """Return the event types of a webhook, given the vendor's. No types mean all that the vendor has.

    Raises:
        InvalidRequestError: The vendor has no such event type.
    """
    for each in types:
        if each not in TYPES.values():
            raise InvalidRequestError(
                f"unknown event: {each[:64]}.", hint=f"Use one of: {', '.join(vendor_types(TYPES))}.", fields={"field": "events"}
            )
    return [type_ for type_, vendor_type in TYPES.items() if not types or vendor_type in types]


def vendor_types(types: Iterable[str]) -> list[str]:
    """Return the vendor's event types for those of a webhook, each once."""
    return list(dict.fromkeys(TYPES[type_] for type_ in types if type_ in TYPES))


def webhook_object(record: WebhookRecord) -> dict[str, Any]:
    """Return a webhook, without its secret."""
    types = vendor_types(record.events)
    return {
        "id": record.id,
        "name": record.name or "",
        "url": record.url,
        "resourceType": RESOURCE,
        "events": [] if set(types) == set(TYPES.values()) else types,
        "enabled": record.enabled,
        "createdAt": rfc3339_ms(record.created_at),
    }
