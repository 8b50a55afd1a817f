"""``sandlot execution``: runs as short lines of text without control characters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest

from sandlot.cli import executions
from sandlot.cli.main import dispatch
from sandlot.sdk import ExecutionInfo

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "\x1b[2J\nnext"
RUNS = [
    ExecutionInfo("e1", "sb-a", "code", "ok", AT, language="python", code=f"print(1){EVIL}", stdout=f"1{EVIL}\n", duration_s=0.123),
    ExecutionInfo("e2", "sb-a", "command", "exited", AT, argv=("/bin/bash", "-c", "x" * 100), exit_code=3, duration_s=1),
    ExecutionInfo("e3", "sb-a", "command", "running", AT, argv=("sleep", "1")),
]


class Service:
    """The part of a client that the commands use."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def executions(self) -> Runs:
        return Runs()


class Runs:
    """A log of runs."""

    def list(self, **_: object) -> list[ExecutionInfo]:
        return RUNS

    def notebook(self, sandbox: str) -> str:
        return f'{{"cells": "{sandbox}"}}\n'

    def get(self, _execution: str) -> ExecutionInfo:
        return RUNS[0]


@pytest.fixture(autouse=True)
def _service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "query_client", Service)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert dispatch([*arguments]) == 0
    out = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in out)
    return out


def test_runs_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "execution", "ls").splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("print(1)\\x1b[2J\\nnext")
    assert "ok" in lines[1].split()
    assert "0.12s" in lines[1].split()
    assert lines[2].endswith("x" * 57 + "...")
    assert "exited 3" in lines[2]
    assert lines[3].endswith("sleep 1")


def test_info_prints_code_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "execution", "info", "e1")
    assert "\nCODE\nprint(1)\\x1b[2J\nnext\n" in told
    assert told.endswith("\nSTDOUT\n1\\x1b[2J\nnext\n")


def test_notebook_is_written_to_a_file_or_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sandbox = "sb-aaaa-aaaaaaaaaaaaaaaa"
    assert dispatch(["export", sandbox]) == 0
    assert capsys.readouterr().out == f'{{"cells": "{sandbox}"}}\n'
    assert dispatch(["export", sandbox, "-o", str(tmp_path / "run.ipynb")]) == 0
    assert (tmp_path / "run.ipynb").read_text(encoding="utf-8") == f'{{"cells": "{sandbox}"}}\n'
    assert capsys.readouterr().out == ""
    assert dispatch(["export", sandbox, "-o", str(tmp_path / "no" / "run.ipynb")]) == 1
