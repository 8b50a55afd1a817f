"""Records of the network activity of a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandlot.egress.gateway.activity import ActivityLog
from sandlot.egress.policy.destinations import Destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.network_activity import MAX_RECORDS, MAX_TEXT_CHARS, RefusalReason


class Clock:
    """A clock that moves one second with each reading."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


def refusal(host: str, path: str = "") -> Refusal:
    return Refusal(RefusalReason.HOST_NOT_ALLOWED, host, 443, path=path)


def test_equal_refusals_are_one_record_and_ids_are_never_reused() -> None:
    log = ActivityLog(Clock())
    first = log.add_refusal(refusal("a"))
    assert first is not None
    assert log.add_refusal(refusal("a")) is None
    for number in range(MAX_RECORDS):
        log.add_refusal(refusal(f"h{number}"))
    again = log.add_refusal(refusal("a"))
    assert again is not None
    other = ActivityLog(Clock()).add_refusal(refusal("a"))
    assert other is not None
    assert other.id not in {first.id, again.id}, "a sandbox that wakes gets another log"
    kept = log.activity(0).refusals
    assert len(kept) == MAX_RECORDS
    assert len({each.id for each in kept} | {first.id}) == MAX_RECORDS + 1
    assert kept[-1] == again


def test_repeated_refusal_is_the_newest() -> None:
    log = ActivityLog(Clock())
    for host in ("a", "b", "a"):
        log.add_refusal(refusal(host))
    newest = log.activity(0).refusals[-1]
    assert (newest.host, newest.count) == ("a", 2)
    assert newest.last_at > newest.first_at


def test_long_texts_are_cut() -> None:
    log = ActivityLog(Clock())
    log.add_refusal(refusal("a", "/" * 100_000))
    log.add_refusal(refusal("a", "/" * 100_001))
    assert [(len(each.path), each.count) for each in log.activity(0).refusals] == [(MAX_TEXT_CHARS, 2)]


def test_destinations_and_bytes_are_counted() -> None:
    log = ActivityLog(Clock())
    early = log.add_connection(Destination("a", 443))
    for number in range(MAX_RECORDS):
        log.add_connection(Destination(f"h{number}", 443))
    log.add_bytes(early, sent=1, received=2)
    log.add_bytes(log.add_connection(Destination("h9", 443)), sent=3)
    activity = log.activity(7)
    assert len(activity.destinations) == MAX_RECORDS
    assert (activity.sent_bytes, activity.received_bytes, activity.open_connections) == (4, 2, 7)
    newest = activity.destinations[-1]
    assert (newest.host, newest.connections, newest.sent_bytes) == ("h9", 2, 3)
