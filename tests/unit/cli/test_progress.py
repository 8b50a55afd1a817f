"""What a person is told while something takes long."""

from __future__ import annotations

import pytest

from sandlot import TemplateInfo
from sandlot.cli.progress import Spinner, announce_build, unbuilt_template

TEMPLATES = [TemplateInfo("base", built=True), TemplateInfo("code-interpreter")]


def test_only_what_is_not_built_is_waited_for(subtests: pytest.Subtests) -> None:
    for asked, waited_for in (("base", None), ("unknown", None), (None, "code-interpreter"), ("code-interpreter", "code-interpreter")):
        with subtests.test(asked=asked, waited_for=waited_for):
            assert unbuilt_template(TEMPLATES, asked) == waited_for


def test_a_build_is_announced_on_standard_error_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    announce_build(TEMPLATES, "base")
    announce_build(TEMPLATES, "unknown")
    assert capsys.readouterr() == ("", "")
    announce_build(TEMPLATES, None)
    out, err = capsys.readouterr()
    assert out == ""
    assert "code-interpreter" in err


def test_without_a_terminal_every_step_is_one_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Spinner("building it") as spinner:
        for step in ("one", "one", "two\x1b[2J"):
            spinner.show_step(step)
    assert capsys.readouterr() == ("", "sandlot: building it\nsandlot:   one\nsandlot:   two\\x1b[2J\n")
