"""Which streams are open, which were, and which may be opened."""

from __future__ import annotations

import pytest

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError, TooMany
from sandlot.protocol.outbox import Outbox
from sandlot.protocol.streams import Assembly, Outgoing
from sandlot.protocol.table import GUEST_STREAMS_MAX, HOST_STREAMS_MAX, STREAM_ID_MAX, Table


def table(*, is_host: bool = True) -> tuple[Table, Outbox]:
    outbox = Outbox(4084)
    return Table(outbox, Assembly(1000), is_host=is_host), outbox


def opening(id_: int, *, more: bool = False) -> frames.Frame:
    return frames.Frame(frames.OPEN, id_, b"x", more=more)


def test_odd_ids_are_the_hosts_and_even_ones_the_guests_and_both_rise() -> None:
    host, _ = table()
    guest, _ = table(is_host=False)
    assert [host.open().id for _ in range(3)] == [1, 3, 5]
    assert [guest.open().id for _ in range(3)] == [2, 4, 6]
    host.opened(opening(2))
    host.opened(opening(40))
    for wrong in (1, 7, 2, 40, 38):
        with pytest.raises(ProtocolError, match="cannot be opened"):
            host.opened(opening(wrong))


def test_both_ends_count_streams_of_both() -> None:
    host, outbox = table()
    for number in range(GUEST_STREAMS_MAX):
        host.opened(opening(2 + 2 * number))
    with pytest.raises(ProtocolError, match="more streams"):
        host.opened(opening(2 + 2 * GUEST_STREAMS_MAX))
    stream = host.streams[2]
    host.drop(stream)
    outbox.put_reset(stream, "conflict", "no", {})
    with pytest.raises(ProtocolError, match="more streams"):
        host.opened(opening(2 + 2 * GUEST_STREAMS_MAX))
    outbox.next()
    host.opened(opening(2 + 2 * GUEST_STREAMS_MAX))


def test_a_host_opens_no_more_than_the_guest_takes() -> None:
    host, outbox = table()
    for _ in range(HOST_STREAMS_MAX):
        host.check_open()
        outbox.put(host.open(), Outgoing(frames.OPEN, b"x"))
    with pytest.raises(TooMany):
        host.check_open()
    host.drop(host.streams[1])
    host.check_open()


def test_when_all_ids_are_used_up_a_new_greeting_is_needed() -> None:
    host, _ = table()
    host._last_local = STREAM_ID_MAX - 2  # noqa: SLF001 - two thousand million calls take too long
    host.check_open()
    assert host.open().id == STREAM_ID_MAX
    with pytest.raises(ProtocolError, match="greet anew"):
        host.check_open()


@pytest.mark.parametrize("type_", [frames.DATA, frames.MESSAGE, frames.END, frames.RESET, frames.CREDIT])
def test_frames_on_streams_that_are_over_are_ignored_and_on_unknown_ones_are_not(type_: int) -> None:
    host, _ = table()
    host.opened(opening(2))
    host.drop(host.streams[2])
    stream = host.open()
    stream.is_known = True
    host.drop(stream)
    for past in (1, 2):
        assert host.find(frames.Frame(type_, past, b"x")) is None
    for future in (3, 4, 0xFFFFFFFF):
        with pytest.raises(ProtocolError, match="nobody opened"):
            host.find(frames.Frame(type_, future, b"x"))


def test_nothing_is_answered_before_it_was_asked() -> None:
    host, _ = table()
    host.open()
    with pytest.raises(ProtocolError, match="not open yet"):
        host.find(frames.Frame(frames.DATA, 1, b"x"))


def test_after_an_end_only_credit_and_reset_may_come() -> None:
    host, _ = table()
    host.opened(opening(2))
    host.streams[2].remote_ended = True
    for type_ in (frames.CREDIT, frames.RESET):
        assert host.find(frames.Frame(type_, 2, b"x")) is host.streams[2]
    for type_ in (frames.DATA, frames.MESSAGE, frames.END):
        with pytest.raises(ProtocolError, match="after its END"):
            host.find(frames.Frame(type_, 2, b"x"))


def test_only_a_host_opens_in_pieces() -> None:
    guest, _ = table(is_host=False)
    guest.opened(opening(1, more=True))
    host, _ = table()
    with pytest.raises(ProtocolError, match="in pieces"):
        host.opened(opening(2, more=True))


def test_a_stream_is_over_when_both_have_ended() -> None:
    host, _ = table()
    stream = host.open()
    for stream.sent_end, stream.remote_ended, is_open in ((True, False, True), (False, True, True), (True, True, False)):
        host.drop_if_over(stream)
        assert (stream.id in host.streams) == is_open
