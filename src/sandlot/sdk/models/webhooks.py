"""Webhooks and their delivery state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """A webhook, and how it fares.

    Args:
        id: Its id.
        url: Where events are sent.
        events: The types of events that it is told; empty is all.
        name: A word for people; None is none.
        created_at: When it was made.
        delivered: Events that it has taken.
        given_up: Events that were tried too often.
        tries: How often the next one was sent in vain so far.
        next_at: When that is sent again; None where nothing failed.
        last_at: When it was called last; None where it never was.
        last_error: Why that failed; empty where it did not.
        secret: What ``X-Signature`` is made with; told once, by ``client.webhooks.create``, and empty elsewhere.
        enabled: Whether it is told anything now.
    """

    id: str
    url: str
    events: tuple[str, ...] = ()
    name: str | None = None
    created_at: datetime | None = None
    delivered: int = 0
    given_up: int = 0
    tries: int = 0
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_error: str = ""
    secret: str = field(default="", repr=False)
    enabled: bool = True

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            url=str(raw["url"]),
            events=tuple(raw.get("events") or ()),
            name=raw.get("name"),
            created_at=_moment(raw.get("created_at")),
            delivered=int(raw.get("delivered", 0)),
            given_up=int(raw.get("given_up", 0)),
            tries=int(raw.get("tries", 0)),
            next_at=_moment(raw.get("next_at")),
            last_at=_moment(raw.get("last_at")),
            last_error=str(raw.get("last_error", "")),
            secret=str(raw.get("secret", "")),
            enabled=bool(raw.get("enabled", True)),
        )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
