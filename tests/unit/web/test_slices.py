"""Received data that is fed to a parser in slices."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.web import slices
from sandlot.web.slices import SlicedInput, SliceTurns


class Parser:
    """Records what it is fed with, and whether reading is paused."""

    def __init__(self, turns: SliceTurns | None = None) -> None:
        self.fed: list[bytes] = []
        self.size = 4
        self.is_held = False
        self.input = SlicedInput(turns or SliceTurns(), self.fed.append, lambda: self.size, self._hold)

    def _hold(self, is_held: bool) -> None:  # noqa: FBT001 - an argument of SlicedInput
        self.is_held = is_held


async def test_small_data_is_fed_at_once() -> None:
    parser = Parser()
    parser.input.push(b"abcd")
    assert (parser.fed, parser.is_held) == ([b"abcd"], False)


async def test_large_data_takes_several_turns_in_order_while_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    parser = Parser()
    parser.input.push(b"abcdefghij")
    assert (parser.fed, parser.is_held) == ([b"abcd"], True)
    parser.input.push(b"kl")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (parser.fed, parser.is_held) == ([b"abcd", b"efgh"], True)
    await asyncio.sleep(0)
    assert (parser.fed, parser.is_held) == ([b"abcd", b"efgh", b"ijkl"], False)


async def test_parser_that_takes_nothing_gets_the_rest_later() -> None:
    parser = Parser()
    parser.size = 0
    parser.input.push(b"abcdef")
    assert (parser.fed, parser.is_held) == ([], True)
    parser.size = 4
    parser.input.resume()
    await asyncio.sleep(0)
    assert (parser.fed, parser.is_held) == ([b"abcd", b"ef"], False)


async def test_nothing_is_fed_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    parser = Parser()
    parser.input.push(b"abcdefgh")
    parser.input.stop()
    await asyncio.sleep(0)
    assert parser.fed == [b"abcd"]


async def test_connections_share_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)  # one slice in each turn of the loop
    turns = SliceTurns()
    parsers = [Parser(turns) for _ in range(3)]
    for each in parsers:
        each.input.push(b"abcdefgh")
    assert [len(each.fed) for each in parsers] == [1, 0, 0]
    counts = []
    await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
        counts.append([len(each.fed) for each in parsers])
    assert counts == [[2, 0, 0], [2, 1, 0], [2, 1, 1], [2, 2, 1], [2, 2, 2]]
    assert not any(each.is_held for each in parsers)


async def test_large_parts_need_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_S", 0.0)
    parser = Parser()
    parser.size = slices.MANY_PARTS_BYTES
    parser.input.push(bytes(3 * parser.size))
    await asyncio.sleep(0)
    assert len(parser.fed) == 2, "the next turn of the loop is the next turn of the data"
    await asyncio.sleep(0)
    assert len(parser.fed) == 3


async def test_data_that_is_waited_for_does_not_stop_other_connections() -> None:
    turns = SliceTurns()
    waiting, other = Parser(turns), Parser(turns)
    waiting.size = 0
    waiting.input.push(b"abcd")
    other.input.push(b"abcdefgh")
    await asyncio.sleep(0)
    assert (waiting.fed, other.fed) == ([], [b"abcd", b"efgh"])
