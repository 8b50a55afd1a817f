"""A state machine test of two correct ends: for any order of events, nothing is lost or invented, and all limits hold.

The model is what each owner asked for. Bytes move in pieces of any size, streams are opened by both, ended, reset, half
consumed; the host comes to rest and is killed at any byte and comes back.
"""

from __future__ import annotations

from collections import defaultdict, deque

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandlot.protocol import events, frames
from sandlot.protocol.connection import GUEST, HOST, MESSAGE_MAX_BYTES, Connection
from sandlot.protocol.errors import TooMany
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX, HOST_STREAMS_MAX
from sandlot.protocol.streams import WINDOW_BYTES
from tests.unit.protocol.ends import Ends

PATTERN = bytes(range(251)) * 5000
SIZES = st.one_of(st.integers(0, 300), st.integers(0, 300_000), st.sampled_from([1, 4084, 4085, 65524, 65525, WINDOW_BYTES]))
SIDES = st.sampled_from([HOST, GUEST])
RARELY = st.sampled_from([False] * 7 + [True])
Key = tuple[str, int]
"""Sender and stream."""


class Both(RuleBasedStateMachine):
    """Two correct ends, and the model of their streams."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.epoch = 0
        self.nonces = 0
        self.forget()

    def forget(self) -> None:
        """Forget the model of the earlier connection, because a new one begins."""
        self.epoch += 1
        self.sent: dict[Key, list[object]] = defaultdict(list)
        self.got: dict[Key, list[object]] = defaultdict(list)
        self.heads: dict[int, object] = {}
        self.opened: dict[int, object] = {}
        self.owed: dict[Key, deque[int]] = defaultdict(deque)
        self.resets: set[int] = set()
        self.resting = False

    def end(self, side: str) -> Connection:
        return self.ends.host if side == HOST else self.ends.guest

    def greet(self) -> None:
        self.nonces += 1
        nonce = self.nonces.to_bytes(16, "big")
        for _ in range(3):
            self.ends.host.hello(nonce)
            self.move()
            if self.ends.host.is_ready:
                break
        assert self.ends.host.is_ready
        assert self.ends.guest.is_ready
        assert [type(event) for event in self.ends.host_events[:1]] == [events.Ready]
        del self.ends.host_events[0]
        self.ends.guest_events[:] = [event for event in self.ends.guest_events if not isinstance(event, events.Greeted)]
        self.forget()

    def move(self) -> None:
        """Move all bytes that can move without returned credit."""
        self.ends.settle()

    def look(self) -> None:
        """Take the events of both ends, and check them against the model."""
        for side, happened in ((HOST, self.ends.host_events), (GUEST, self.ends.guest_events)):
            far = GUEST if side == HOST else HOST
            for event in happened:
                if isinstance(event, events.Opened):
                    assert event.stream not in self.opened
                    self.opened[event.stream] = event.head
                elif isinstance(event, events.Received):
                    self.got[far, event.stream].append(event.message)
                    self.owed[side, event.stream].append(event.credit)
                elif isinstance(event, events.Bytes):
                    self.got[far, event.stream].append((event.channel, event.data))
                    self.owed[side, event.stream].append(event.credit)
                elif isinstance(event, events.Ended):
                    self.got[far, event.stream].append("end")
                elif isinstance(event, events.WasReset):
                    assert event.stream in self.resets
                elif isinstance(event, events.QuiesceRequested):
                    self.resting = True
                else:
                    assert isinstance(event, events.Writable), f"{side} was told {type(event).__name__}"
            happened.clear()

    def joined(self, items: list[object]) -> list[object]:
        """Join consecutive DATA of one channel."""
        whole: list[object] = []
        for item in items:
            if isinstance(item, tuple) and whole and isinstance(whole[-1], tuple) and whole[-1][0] == item[0]:
                whole[-1] = (item[0], whole[-1][1] + item[1])
            else:
                whole.append(item)
        return whole

    # -- rules --------------------------------------------------------------------------------------------------------

    def some(self, which: int) -> int:
        """Return one of the open streams; 0 if there is none."""
        ids = sorted(self.heads)
        return ids[which % len(ids)] if ids else 0

    def may_send(self, side: str, id_: int) -> bool:
        """Return True if an end knows the stream and has not ended it."""
        knows = id_ in self.opened or (id_ % 2 == 1) == (side == HOST)
        return knows and self.end(side).is_open(id_) and "end" not in self.sent[side, id_]

    @initialize(asleep=st.booleans())
    def start(self, *, asleep: bool) -> None:
        self.ends = Ends(asleep=asleep)
        self.greet()

    @rule(side=SIDES, sizes=st.lists(SIZES, min_size=1, max_size=4))
    def open(self, side: str, sizes: list[int]) -> None:
        for size in sizes:
            head = {"epoch": self.epoch, "pad": PATTERN[: size if side == HOST else min(size, 60_000)]}
            try:
                self.heads[self.end(side).open(head)] = head
            except TooMany:
                return

    @rule(which=st.integers(0, 50), side=SIDES, sizes=st.lists(SIZES, min_size=1, max_size=5), channel=st.integers(0, 2), flood=st.booleans())
    def send_bytes(self, which: int, side: str, sizes: list[int], channel: int, *, flood: bool) -> None:
        id_ = self.some(which)
        for size in sizes * (50 if flood and sum(sizes) < 10_000 else 1):
            if size and self.may_send(side, id_):
                self.end(side).send_bytes(id_, channel, PATTERN[-size:])
                self.sent[side, id_].append((channel, PATTERN[-size:]))

    @rule(which=st.integers(0, 50), side=SIDES, sizes=st.lists(SIZES, min_size=1, max_size=3))
    def send(self, which: int, side: str, sizes: list[int]) -> None:
        id_ = self.some(which)
        for size in sizes:
            if self.may_send(side, id_):
                message = {"epoch": self.epoch, "pad": PATTERN[:size]}
                self.end(side).send(id_, message)
                self.sent[side, id_].append(message)

    @rule(which=st.integers(0, 50), side=SIDES)
    def finish(self, which: int, side: str) -> None:
        id_ = self.some(which)
        if self.may_send(side, id_):
            self.end(side).end(id_)
            self.sent[side, id_].append("end")

    @rule(which=st.integers(0, 50), side=SIDES)
    def reset(self, which: int, side: str) -> None:
        id_ = self.some(which)
        if self.end(side).is_open(id_):
            self.resets.add(id_)
            self.end(side).reset(id_, "conflict", "a test", path="/x")

    @rule(side=SIDES, share=st.integers(1, 4))
    def consume(self, side: str, share: int) -> None:
        self.look()
        for (owner, id_), owed in self.owed.items():
            if owner == side:
                for _ in range((len(owed) + share - 1) // share):
                    self.end(side).consumed(id_, owed.popleft())

    @rule(frames_=st.integers(1, 100), size=st.integers(1, 200_000), batch=st.sampled_from([1, frames.GUEST_FRAME_MAX]))
    def write(self, frames_: int, size: int, batch: int) -> None:
        self.ends.host_writes(frames_)
        self.ends.guest_writes(size, batch=batch)

    @rule(to_guest=st.integers(0, 200_000), to_host=st.integers(0, 200_000))
    def read(self, to_guest: int, to_host: int) -> None:
        self.ends.guest_reads(to_guest)
        self.ends.host_reads(to_host)
        self.look()

    @rule()
    def work(self) -> None:
        """Move bytes and consume events for some rounds."""
        for side in (HOST, GUEST):
            self.move()
            self.consume(side, 1)

    @rule(rarely=RARELY)
    def quiesce(self, *, rarely: bool) -> None:
        if not rarely:
            return
        self.look()
        self.ends.host.quiesce()
        while not self.resting:
            self.move()
            self.look()
        assert self.ends.guest.quiesced()
        self.move()
        assert isinstance(self.ends.host_events.pop(), events.Quiesced)
        assert self.ends.host.asleep
        assert self.ends.guest.asleep
        assert not self.ends.to_guest
        assert not self.ends.to_host
        assert not self.ends.half_written
        self.look()
        self.forget()
        self.ends.host.asleep = self.ends.guest.asleep = False

    @rule(rarely=RARELY, half_read=st.integers(0, 100_000), writes=st.integers(0, 20))
    def kill_host(self, half_read: int, writes: int, *, rarely: bool) -> None:
        if rarely:
            self.ends.host_writes(writes)
            self.ends.kill_host(half_read=half_read)
            self.greet()

    # -- what always holds ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_beyond_its_bounds(self) -> None:
        assert self.ends.host.streams <= HOST_STREAMS_MAX + GUEST_STREAMS_MAX
        for owed in self.owed.values():
            assert sum(list(owed)[:-1]) < WINDOW_BYTES
            assert all(credit <= MESSAGE_MAX_BYTES for credit in owed)

    @invariant()
    def what_came_is_what_was_sent_in_order(self) -> None:
        for id_, head in self.opened.items():
            assert head == self.heads[id_]
        for key, got in self.got.items():
            ours, theirs = self.joined(got), self.joined(self.sent[key])
            assert ours[:-1] == theirs[: len(ours) - 1]
            if ours:
                last, whole = ours[-1], theirs[len(ours) - 1]
                assert last == whole or (
                    isinstance(last, tuple) and isinstance(whole, tuple) and last[0] == whole[0] and whole[1].startswith(last[1])
                )

    def teardown(self) -> None:
        """Check that all data of all streams without a reset arrives when all events are consumed."""
        for _ in range(10_000):
            self.move()
            self.look()
            if not any(self.owed.values()):
                break
            for (side, id_), owed in self.owed.items():
                while owed:
                    self.end(side).consumed(id_, owed.popleft())
        self.what_came_is_what_was_sent_in_order()
        for id_, head in self.heads.items():
            assert id_ in self.resets or self.opened[id_] == head
        for (side, id_), sent in self.sent.items():
            assert id_ in self.resets or self.joined(self.got[side, id_]) == self.joined(sent)


Both.TestCase.settings = hypothesis.settings(max_examples=50, stateful_step_count=50, deadline=None)
TestBoth = Both.TestCase
