"""Messages on the socket to the guest: complete, in order, and within the limits of the guest."""

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
def channel(shipped: Callable[[str], ModuleType]) -> ModuleType:
    return shipped("channel")


@pytest.fixture
def ends(channel: ModuleType) -> Generator[tuple[Any, Peer]]:
    ours, theirs = socket.socketpair()
    fd = theirs.detach()
    made = channel.Channel(fd)
    yield made, Peer(ours)
    made.close()
    ours.close()


def test_rest_of_an_interrupted_message_is_sent_before_the_next_message(ends: tuple[Any, Peer]) -> None:
    one, other = ends
    large = {"event": "output", "cell": "c", "channel": 1, "data": os.urandom(4_000_000)}
    one.queue(large)
    assert not one.send_queued(lambda: True)
    one.queue(ERROR)
    heard: list[dict[str, Any]] = []
    listener = threading.Thread(target=lambda: heard.extend((other.receive(), other.receive())))
    listener.start()
    assert one.send_queued(lambda: False)
    listener.join()
    assert heard == [large, ERROR]


def test_socket_has_a_high_descriptor_and_is_not_inherited(channel: ModuleType, ends: tuple[Any, Peer]) -> None:
    fd = ends[0].fileno()
    assert fd >= channel.MIN_DESCRIPTOR
    assert not os.get_inheritable(fd)


LONG = "x" * 9_000_000


@pytest.mark.parametrize(
    "message",
    [
        {**DISPLAY, "data": {"text/plain": LONG}},
        {**DISPLAY, "data": {f"a/{n}": "" for n in range(100_000)}},
        {**DISPLAY, "metadata": {"a": [[[1] * 64] * 64] * 64}},
        {**DISPLAY, "metadata": {"a": object()}},
        {**DISPLAY, "metadata": {"a": 1 << 64}},
        {**DISPLAY, "display_id": LONG, "update": False},
        {**ERROR, "name": LONG},
        {**ERROR, "value": "ä" * 9_000_000},
        {**ERROR, "traceback": ["line"] * 100_001},
        {**ERROR, "traceback": [LONG]},
        {"event": "output", "cell": "c", "channel": 2, "data": LONG.encode()},
    ],
    ids=["text", "types", "values", "kind", "number", "id", "name", "value", "lines", "line", "output"],
)
def test_message_that_the_guest_would_refuse_is_shortened(channel: ModuleType, message: dict[str, Any]) -> None:
    raw = channel.encode(message)
    assert len(raw) < 1_000_000
    event = parse_event(*decoded(raw))
    assert (event["event"], event["cell"]) == (message["event"], "c")
    if message["event"] == "display":
        assert event["data"] == {"text/plain": channel.TOO_LARGE}
    elif message["event"] == "error":
        assert event["traceback"][-1] == channel.TOO_LARGE
        assert event["name"][:1] == message["name"][:1]


def test_longest_message_that_the_guest_accepts_is_unchanged(channel: ModuleType) -> None:
    assert channel.MESSAGE_MAX_BYTES == connection.MESSAGE_MAX_BYTES
    most = {**DISPLAY, "data": {"text/plain": "x" * (channel.MESSAGE_MAX_BYTES - len(values.encode(DISPLAY)) - 3)}}
    assert len(channel.encode(most)) == values.HEAD_BYTES + channel.MESSAGE_MAX_BYTES
    assert decoded(channel.encode(most)) == [most]
    many = {**DISPLAY, "metadata": {"a": [0] * (values.MAX_ITEMS - 10 - 2 - 2)}}
    assert decoded(channel.encode(many)) == [many]
    with pytest.raises(values.EncodingError):
        values.decode(values.encode({**DISPLAY, "metadata": {"a": [0] * (values.MAX_ITEMS - 13)}}))
