"""Received data that is fed to a parser in slices."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.web import slices
from sandlot.web.slices import SlicedInput


class Parser:
    """Records what it is fed with, and whether reading is paused."""

    def __init__(self) -> None:
        self.fed: list[bytes] = []
        self.size = 4
        self.is_held = False
        self.input = SlicedInput(asyncio.get_running_loop(), self.fed.append, lambda: self.size, self._hold)

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
