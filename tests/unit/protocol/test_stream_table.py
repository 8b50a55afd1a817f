"""The table of open streams, and the rules for opening them."""

from __future__ import annotations

import pytest

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.send_queue import SendQueue
from sandlot.protocol.stream_table import STREAM_ID_MAX, StreamTable
from sandlot.protocol.streams import Assembly


def table(*, is_host: bool = True) -> tuple[StreamTable, SendQueue]:
    outbox = SendQueue(4084)
    return StreamTable(outbox, Assembly(1000), is_host=is_host), outbox


def opening(id_: int, *, more: bool = False) -> frames.Frame:
    return frames.Frame(frames.OPEN, id_, b"x", more=more)


def test_new_handshake_is_needed_when_all_ids_are_used() -> None:
    host, _ = table()
    host._last_local = STREAM_ID_MAX - 2  # noqa: SLF001 - two thousand million calls take too long
    host.check_open()
    assert host.open().id == STREAM_ID_MAX
    with pytest.raises(ProtocolError, match="a new handshake is needed"):
        host.check_open()
