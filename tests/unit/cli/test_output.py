"""Tables, sizes, ages, JSON and escaping."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.cli.output import ControlCharacterFilter, age, as_json, note, size, table, visible
from sandlot.model.specs import Limits

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def test_age(subtests: pytest.Subtests) -> None:
    for ago, text in ((0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172799, "47h"), (172800, "2d"), (-300, "5m")):
        with subtests.test(ago=ago, text=text):
            assert age(NOW - timedelta(seconds=ago), NOW) == text


def test_size(subtests: pytest.Subtests) -> None:
    for value, text in ((0, "0"), (1023, "1023"), (1024, "1K"), (1 << 20, "1M"), (1536 << 20, "1.5G"), (5 << 30, "5G"), (5 << 40, "5T")):
        with subtests.test(value=value, text=text):
            assert size(value) == text


HOSTILE = "\x1b]0;owned\x07 \x1b[2Ja\r\nsandlot: all is well\x9b31m\x7f\u202e\u2028\ud800\x00"
COMMANDS = [chr(number) for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E, 0x2066, 0xD800)]


def test_nothing_commands_the_terminal_and_nothing_is_lost() -> None:
    assert [each for each in COMMANDS if each in visible(f"a{each}b")] == []
    assert visible("\x1b[1mé\n\u202e") == "\\x1b[1mé\\n\\u202e"
    assert visible("plain 😀 ñ \\ '") == "plain 😀 ñ \\ '"


def test_lines_of_a_sandbox_are_shown_without_what_commands_the_terminal(subtests: pytest.Subtests) -> None:
    for step in (1, 2, 3, 1000):
        with subtests.test(step=step):
            raw = "plain é 😀\ttab\r\n\x1b]52;c;cm0=\x07 \x9b2J \u202eback".encode() + b" \xff\n\xf0\x9f"
            shown = ControlCharacterFilter()
            got = b"".join(shown.feed(raw[at : at + step]) for at in range(0, len(raw), step)) + shown.feed(b"", last=True)
            assert got.decode() == "plain é 😀\ttab\r\n\\x1b]52;c;cm0=\\x07 \\x9b2J \\u202eback \\xff\n\\xf0\\x9f"


def test_what_a_guest_wrote_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    table(["FACT", "VALUE"], [["ended", HOSTILE]])
    note(f"sandlot: {HOSTILE}")
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), len(err.splitlines())) == (2, 1)
    assert [each for each in COMMANDS if each != "\n" and each in out + err] == []


def test_a_table_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    table(["ID", "NAME"], [["x" * 30, "a"], ["y", "b c"]])
    assert capsys.readouterr().out.splitlines() == ["ID" + " " * 30 + "NAME", "x" * 30 + "  a", "y" + " " * 31 + "b c"]


@dataclass(frozen=True, slots=True)
class Thing:
    when: datetime
    inner: tuple[Limits, ...]


def test_json_has_everything_down_to_the_last_moment() -> None:
    told = json.loads(as_json([Thing(NOW, (Limits(cpus=2),)), {"a": None}]))
    limits = {"cpus": 2, "memory_bytes": 1 << 30, "disk_bytes": 5 << 30, "pids": 512}
    assert told == [{"when": "2026-11-21T00:00:00+00:00", "inner": [limits]}, {"a": None}]
