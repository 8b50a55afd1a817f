"""When what was typed is is_complete, and what the next line begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli.repl import editor
from sandlot.cli.repl.editor import indentation, is_complete


def test_what_is_run(subtests: pytest.Subtests) -> None:
    for code in (
        "",
        "1 + 1",
        "x = [1,\n 2]",
        "for i in x: pass",
        "if x:\n    y\n",
        "def f():\n    return 1\n\n",
        "await f()",
        "async with a as b: pass",
        "1 +",
        "x = )",
        "%timeit x",
        "!ls -l",
        "?len",
        "len?",
        "%%time\nx\n",
        "x = '\ud800'",
        "\0",
        "(" * 300 + ")" * 300,
    ):
        with subtests.test(code=code):
            assert is_complete(code, "python")


def test_what_goes_on(subtests: pytest.Subtests) -> None:
    for code in ("if x:", "if x:\n    y", "def f(", "'''a", "x = \\", "@a", "%%time", "%%time\nx", "async def f():"):
        with subtests.test(code=code):
            assert not is_complete(code, "python")


def test_the_next_line_begins_where_its_block_does(subtests: pytest.Subtests) -> None:
    for code, indent in (("x", ""), ("if x:", "    "), ("if x:\n    y", "    "), ("if x:\n    if y:  ", "        "), ("", ""), ("a:\n  b", "  ")):
        with subtests.test(code=code, indent=indent):
            assert indentation(code, "python") == indent


def test_the_history_is_kept_by_language_where_state_belongs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert editor.history_file("bash") == tmp_path / "sandlot" / "history-bash"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert editor.history_file("python") == tmp_path / "home" / ".local/state/sandlot/history-python"
