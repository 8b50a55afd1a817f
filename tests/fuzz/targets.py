"""Fuzz targets: whatever bytes a guest sends, the host raises one kind of error and keeps its bounds.

Each target takes bytes and returns nothing, as coverage-guided fuzzers want it. With atheris installed::

    python -m tests.fuzz.targets host -max_total_time=600 corpus/

``test_targets.py`` runs them for a moment in the ordinary tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from sandlot.link import parse
from sandlot.protocol import events, frames, schema, values
from sandlot.protocol.connection import GUEST, HOST, MESSAGE_MAX_BYTES, Connection
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX
from sandlot.protocol.streams import WINDOW_BYTES

NONCE = b"0123456789abcdef"
STREAMS = 4


def decoder(data: bytes) -> None:
    """The frame decoder, fed at once and in pieces: the same frames, or the same refusal."""
    for from_host in (True, False):
        whole, pieces = frames.Decoder(from_host=from_host), frames.Decoder(from_host=from_host)
        size = max(7, len(data) // 1000)
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert _decoded(whole, [data]) == _decoded(pieces, chunks)


def value(data: bytes) -> None:
    """The value decoder: what it takes it gives back, and encoding that again changes nothing."""
    try:
        decoded = values.decode(data)
    except values.EncodingError:
        return
    raw = values.encode(decoded)
    assert values.encode(values.decode(raw)) == raw


def host(data: bytes) -> None:
    """A greeted host with calls under way, whose owner consumes nothing."""
    guest, end = Connection(GUEST, asleep=False), Connection(HOST)
    end.hello(NONCE)
    _move(end, guest)
    end.receive(guest.next_batch())
    for _ in range(STREAMS):
        end.open({"call": "process.start"})
    _move(end, guest)
    end.reset(3, "cancelled", "no")
    held: dict[int, int] = {}
    try:
        for at in range(0, len(data), 4099):
            for event in end.receive(data[at : at + 4099]):
                if isinstance(event, events.Bytes | events.Received):
                    assert held.get(event.stream, 0) < WINDOW_BYTES
                    assert event.credit <= max(MESSAGE_MAX_BYTES, frames.GUEST_FRAME_MAX)
                    held[event.stream] = held.get(event.stream, 0) + event.credit
                elif isinstance(event, events.Opened):
                    end.reset(event.stream, "unknown_service", "no")
            assert end.streams <= STREAMS + GUEST_STREAMS_MAX
    except ProtocolError:
        assert end.streams == 0
        assert end.next_frame() is None
        return
    queued = 0
    while end.next_frame() is not None:
        queued += 1
    assert queued <= STREAMS + GUEST_STREAMS_MAX + 2


def guest(data: bytes) -> None:
    """A guest, whatever its host says: no error, and the next three HELLOs find it."""
    end = Connection(GUEST)
    end.receive(b"")
    for at in range(0, len(data), 4099):
        end.receive(data[at : at + 4099])
        end.quiesced()
        end.next_batch()
    new = Connection(HOST)
    for _ in range(3):
        new.hello(NONCE)
        _move(new, end)
        new.receive(end.next_batch())
        if new.is_ready:
            break
    assert new.is_ready
    assert end.is_ready


def reply(data: bytes) -> None:
    """Everything that is made of a guest's words."""
    try:
        words = values.decode(data)
    except values.EncodingError:
        return
    for make in (
        parse.entry,
        parse.listing,
        parse.processes,
        parse.cell_result,
        parse.display,
        parse.cell_error,
        parse.kernels,
        parse.guest_info,
        parse.nothing,
        parse.running,
        parse.removed,
        parse.python,
    ):
        try:
            make(words)
        except ProtocolError:
            continue
    for call in schema.CALLS.values():
        schema.validate_fields(call["args"], words)
    if type(words) is dict and type(words.get("code")) is str and type(words.get("message")) is str:
        assert len(parse.reset_error(words).message) <= schema.LIMITS["text"]


def _move(end: Connection, guest_: Connection) -> None:
    while (frame := end.next_frame()) is not None:
        guest_.receive(frame)


def _decoded(decoder_: frames.Decoder, chunks: list[bytes]) -> tuple[list[tuple[int, int, int, bytes, bool]], str]:
    found = []
    try:
        for chunk in chunks:
            decoder_.feed(chunk)
            while (frame := decoder_.next()) is not None:
                found.append((frame.type, frame.stream, frame.channel, frame.payload, frame.more))
    except ProtocolError as error:
        return found, str(error)
    return found, ""


TARGETS: Mapping[str, Callable[[bytes], None]] = {"decoder": decoder, "value": value, "host": host, "guest": guest, "reply": reply}


if __name__ == "__main__":
    import atheris  # type: ignore[import-untyped]

    target = TARGETS[sys.argv.pop(1)]
    atheris.instrument_all()
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
