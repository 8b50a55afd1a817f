"""What cells give, for a terminal or a file: output as it comes, tables, images as files, errors.

Laws:
- What comes from a sandbox reaches a terminal as text (``cli/output.py``), also where it is drawn; no name of a file is of its choice.
- An image is a new file; nothing that is there is written over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sandlot.cli.output import legible
from sandlot.cli.repl.html import Table, first_table, words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sandlot.sdk import Chart, ExceptionInfo, Result

Form = Literal["text", "markdown", "table", "latex", "json", "html", "javascript", "nothing"]

ENDINGS: Mapping[str, str] = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "application/pdf": ".pdf",
}
"""What is saved, best first, and how its file ends."""
MAX_FILES = 100_000
MAX_ROWS, MAX_COLUMNS = 50, 20
"""Of a table; what is beyond is counted."""
MAX_POINTS = 10
"""Of one series of a chart."""

_MERE = re.compile(r"\s*<[^<>\n]{1,200}>\s*")
"""How Python shows an object that has no other form: ``<Figure size 640x480 with 1 Axes>``."""
COLOURS = re.compile("\\x1b\\[[0-9;]*m")
"""Select graphic rendition, ECMA-48 8.3.117."""


def form(result: Result) -> Form:
    """In which form a result is shown, beside its images. Pure."""
    text = result.text
    if text is not None and not _MERE.fullmatch(text):
        return "text"
    if any(mime in result.data for mime in ENDINGS):
        return "nothing"
    html = result.html
    forms: tuple[tuple[Form, object], ...] = (
        ("markdown", result.markdown),
        ("table", html is not None and "<table" in html.lower()),
        ("latex", result.latex),
        ("json", "application/json" in result.data),
        ("html", html),
        ("javascript", result.javascript),
        ("text", text),
    )
    return next((name for name, there in forms if there), "nothing")


def save(result: Result, folder: Path) -> list[Path]:
    """Save what is an image: one file for each thing that was shown, in its best form."""
    mime = next((mime for mime in ENDINGS if mime in result.data), None)
    if mime is None:
        return []
    try:
        content = result.content(mime)
    except ValueError:
        return []  # said to be base64, and is not
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, MAX_FILES):
        path = folder / f"{number:03}{ENDINGS[mime]}"
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return [path]
    return []


def shown(result: Result, files: Sequence[Path], *, width: int | None) -> str:
    """A result as text that ends with a line's end; empty where there is nothing to show.

    Args:
        result: It.
        files: Where its images are.
        width: The terminal's columns; None is no terminal: then nothing is drawn, folded or coloured.
    """
    parts = [drawn(each, width) for each in _parts(result, width)]
    parts += [f"{path}\n" for path in files]
    if result.chart is not None:
        parts.append(drawn(chart_table(result.chart), width))
    return "".join(parts)


def failure(error: ExceptionInfo, *, width: int | None) -> str:
    """An exception as text."""
    text = legible(COLOURS.sub("", str(error))).rstrip("\n")
    if width is None:
        return f"{text}\n"
    from rich.text import Text

    *above, last = text.split("\n")
    return drawn(Text.assemble("".join(f"{line}\n" for line in above), (last, "bold red")), width)


def drawn(what: RenderableType, width: int | None) -> str:
    """What rich makes of it."""
    from rich.console import Console

    page = StringIO()
    terminal = width is not None
    console = Console(
        file=page,
        force_terminal=terminal,
        width=width or 10_000,
        color_system="standard" if terminal else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(what, soft_wrap=isinstance(what, str))
    return page.getvalue() if terminal else "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def chart_table(chart: Chart) -> RenderableType:
    """The data of a chart."""
    from rich.console import Group

    if chart.charts:
        return Group(*(chart_table(each) for each in chart.charts))
    labels = [_label(chart.x_label, chart.x_unit), _label(chart.y_label, chart.y_unit)]
    columns = _COLUMNS.get(chart.type, _any_columns)(chart, labels)
    title = f"{chart.type}: {chart.title}" if chart.title else chart.type
    return _table(Table([columns.heads, *columns.rows], heads=1), title=title)


def _label(label: str, unit: str) -> str:
    """An axis's, with its unit unless it says that itself."""
    return label if not unit or f"({unit})" in label or f"[{unit}]" in label else f"{label} ({unit})".lstrip()


def _parts(result: Result, width: int | None) -> list[RenderableType]:
    kind = form(result)
    if kind == "nothing":
        return []
    if kind == "table":
        return [_table(first_table(result.html or ""))]
    if kind == "markdown" and width is not None:
        from rich.markdown import Markdown

        return [Markdown(legible(result.markdown or ""), hyperlinks=False)]
    return [legible(_TEXTS[kind](result).rstrip("\n"))]


def _json(result: Result) -> str:
    content = result.json
    return content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)


_TEXTS: Mapping[Form, Callable[[Result], str]] = {
    "text": lambda result: result.text or "",
    "markdown": lambda result: result.markdown or "",
    "latex": lambda result: result.latex or "",
    "json": _json,
    "html": lambda result: words(result.html or ""),
    "javascript": lambda result: f"JavaScript:\n{result.javascript}",
}


def _table(found: Table, title: str = "") -> RenderableType:
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.table import Table as Drawn
    from rich.text import Text

    rows = [[Text(legible(cell).strip()) for cell in row] for row in found.rows]
    heads, body = rows[: found.heads], rows[found.heads :]
    columns = max((len(row) for row in rows), default=0)
    beyond = " ".join(
        f"{count - most} more {what}." for count, most, what in ((len(body), MAX_ROWS, "rows"), (columns, MAX_COLUMNS, "columns")) if count > most
    )
    made = Drawn(box=SIMPLE, show_header=bool(heads), title=Text(legible(title)) if title else None, title_justify="left")
    columns = min(columns, MAX_COLUMNS)
    for column in range(columns):
        made.add_column(Text(" ").join(row[column] for row in heads if column < len(row)))
    for row in body[:MAX_ROWS]:
        made.add_row(*(row[column] if column < len(row) else "" for column in range(columns)))
    return Group(made, Text(f"  {beyond}")) if beyond else made


@dataclass(frozen=True, slots=True)
class _Columns:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def _points(chart: Chart, labels: Sequence[str]) -> _Columns:
    rows = []
    for each in chart.elements:
        points = each.get("points")
        points = points if isinstance(points, list) else []
        rows += [[_said(each, "label"), *(_cell(value) for value in point[:2])] for point in points[:MAX_POINTS] if isinstance(point, list)]
        if len(points) > MAX_POINTS:
            rows.append([_said(each, "label"), f"... {len(points) - MAX_POINTS} more", ""])
    return _Columns(["series", labels[0] or "x", labels[1] or "y"], rows)


def _bars(chart: Chart, labels: Sequence[str]) -> _Columns:
    rows = [[_said(each, "label"), _said(each, "value"), _said(each, "group")] for each in chart.elements]
    return _Columns([labels[0] or "label", labels[1] or "value", "group"], rows)


def _any_columns(chart: Chart, _: Sequence[str]) -> _Columns:
    names: dict[str, None] = {}
    for each in chart.elements:
        names |= dict.fromkeys(str(name) for name, value in each.items() if not isinstance(value, list | dict))
    heads = list(names)[:MAX_COLUMNS]
    return _Columns(heads, [[_said(each, name) for name in heads] for each in chart.elements])


_COLUMNS: Mapping[str, Callable[[Chart, Sequence[str]], _Columns]] = {"line": _points, "scatter": _points, "bar": _bars}


def _said(element: Mapping[str, Any], name: str) -> str:
    return _cell(element.get(name))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
