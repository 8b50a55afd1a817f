"""Events of one read, joined."""

from __future__ import annotations

from sandlot.protocol.events import Bytes, Ended, Event, Quiesced, join_bytes


def _shown(received: list[Event]) -> list[object]:
    return [(each.stream, each.channel, each.data, each.credit) if isinstance(each, Bytes) else each for each in join_bytes(received)]


def test_successive_bytes_of_a_channel_are_one_event() -> None:
    ended, quiesced = Ended(1), Quiesced()
    received = [Bytes(1, 0, b"a", 1), Bytes(1, 0, b"b", 2), Bytes(1, 0, b"c", 3), ended, Bytes(1, 0, b"d", 4), quiesced]
    assert _shown(received) == [(1, 0, b"abc", 6), ended, (1, 0, b"d", 4), quiesced]


def test_bytes_of_other_channels_and_streams_stay_in_order() -> None:
    received: list[Event] = [Bytes(1, 0, b"a", 1), Bytes(1, 1, b"b", 1), Bytes(1, 0, b"c", 1), Bytes(3, 0, b"d", 1), Bytes(3, 0, b"e", 1)]
    assert _shown(received) == [(1, 0, b"a", 1), (1, 1, b"b", 1), (1, 0, b"c", 1), (3, 0, b"de", 2)]


def test_nothing_stays_nothing() -> None:
    assert _shown([]) == []
