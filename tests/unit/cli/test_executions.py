"""What ran and what happened, as a terminal shows it: short, on one line, and without commands to the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Self

import pytest

from sandlot.cli import history
from sandlot.cli.main import dispatch
from sandlot.sdk import EventInfo, ExecutionInfo

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "\x1b[2J\nnext"
EVENTS = [EventInfo(1, "sandbox.created", AT, "sb-a", "local", {"name": EVIL, "none": None}), EventInfo(2, "sandbox.ended", AT, "sb-a")]
RUNS = [
    ExecutionInfo("e1", "sb-a", "code", "ok", AT, language="python", code=f"print(1){EVIL}", stdout=f"1{EVIL}\n", duration_s=0.123),
    ExecutionInfo("e2", "sb-a", "command", "exited", AT, argv=("/bin/bash", "-c", "x" * 100), exit_code=3, duration_s=1),
    ExecutionInfo("e3", "sb-a", "command", "running", AT, argv=("sleep", "1")),
]


class Service:
    """What the commands ask of a client, without one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def events(self) -> Self:
        return self

    def follow(self, **_: object) -> Iterator[EventInfo]:
        return iter(EVENTS)

    @property
    def executions(self) -> Runs:
        return Runs()

    def iter(self, **_: object) -> Iterator[EventInfo]:
        return iter(EVENTS)


class Runs:
    """Its log of runs."""

    def list(self, **_: object) -> list[ExecutionInfo]:
        return RUNS

    def get(self, _execution: str) -> ExecutionInfo:
        return RUNS[0]


@pytest.fixture(autouse=True)
def _service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "asking", Service)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert dispatch([*arguments]) == 0
    out = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in out)
    return out


def test_what_ran_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "executions").splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("print(1)\\x1b[2J\\nnext")
    assert "ok" in lines[1].split()
    assert "0.12s" in lines[1].split()
    assert lines[2].endswith("x" * 57 + "...")
    assert "exited 3" in lines[2]
    assert lines[3].endswith("sleep 1")


def test_one_run_is_told_with_all_that_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "executions", "e1")
    assert "\nCODE\nprint(1)\\x1b[2J\nnext\n" in told
    assert told.endswith("\nSTDOUT\n1\\x1b[2J\nnext\n")


def test_what_happened_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, count in ((("events",), 3), (("events", "-f"), 2), (("events", "-f", "--limit", "1"), 1)):
        lines = said(capsys, *arguments).splitlines()
        assert len(lines) == count
        assert any("sandbox.created" in line and line.endswith("name=\\x1b[2J\\nnext") for line in lines)
