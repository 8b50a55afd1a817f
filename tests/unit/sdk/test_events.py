"""Events: lists, pages, and streams that are continued after a cut."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.model.errors import NotFoundError, UnavailableError
from sandlot.sdk import AsyncClient, Client
from sandlot.sdk._async import transport as async_transport
from sandlot.sdk._sync import transport as sync_transport
from tests.unit.sdk.scripted import Reply, Script, events, problem

AT = "2026-01-01T00:00:00Z"
RUN = {"id": "e1", "sandbox": "sb", "kind": "code", "status": "ok", "created_at": AT, "code": "1", "argv": None, "duration_s": 0.5}


def happened(sequence: int) -> tuple[str, dict[str, Any]]:
    return "sandbox.created", {"sequence": sequence, "type": "sandbox.created", "at": AT, "sandbox": "sb", "owner": "o", "data": {"a": 1}}


def position(after: int) -> tuple[str, dict[str, Any]]:
    return "position", {"after": after, "sequence": after}


STREAMS = (
    events(position(4), ids="sequence", cut=True),  # before anything happened
    events(position(4), happened(5), happened(6), ids="sequence", cut=True),
    problem(503, "service_unavailable", retryable=False),
    events(position(6), happened(7), ids="sequence"),
)
CONTINUED = [None, "4", "6", "6"]
"""Header ``Last-Event-ID`` of each request."""


def test_cut_event_stream_is_continued(service: Script, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_transport, "FOLLOW_WAIT_S", 0)
    service.say(*STREAMS)
    follower = client.events.follow()
    assert [next(follower).sequence for _ in range(3)] == [5, 6, 7]
    assert [seen.headers.get("last-event-id") for seen in service.seen] == CONTINUED


def test_cut_log_of_a_build_is_continued(service: Script, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_transport, "FOLLOW_WAIT_S", 0)
    lines = [("line", {"number": number, "at": AT, "level": "info", "text": f"line {number}", "step": "1"}) for number in (3, 4, 5)]
    service.say(events(*lines[:2], ids="number", cut=True), events(lines[2], ("end", {"id": "b1"}), ids="number"))
    assert [line.number for line in client.templates.follow_log("b1", after=2)] == [3, 4, 5]
    assert [(seen.query, seen.headers.get("last-event-id")) for seen in service.seen] == [("after=2", None), ("after=2", "4")]


async def test_async_cut_event_stream_is_continued(service: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "FOLLOW_WAIT_S", 0)
    service.say(*STREAMS)
    async with AsyncClient(url=service.url) as client:
        follower = client.events.follow()
        assert [(await anext(follower)).sequence for _ in range(3)] == [5, 6, 7]
    assert [seen.headers.get("last-event-id") for seen in service.seen] == CONTINUED


def test_event_stream_ends_after_too_many_failed_attempts(service: Script, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_transport, "FOLLOW_WAIT_S", 0)
    service.say(problem(503, "service_unavailable", retryable=False))
    with pytest.raises(UnavailableError):
        next(client.events.follow(after=3))
    assert len(service.seen) == sync_transport.FOLLOW_TRIES + 1


def test_events_are_listed_newest_first_and_iterated_oldest_first(service: Script, client: Client) -> None:
    pages = [{"events": [happened(5)[1], happened(6)[1]], "next_cursor": "c"}, {"events": [happened(7)[1]], "next_cursor": None}]
    newest = [{"events": [happened(7)[1], happened(6)[1]], "next_cursor": "6"}, {"events": [happened(5)[1]], "next_cursor": None}]
    service.say(*(Reply(200, page) for page in (*pages, *newest, newest[0])))
    assert [event.sequence for event in client.events.iter(after=4)] == [5, 6, 7]
    assert [event.sequence for event in client.events.list(sandbox="sb")] == [7, 6, 5]
    assert [event.sequence for event in client.events.list(limit=2)] == [7, 6]
    orders = ["order=desc" in seen.query for seen in service.seen]
    assert orders == [False, False, True, True, True]


def test_refused_event_stream_is_not_repeated(service: Script, client: Client) -> None:
    service.say(problem(404, "not_found"))
    with pytest.raises(NotFoundError):
        next(client.events.follow())
    assert len(service.seen) == 1
