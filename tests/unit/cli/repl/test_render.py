"""What cells give, shown: the form that says most, images as new files, and nothing that commands the terminal."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sandlot.cli.repl.render import COLOURS, choose_form, render, render_error, save_image
from sandlot.sdk import ExceptionInfo, Result
from sandlot.sdk.models.code import CHART

PNG = base64.b64encode(b"\x89PNG").decode()
TABLE = "<table><thead><tr><th>n</th></tr></thead><tr><td>1</td></tr></table>"


def result(**data: str) -> Result:
    names = {
        "plain": "text/plain",
        "html": "text/html",
        "md": "text/markdown",
        "png": "image/png",
        "svg": "image/svg+xml",
        "json": "application/json",
    }
    return Result({names.get(name, name): text for name, text in data.items()})


def test_the_form_that_says_most(subtests: pytest.Subtests) -> None:
    for given, expected in (
        (result(plain="42"), "text"),
        (result(plain="   a\n0  1", html=TABLE), "text"),
        (result(plain="<Figure size 640x480 with 1 Axes>", png=PNG), "nothing"),
        (result(plain="a picture", png=PNG), "text"),
        (result(plain="<IPython.core.display.Markdown object>", md="# a"), "markdown"),
        (result(plain="<pandas.io.formats.style.Styler at 0x7f>", html=TABLE), "table"),
        (result(plain="<IPython.core.display.HTML object>", html="<b>x</b>"), "html"),
        (result(plain="<IPython.core.display.JSON object>", json="{}"), "json"),
        (result(plain="<object object at 0x7f>"), "text"),
        (Result({"text/latex": "$a$"}), "latex"),
        (Result({"application/javascript": "x()"}), "javascript"),
        (Result({"application/x-unknown": "x"}), "nothing"),
        (Result({}), "nothing"),
    ):
        with subtests.test(given=given, expected=expected):
            assert choose_form(given) == expected


def test_images_are_saved_as_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    (first,) = save_image(result(svg="<svg/>", png=PNG), folder)
    (second,) = save_image(result(png=PNG), folder)
    (third,) = save_image(result(svg="<svg/>"), folder)
    assert [path.name for path in (first, second, third)] == ["001.png", "002.png", "001.svg"]
    assert (first.read_bytes(), third.read_bytes()) == (b"\x89PNG", b"<svg/>")
    (folder / "003.png").symlink_to(tmp_path / "elsewhere")
    (fourth,) = save_image(result(png=PNG), folder)
    assert fourth.name == "004.png", "what is there is not written through"
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_image_makes_no_folder(tmp_path: Path) -> None:
    assert save_image(result(plain="a"), tmp_path / "a") == []
    assert save_image(result(png="abc"), tmp_path / "a") == []
    assert not (tmp_path / "a").exists()


def test_rendered_results_have_no_terminal_control_sequences(subtests: pytest.Subtests) -> None:
    for width in (None, 60):
        for given in (
            result(plain="a\x1b]0;title\x07b"),
            result(md="a\x1b]8;;http://x\x07b [c](http://y\x1b[2J)"),
            result(html=TABLE.replace("1", "\x1b[2J")),
            result(html="<b>\x1b[2J</b>"),
            result(json='"\\u001b[2J"'),
            Result({CHART: json.dumps({"type": "bar", "title": "\x1b[2J", "elements": [{"label": "\x1b[2J", "value": 1}]})}),
        ):
            with subtests.test(width=width, given=given):
                text = render(given, [], width=width)
                plain = COLOURS.sub("", text) if width else text
                assert "\x1b" not in plain
                assert "\x07" not in plain


def test_markup_of_rich_is_text() -> None:
    assert render(result(plain="[bold]x[/bold] [/] :smile:"), [], width=60) == "[bold]x[/bold] [/] :smile:\n"
    assert render(result(plain="[link=x]"), [], width=None) == "[link=x]\n"


def test_tables_and_charts_are_drawn_and_what_is_beyond_is_counted() -> None:
    rows = "".join(f"<tr><td>{n}</td></tr>" for n in range(80))
    text = render(result(html=f"<table><tr><th>n</th></tr>{rows}</table>"), [], width=None)
    assert "31 more rows" in text
    points: list[Any] = [[n, n * 0.5] for n in range(15)]
    chart = {"type": "line", "title": "growth", "x_label": "time", "x_unit": "s", "elements": [{"label": "a", "points": points}, {"points": "x"}]}
    text = render(Result({CHART: json.dumps(chart), "image/png": PNG}), [Path("results/001.png")], width=None)
    assert text.splitlines()[0] == "results/001.png"
    assert [word in text for word in ("line: growth", "time (s)", "... 5 more", "4.5")] == [True] * 4
    pie = {"type": "pie", "elements": [{"label": "x", "angle": 90.0, "radius": 1}]}
    both = render(Result({CHART: json.dumps({"type": "superchart", "elements": [pie, chart]})}), [], width=80)
    assert "angle" in both
    assert "growth" in both


def test_an_exception_is_its_traceback_without_colours() -> None:
    error = ExceptionInfo("ValueError", "x", ("\x1b[31mTraceback\x1b[0m", "  \x1b]0;t\x07", "ValueError: x"))
    assert render_error(error, width=None) == "Traceback\n  \\x1b]0;t\\x07\nValueError: x\n"
    assert COLOURS.sub("", render_error(error, width=80)) == "Traceback\n  \\x1b]0;t\\x07\nValueError: x\n"
