"""Messages on a socket: whole, in order, and never more than the guest takes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import pytest

from sandlot.guest.kernels.kernel_events import parse_event
from sandlot.protocol import connection, values
from tests.support.kernels import Peer
from tests.support.programs import decoded

DISPLAY: dict[str, Any] = {"event": "display", "cell": "c", "data": {"text/plain": "t"}, "main": True}
ERROR: dict[str, Any] = {"event": "error", "cell": "c", "name": "N", "value": "v", "traceback": ["N: v"]}


@pytest.fixture(scope="module")
def wire(shipped: Callable[[str], ModuleType]) -> ModuleType:
    return shipped("wire")


@pytest.fixture
def ends(wire: ModuleType) -> Generator[tuple[Any, Peer]]:
    ours, theirs = socket.socketpair()
    fd = theirs.detach()
    made = wire.Wire(fd)
    yield made, Peer(ours)
    made.close()
    ours.close()


def test_a_message_that_was_given_up_goes_on_before_the_next_one(ends: tuple[Any, Peer]) -> None:
    one, other = ends
    large = {"event": "output", "cell": "c", "channel": 1, "data": os.urandom(4_000_000)}
    one.put(large)
    assert not one.push(lambda: True)
    one.put(ERROR)
    heard: list[dict[str, Any]] = []
    listener = threading.Thread(target=lambda: heard.extend((other.receive(), other.receive())))
    listener.start()
    assert one.push(lambda: False)
    listener.join()
    assert heard == [large, ERROR]


def test_it_lies_high_where_few_close_it_and_is_not_inherited(wire: ModuleType, ends: tuple[Any, Peer]) -> None:
    fd = ends[0].fileno()
    assert fd >= wire.HIGH
    assert not os.get_inheritable(fd)


@pytest.mark.parametrize(
    "message",
    [
        {**DISPLAY, "data": {"text/plain": "x" * 9_000_000}},
        {**DISPLAY, "data": {f"a/{n}": "" for n in range(100_000)}},
        {**DISPLAY, "metadata": {"a": [[[1] * 64] * 64] * 64}},
        {**DISPLAY, "metadata": {"a": object()}},
        {**DISPLAY, "metadata": {"a": 1 << 64}},
        {**DISPLAY, "display_id": "x" * 9_000_000, "update": False},
        {**ERROR, "name": "x" * 9_000_000},
        {**ERROR, "value": "ä" * 9_000_000},
        {**ERROR, "traceback": ["line"] * 100_001},
        {**ERROR, "traceback": ["x" * 9_000_000]},
        {"event": "output", "cell": "c", "channel": 2, "data": b"x" * 9_000_000},
    ],
    ids=["text", "types", "values", "kind", "number", "id", "name", "value", "lines", "line", "output"],
)
def test_what_the_guest_would_not_take_is_told_as_far_as_it_fits(wire: ModuleType, message: dict[str, Any]) -> None:
    raw = wire.encoded(message)
    assert len(raw) < 1_000_000
    told = parse_event(*decoded(raw))
    assert (told["event"], told["cell"]) == (message["event"], "c")
    if message["event"] == "display":
        assert told["data"] == {"text/plain": wire.TOO_LARGE}
    elif message["event"] == "error":
        assert told["traceback"][-1] == wire.TOO_LARGE
        assert told["name"][:1] == message["name"][:1]


def test_what_the_guest_just_takes_goes_as_it_is(wire: ModuleType) -> None:
    assert wire.MESSAGE_MAX_BYTES == connection.MESSAGE_MAX_BYTES
    most = {**DISPLAY, "data": {"text/plain": "x" * (wire.MESSAGE_MAX_BYTES - len(values.encode(DISPLAY)) - 3)}}
    assert len(wire.encoded(most)) == values.HEAD_BYTES + wire.MESSAGE_MAX_BYTES
    assert decoded(wire.encoded(most)) == [most]
    many = {**DISPLAY, "metadata": {"a": [0] * (values.MAX_ITEMS - 10 - 2 - 2)}}
    assert decoded(wire.encoded(many)) == [many]
    with pytest.raises(values.BadValue):
        values.decode(values.encode({**DISPLAY, "metadata": {"a": [0] * (values.MAX_ITEMS - 13)}}))
