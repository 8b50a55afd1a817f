"""The scripted node: results in order, recorded calls, and problems that cannot go unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass

import pytest

from sandlot.core.node import Node
from sandlot.model.errors import NotFoundError
from sandlot.model.states import State
from tests.support.scripted_node import Call, ScriptedNode, ScriptedStream, entry, process_info, sandbox_info
from tests.support.service import pieces


class Notes:
    """A service of these tests."""

    async def read(self, principal: str, *, lines: int = 10) -> str: ...  # type: ignore[empty-body]

    async def write(self, principal: str, chunks: AsyncIterable[bytes]) -> int: ...  # type: ignore[empty-body]

    @staticmethod
    def check(text: str) -> bool: ...  # type: ignore[empty-body]

    @property
    def count(self) -> int: ...  # type: ignore[empty-body]


@dataclass(frozen=True, slots=True)
class NotesNode(Node):
    """A node with one more service."""

    notes: Notes


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode(NotesNode)


def notes(node: ScriptedNode) -> Notes:
    assert isinstance(node.services, NotesNode)
    return node.services.notes


async def test_results_are_returned_in_order_and_calls_recorded_with_defaults(node: ScriptedNode) -> None:
    node.script("notes.read", "one", NotFoundError("gone"))
    assert await notes(node).read("alice") == "one"
    with pytest.raises(NotFoundError, match="gone"):
        await notes(node).read(lines=3, principal="bob")
    assert node.calls == [
        Call("notes.read", {"principal": "alice", "lines": 10}),
        Call("notes.read", {"principal": "bob", "lines": 3}),
    ]
    assert node.calls[1]["lines"] == 3
    node.check()


def test_plain_methods_and_properties_return_their_results_at_once(node: ScriptedNode) -> None:
    node.script("notes.check", False)
    node.script("notes.count", 7)
    assert notes(node).check("a") is False
    assert notes(node).count == 7
    node.check()


async def test_function_is_called_with_the_arguments(node: ScriptedNode) -> None:
    async def write(principal: str, chunks: AsyncIterable[bytes]) -> int:
        return len(principal) + sum([len(chunk) async for chunk in chunks])

    node.script("notes.write", write)
    assert await notes(node).write("alice", pieces(b"ab", b"c")) == 8


async def test_future_is_cancelled_with_the_caller(node: ScriptedNode) -> None:
    pending: asyncio.Future[str] = asyncio.Future()
    node.script("notes.read", pending)
    caller = asyncio.ensure_future(notes(node).read("alice"))
    await asyncio.sleep(0)
    assert not pending.done()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert pending.cancelled()


async def test_wrong_calls_raise_and_fail_the_test(node: ScriptedNode) -> None:
    node.script("notes.read", "one")
    await notes(node).read("alice")
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: notes(node).read("alice"),
        lambda: notes(node).read("alice", words=1),  # type: ignore[call-arg]
        lambda: notes(node).reed("alice"),  # type: ignore[attr-defined]
    ]
    for call in wrong:
        with pytest.raises(AssertionError):
            await call()
    assert len(node.problems) == len(wrong)
    with pytest.raises(AssertionError):
        node.check()


def test_unused_results_and_unknown_operations_fail_the_test(node: ScriptedNode) -> None:
    node.script("notes.read", "one")
    with pytest.raises(AssertionError, match="one"):
        node.check()
    for unknown in ("notes.reed", "note.read", "notes", "notes.__init__"):
        with pytest.raises(AssertionError, match="not an operation"):
            node.script(unknown, "one")


async def test_stream_yields_items_raises_errors_and_waits_for_events() -> None:
    event = asyncio.Event()
    stream = ScriptedStream(b"a", event, b"b", NotFoundError("gone"), entry="e")
    assert await anext(stream) == b"a"
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    assert await waiting == b"b"
    with pytest.raises(NotFoundError):
        await anext(stream)
    assert (vars(stream)["entry"], stream.taken) == ("e", 2)


async def test_aclose_ends_a_waiting_stream() -> None:
    stream = ScriptedStream(asyncio.Event(), b"never")
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await waiting is None
    assert await anext(stream, None) is None
    assert stream.closed.is_set()


async def test_duplex_records_what_is_sent() -> None:
    stream = ScriptedStream[bytes]()
    await stream.send(b"a")
    await stream.end()
    assert (stream.sent, stream.ended.is_set()) == ([b"a"], True)


def test_values_are_complete_and_can_be_changed() -> None:
    assert (sandbox_info().state, sandbox_info(state=State.PAUSED).state) == (State.RUNNING, State.PAUSED)
    assert (entry("/a/b").name, entry(size=7).size) == ("b", 7)
    assert (process_info().running, process_info(running=False).running) == (True, False)
