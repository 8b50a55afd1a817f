"""The guest's dispatcher against a real connection: checked arguments, remembered ids, streams that come and go."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from sandlot.guest.calls import NO_STREAM, REMEMBERED_CALLS, Call, Calls, Refusal
from sandlot.guest.flow.wire import Wire
from sandlot.protocol import events
from sandlot.protocol.connection import GUEST, HOST, Connection


class Pair:
    """A host and a guest with a dispatcher, joined without I/O; what it does is ``done``, ``waiting`` or refused."""

    def __init__(self) -> None:
        self.host = Connection(HOST)
        self.connection = Connection(GUEST, asleep=False)
        self.done: list[dict[str, Any]] = []
        self.waiting: list[Call] = []
        self.calls = Calls({"guest.deadline": self._count, "process.signal": self.waiting.append, "file.stat": self._fail})
        self.calls.wire = cast("Wire", self)
        self.greet()

    def _count(self, call: Call) -> None:
        self.done.append(call.args)
        call.result()

    def _fail(self, call: Call) -> None:
        if call.args["path"] == "/refused":
            raise Refusal("path_not_found", "No.", "Look again.")
        raise RuntimeError("a defect")

    def flush_soon(self) -> None:
        """What is queued is moved by :meth:`move`."""

    def greet(self) -> None:
        self.host.hello(os.urandom(16))
        self.move()

    def move(self) -> list[events.Event]:
        """Move everything there is, both ways; what the host was told."""
        told: list[events.Event] = []
        moved = True
        while moved:
            moved = False
            while (frame := self.host.next_frame()) is not None:
                moved = True
                for event in self.connection.receive(frame):
                    self.calls.handle(event)
            while batch := self.connection.next_batch():
                moved = True
                told += self.host.receive(batch)
        return told

    def ask(self, name: object, args: object, id_: object = None) -> tuple[int, list[events.Event]]:
        stream = self.host.open({"call": name, "id": os.urandom(16) if id_ is None else id_, "args": args})
        self.host.end(stream)
        return stream, self.move()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def answer(told: list[events.Event]) -> object:
    """The result of the one call that was answered, or the code that it was refused with."""
    answers = [event.message["result"] for event in told if isinstance(event, events.Received)]
    answers += [event.reason["code"] for event in told if isinstance(event, events.WasReset)]
    assert len(answers) == 1, told
    return answers[0]


@pytest.mark.parametrize(
    "name,args,id_,code",
    [
        ("no.such.call", {}, None, "unsupported"),
        ("guest.info", {}, None, "unsupported"),  # of the schema, but nobody here does it
        ("guest.deadline", {"deadline_s": "soon"}, None, "invalid_request"),
        ("guest.deadline", {"else": 1}, None, "invalid_request"),
        ("guest.deadline", [], None, "invalid_request"),
        (7, {}, None, "invalid_request"),
        ("guest.deadline", {}, b"short", "invalid_request"),
        ("guest.deadline", {}, "text-of-16-chars", "invalid_request"),
        ("file.stat", {"path": "/refused", "user": "user", "follow": True}, None, "path_not_found"),
        ("file.stat", {"path": "/defect", "user": "user", "follow": True}, None, "internal"),
    ],
)
def test_what_cannot_be_done_is_refused_and_the_next_call_works(pair: Pair, name: object, args: object, id_: object, code: str) -> None:
    assert answer(pair.ask(name, args, id_)[1]) == code
    assert not pair.done
    assert answer(pair.ask("guest.deadline", {})[1]) == {}


def test_the_same_id_is_done_once(pair: Pair) -> None:
    id_ = os.urandom(16)
    for _ in range(3):
        assert answer(pair.ask("guest.deadline", {}, id_)[1]) == {}
        pair.greet()
    assert len(pair.done) == 1
    assert answer(pair.ask("process.signal", {"process": "x", "signal": 9}, id_)[1]) == "conflict"
    pair.calls.forget_all()
    assert answer(pair.ask("guest.deadline", {}, id_)[1]) == {}
    assert len(pair.done) == 2


def test_the_memory_is_bounded(pair: Pair) -> None:
    first = os.urandom(16)
    pair.ask("guest.deadline", {}, first)
    for _ in range(REMEMBERED_CALLS):
        pair.ask("guest.deadline", {})
    pair.ask("guest.deadline", {}, first)
    assert len(pair.done) == REMEMBERED_CALLS + 2, "the oldest was forgotten"


def test_a_call_under_way_answers_on_the_stream_that_asked_last(pair: Pair) -> None:
    id_ = os.urandom(16)
    args = {"process": "x", "signal": 9}
    pair.ask("process.signal", args, id_)
    pair.greet()
    assert pair.waiting[0].stream == NO_STREAM
    stream, told = pair.ask("process.signal", args, id_)
    assert not told
    assert len(pair.waiting) == 1, "it was not begun again"
    pair.waiting[0].result(running=True)
    told = pair.move()
    assert answer(told) == {"running": True}
    assert {event.stream for event in told if isinstance(event, events.StreamEvent)} == {stream}


def test_an_answer_to_a_dead_connection_reaches_nobody(pair: Pair) -> None:
    pair.ask("process.signal", {"process": "x", "signal": 9})
    pair.greet()
    pair.ask("process.signal", {"process": "y", "signal": 9})  # the stream has the number that the dead one had
    pair.waiting[0].result(running=False)
    assert not pair.move()
    pair.waiting[1].result(running=True)
    assert answer(pair.move()) == {"running": True}


def test_a_cancelled_call_is_told_so_once(pair: Pair) -> None:
    gone: list[str] = []
    stream, _ = pair.ask("process.signal", {"process": "x", "signal": 9})
    pair.waiting[0].on_gone = lambda: gone.append("gone")
    pair.host.reset(stream, "cancelled", "The client went away.")
    pair.move()
    pair.greet()
    assert gone == ["gone"]
    assert pair.calls.open_streams == 0


def test_what_was_done_and_dropped_is_refused_not_done_again(pair: Pair) -> None:
    id_ = os.urandom(16)
    pair.calls.past(id_.hex(), "guest.deadline")
    assert answer(pair.ask("guest.deadline", {}, id_)[1]) == "process_not_found"
    assert not pair.done


def test_what_starts_something_waits_while_it_is_held_and_nothing_else_does() -> None:
    pair = Pair()
    begun: list[Call] = []

    def begin(call: Call) -> None:
        begun.append(call)
        call.result()

    pair.calls.handlers.update({"process.start": begin, "kernel.create": begin})
    start: dict[str, Any] = {"argv": ["true"], "env": {}, "cwd": None, "user": "user", "stdin": False, "timeout_s": None, "attach": False}
    pair.calls.hold_starts()
    pair.calls.hold_starts()
    stream, told = pair.ask("process.start", start)
    given_up, _ = pair.ask("process.start", start)
    context: dict[str, Any] = {"kernel": "a", "language": "python", "cwd": None, "env": {}}
    lost, _ = pair.ask("kernel.create", context, b"k" * 16)
    assert (begun, told) == ([], [])
    _, told = pair.ask("guest.deadline", {"deadline_s": None})
    assert len(pair.done) == 1
    for each in (given_up, lost):
        pair.host.reset(each, "conflict", "Nobody waits.")
    pair.move()
    pair.calls.release_starts()
    told = pair.move()
    assert [call.stream for call in begun] == [stream]
    assert any(isinstance(event, events.Received) and event.stream == stream for event in told)
    pair.ask("kernel.create", context, b"k" * 16)
    assert len(begun) == 2, "asked again it is done"
    pair.calls.release_starts()
