"""Streams of the guest on a real connection: routing and ends."""

from __future__ import annotations

import pytest

from sandlot.guest.streams import Stream
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError
from tests.support.guest import JoinedLink


class Recorder:
    """A handler that records its events."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_bytes(self, _channel: int, data: bytes, _credit: int) -> None:
        self.seen.append(data)

    def on_end(self) -> None:
        self.seen.append("end")

    def on_writable(self) -> None:
        self.seen.append("writable")

    def on_gone(self) -> None:
        self.seen.append("gone")


def opened(link: JoinedLink) -> tuple[Stream, Recorder, int]:
    """Open a stream of the guest. Return the stream, its handler and its id."""
    recorder = Recorder()
    stream = link.router.open({"service": "s", "args": {}}, recorder)
    (event,) = link.move()
    assert isinstance(event, events.Opened)
    return stream, recorder, event.stream


def test_events_reach_the_handler_of_their_stream_only() -> None:
    link = JoinedLink()
    (_, first, first_id), (_, second, second_id) = opened(link), opened(link)

    link.host.send_bytes(first_id, schema.BODY, b"one")
    link.host.send_bytes(second_id, schema.BODY, b"two")
    link.move()

    assert (first.seen, second.seen) == ([b"one"], [b"two"])


def test_stream_that_both_sides_ended_is_not_reported_as_gone() -> None:
    link = JoinedLink()
    stream, recorder, id_ = opened(link)
    stream.end()
    link.host.end(id_)
    link.move()

    assert recorder.seen == ["end"]
    assert (stream.is_open, len(link.router)) == (False, 0)


def test_reset_by_the_host_is_the_last_event() -> None:
    link = JoinedLink()
    stream, recorder, id_ = opened(link)
    link.host.reset(id_, "internal", "It failed.")
    link.move()

    assert recorder.seen == ["gone"]
    stream.send({"event": "x"})
    stream.reset("conflict", "Late.")
    assert link.move() == []
    assert stream.room() == 0


def test_stream_of_an_earlier_connection_does_not_reach_a_new_stream_with_its_id() -> None:
    link = JoinedLink()
    old, recorder, old_id = opened(link)
    link.greet()
    assert recorder.seen == ["gone"]
    _, new, new_id = opened(link)
    assert new_id == old_id

    old.send_bytes(schema.BODY, b"late")
    old.end()

    assert link.move() == []
    assert new.seen == []


def test_guest_opens_no_stream_before_it_is_awake() -> None:
    link = JoinedLink()
    link.protocol.asleep = True

    with pytest.raises(ProtocolError):
        link.router.open({"service": "s", "args": {}}, Recorder())
    assert len(link.router) == 0
