"""``sandlot events``: the newest events, oldest first, as text without control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Self

import pytest

from sandlot.cli import events
from sandlot.cli.main import dispatch
from sandlot.sdk import EventInfo, SandboxInfo

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "\x1b[2J\nnext"
EVENTS = [EventInfo(number, f"sandbox.kind{number}", AT, "sb-a", "local", {"name": HOSTILE, "none": None}) for number in range(1, 6)]


ASKED: list[str | None] = []


class FakeClient:
    """Stored events 1 to 4, and a fifth that happens later."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def events(self) -> Self:
        return self

    @property
    def sandboxes(self) -> Self:
        return self

    def get(self, name: str) -> SandboxInfo:
        return SandboxInfo(f"id of {name}", "running", "base")

    def list(self, *, sandbox: str | None, limit: int | None = None) -> list[EventInfo]:
        ASKED.append(sandbox)
        return EVENTS[3::-1][:limit]

    def iter(self, *, after: int, **_: object) -> Iterator[EventInfo]:
        return iter([event for event in EVENTS[:4] if event.sequence > after])

    def follow(self, *, after: int | None, **_: object) -> Iterator[EventInfo]:
        return iter([event for event in EVENTS if event.sequence > (4 if after is None else after)])


@pytest.fixture(autouse=True)
def _client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "query_client", FakeClient)


def test_events_are_listed_oldest_first_and_limit_keeps_the_newest(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for options, sequences in (
        ("", [1, 2, 3, 4]),
        ("-n 3", [2, 3, 4]),
        ("--after 1", [2, 3, 4]),
        ("--after 1 -n 2", [3, 4]),
        ("-f", [5]),
        ("-f -n 2", [3, 4, 5]),
        ("-f --after 3", [4, 5]),
    ):
        with subtests.test(options=options):
            assert dispatch(["events", *options.split(), "--json"]) == 0
            out = capsys.readouterr().out
            found = [json.loads(line) for line in out.splitlines()] if "-f" in options else json.loads(out)
            assert [event["sequence"] for event in found] == sequences


def test_events_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["events"]) == 0
    out = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in out)
    heads, *lines = out.splitlines()
    assert heads.split() == ["SEQUENCE", "AT", "TYPE", "SANDBOX", "DETAILS"]
    assert [line.endswith("name=\\x1b[2J\\nnext") for line in lines] == [True] * 4


def test_filter_accepts_ids_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    ASKED.clear()
    for sandbox in ("sb-abcd-abcdefghijklmnop", "box"):
        assert dispatch(["events", "-n", "1", "--sandbox", sandbox]) == 0
    capsys.readouterr()
    assert ASKED == ["sb-abcd-abcdefghijklmnop", "id of box"]
