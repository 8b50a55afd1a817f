"""The parts of a shell that need no sandbox: its keys, and a terminal that is given back as it was."""

from __future__ import annotations

import json
import os
import termios
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, cast

import pytest
import typer

from sandlot.cli import terminals
from sandlot.sdk.models.processes import Output

if TYPE_CHECKING:
    from sandlot.sdk import AsyncTerminal


def test_a_key_and_the_byte_that_it_sends(subtests: pytest.Subtests) -> None:
    for text, code in (("ctrl-]", 0x1D), ("ctrl-p", 0x10), ("Ctrl-P", 0x10), ("ctrl-\\", 0x1C), ("ctrl-_", 0x1F), ("none", None)):
        with subtests.test(text=text, code=code):
            assert terminals.key_code(text) == code


def test_what_is_no_key(subtests: pytest.Subtests) -> None:
    for text in ("", "ctrl-", "ctrl-ab", "alt-x", "x", "ctrl-1", "ctrl-é"):
        with subtests.test(text=text), pytest.raises(typer.BadParameter):
            terminals.key_code(text)


class Screen:
    """Takes what is typed."""

    def __init__(self) -> None:
        self.sent = b""
        self.ended = False

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def send_eof(self) -> None:
        self.ended = True


async def test_keys_reach_the_program_up_to_the_detach_key(subtests: pytest.Subtests) -> None:
    for typed, code, sent, detached in (
        ([b"ls\n", b"\x1d"], 0x1D, b"ls\n", True),
        ([b"ls\x1drest"], 0x1D, b"ls", True),
        ([b"a\x1db", b"c"], None, b"a\x1dbc", False),
        ([b"\x03\x1a\x13\xff\x00"], 0x1D, b"\x03\x1a\x13\xff\x00", False),
        ([], 0x1D, b"", False),
    ):
        with subtests.test(typed=typed, code=code, sent=sent, detached=detached):
            screen = Screen()
            assert await terminals._type(cast("AsyncTerminal", screen), _pieces(typed), code) == detached  # noqa: SLF001 - what the keys do
            assert (screen.sent, screen.ended) == (sent, not detached)


async def _pieces(typed: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in typed:
        yield piece


def _fail_in(terminal: int) -> None:
    with terminals.raw_mode(terminal) as is_terminal:
        assert is_terminal
        assert not termios.tcgetattr(terminal)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
        raise RuntimeError


def test_local_terminal_is_restored_after_an_error() -> None:
    ours, theirs = os.openpty()
    try:
        before = termios.tcgetattr(theirs)
        with pytest.raises(RuntimeError):
            _fail_in(theirs)
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)
    reading, writing = os.pipe()
    try:
        with terminals.raw_mode(reading) as is_terminal:
            assert not is_terminal
    finally:
        os.close(reading)
        os.close(writing)


async def test_output_as_json_has_whole_characters_and_what_was_lost() -> None:
    async def pieces() -> AsyncIterator[Output]:
        for data, lost in ((b"a\xc3", 0), (b"\xa9", 0), (b"\xc3", 0), (b"\xa9\n", 7), (b"\xc3", 0)):
            yield Output("stdout", data, lost)
        yield Output("stderr", b"\xff")

    told = [json.loads(line) for line in [line async for line in terminals.json_lines(pieces())]]
    assert [(each["stream"], each["text"], each["lost_bytes"]) for each in told] == [
        ("stdout", "a", 0),
        ("stdout", "é", 0),
        ("stdout", "\ufffd", 0),
        ("stdout", "\ufffd\n", 7),
        ("stderr", "\ufffd", 0),
        ("stdout", "\ufffd", 0),
    ]
