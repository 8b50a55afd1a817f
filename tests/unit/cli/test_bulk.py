"""``run_for_each``: one action for each of several ids."""

from __future__ import annotations

import pytest
import typer

from sandlot.cli.bulk import run_for_each
from sandlot.sdk import ConflictError


def test_other_items_are_processed_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def action(item: str) -> None:
        if item == "b":
            raise ConflictError("busy\x1b[2J", hint="Wait.")
        done.append(item)

    with pytest.raises(typer.Exit) as ended:
        run_for_each(["a", "b", "c\x1b"], action)
    assert ended.value.exit_code == 1
    assert done == ["a", "c\x1b"]
    assert capsys.readouterr() == ("a\nc\\x1b\n", "sandlot: b: busy\\x1b[2J Wait.\n")


def test_success_of_all_items_is_no_exit(capsys: pytest.CaptureFixture[str]) -> None:
    run_for_each(["a", "b"], lambda _: None)
    assert capsys.readouterr() == ("a\nb\n", "")
