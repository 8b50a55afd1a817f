"""The call server of the guest on a real connection: validation, repeated ids, and streams that end."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.rpc import MAX_OUTCOMES, Call
from sandlot.protocol import events
from tests.support.guest import JoinedLink


class Pair(JoinedLink):
    """A guest with three scripted handlers, and its host. ``done`` and ``waiting`` record the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[dict[str, Any]] = []
        self.waiting: list[Call] = []
        self.rpc.serve({"guest.deadline": self._count, "process.signal": self.waiting.append, "file.stat": self._fail})

    def _count(self, call: Call) -> None:
        self.done.append(call.args)
        call.result()

    def _fail(self, call: Call) -> None:
        if call.args["path"] == "/refused":
            raise RpcError("path_not_found", "No.", "Look again.")
        raise RuntimeError("a defect")


@pytest.fixture
def pair() -> Pair:
    return Pair()


def answer(received: list[events.Event]) -> object:
    """Return the result of the only response, or its error code."""
    answers = [event.message["result"] for event in received if isinstance(event, events.Received)]
    answers += [event.reason["code"] for event in received if isinstance(event, events.WasReset)]
    assert len(answers) == 1, received
    return answers[0]


@pytest.mark.parametrize(
    "name,args,id_,code",
    [
        ("no.such.call", {}, None, "unsupported"),
        ("guest.info", {}, None, "unsupported"),  # in the schema, but without a handler here
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
def test_invalid_call_is_refused_and_the_next_call_works(pair: Pair, name: object, args: object, id_: object, code: str) -> None:
    assert answer(pair.ask(name, args, id_)[1]) == code
    assert not pair.done
    assert answer(pair.ask("guest.deadline", {})[1]) == {}


def test_call_is_executed_once_per_id(pair: Pair) -> None:
    id_ = os.urandom(16)
    for _ in range(3):
        assert answer(pair.ask("guest.deadline", {}, id_)[1]) == {}
        pair.greet()
    assert len(pair.done) == 1
    assert answer(pair.ask("process.signal", {"process": "x", "signal": 9}, id_)[1]) == "conflict"
    pair.rpc.forget_all_results()
    assert answer(pair.ask("guest.deadline", {}, id_)[1]) == {}
    assert len(pair.done) == 2


def test_number_of_kept_outcomes_is_limited(pair: Pair) -> None:
    first = os.urandom(16)
    pair.ask("guest.deadline", {}, first)
    for _ in range(MAX_OUTCOMES):
        pair.ask("guest.deadline", {})
    pair.ask("guest.deadline", {}, first)
    assert len(pair.done) == MAX_OUTCOMES + 2, "the oldest was forgotten"


def test_call_in_progress_responds_on_the_last_stream(pair: Pair) -> None:
    id_ = os.urandom(16)
    args = {"process": "x", "signal": 9}
    pair.ask("process.signal", args, id_)
    pair.greet()
    assert not pair.waiting[0].stream.is_open
    stream, received = pair.ask("process.signal", args, id_)
    assert not received
    assert len(pair.waiting) == 1, "it was not begun again"
    pair.waiting[0].result(running=True)
    received = pair.move()
    assert answer(received) == {"running": True}
    assert {event.stream for event in received if isinstance(event, events.StreamEvent)} == {stream}


def test_response_of_an_earlier_connection_is_dropped(pair: Pair) -> None:
    pair.ask("process.signal", {"process": "x", "signal": 9})
    pair.greet()
    pair.ask("process.signal", {"process": "y", "signal": 9})  # the stream has the id of the earlier one
    pair.waiting[0].result(running=False)
    assert not pair.move()
    pair.waiting[1].result(running=True)
    assert answer(pair.move()) == {"running": True}


def test_cancellation_is_reported_to_the_call_once(pair: Pair) -> None:
    gone: list[str] = []
    stream, _ = pair.ask("process.signal", {"process": "x", "signal": 9})
    pair.waiting[0].on_gone = lambda: gone.append("gone")
    pair.host.reset(stream, "cancelled", "The client went away.")
    pair.move()
    pair.greet()
    assert gone == ["gone"]
    assert len(pair.router) == 0


def test_forgotten_call_is_refused_and_not_executed_again(pair: Pair) -> None:
    id_ = os.urandom(16)
    pair.rpc.forget_result(id_.hex(), "guest.deadline")
    assert answer(pair.ask("guest.deadline", {}, id_)[1]) == "process_not_found"
    assert not pair.done


def test_only_starts_wait_until_they_are_released() -> None:
    pair = Pair()
    begun: list[Call] = []

    def begin(call: Call) -> None:
        begun.append(call)
        call.result()

    pair.rpc.serve({"process.start": begin, "kernel.create": begin})
    start: dict[str, Any] = {"argv": ["true"], "env": {}, "cwd": None, "user": "user", "stdin": False, "timeout_s": None, "attach": False}
    pair.rpc.hold_starts()
    pair.rpc.hold_starts()
    stream, received = pair.ask("process.start", start)
    given_up, _ = pair.ask("process.start", start)
    context: dict[str, Any] = {"kernel": "a", "language": "python", "cwd": None, "env": {}}
    lost, _ = pair.ask("kernel.create", context, b"k" * 16)
    assert (begun, received) == ([], [])
    _, received = pair.ask("guest.deadline", {"deadline_s": None})
    assert len(pair.done) == 1
    for each in (given_up, lost):
        pair.host.reset(each, "conflict", "Nobody waits.")
    pair.move()
    pair.rpc.release_starts()
    received = pair.move()
    assert [call.stream.id for call in begun] == [stream]
    assert any(isinstance(event, events.Received) and event.stream == stream for event in received)
    pair.ask("kernel.create", context, b"k" * 16)
    assert len(begun) == 2, "asked again it is done"
    pair.rpc.release_starts()


def test_outcome_of_a_delayed_response_is_sent_again(pair: Pair) -> None:
    id_ = os.urandom(16)
    pair.ask("process.signal", {"process": "x", "signal": 9}, id_)
    pair.waiting[0].result(running=True)
    pair.move()

    assert answer(pair.ask("process.signal", {"process": "x", "signal": 9}, id_)[1]) == {"running": True}
    assert len(pair.waiting) == 1


def test_streams_of_refused_calls_are_forgotten(pair: Pair) -> None:
    stream = pair.open("file.stat", {"path": "/refused", "user": "user", "follow": True})
    assert answer(pair.move()) == "path_not_found"
    pair.host.end(stream)
    pair.move()

    assert len(pair.router) == 0
