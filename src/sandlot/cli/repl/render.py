"""Results of cells as text for a terminal or a file: tables, charts and errors; images are saved.

Invariants:
- Control characters of results are escaped (``cli/output.py``). A sandbox does not choose names of local files.
- An image is saved as a new file; no existing file is overwritten.
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
from sandlot.cli.repl.html import Table, first_table, html_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sandlot.sdk import Chart, ExceptionInfo, Result

Form = Literal["text", "markdown", "table", "latex", "json", "html", "javascript", "nothing"]

EXTENSIONS: Mapping[str, str] = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "application/pdf": ".pdf",
}
"""Media types of saved images, best first, and the extensions of their files."""
MAX_FILES = 100_000
MAX_ROWS, MAX_COLUMNS = 50, 20
"""Largest part of a table that is shown; other rows and columns are counted."""
MAX_POINTS = 10
"""Largest number of points that are shown of a series of a chart."""

_PLAIN_REPR = re.compile(r"\s*<[^<>\n]{1,200}>\s*")
"""Default representation of a Python object, such as ``<Figure size 640x480 with 1 Axes>``."""
COLOURS = re.compile("\\x1b\\[[0-9;]*m")
"""Colour sequences (SGR, ECMA-48 8.3.117)."""


def choose_form(result: Result) -> Form:
    """Return the form in which a result is shown, besides its images."""
    text = result.text
    if text is not None and not _PLAIN_REPR.fullmatch(text):
        return "text"
    if any(mime in result.data for mime in EXTENSIONS):
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
    return next((name for name, exists in forms if exists), "nothing")


def save_image(result: Result, folder: Path) -> list[Path]:
    """Save the image of a result in its best format, and return its path; an empty list if there is no image."""
    mime = next((mime for mime in EXTENSIONS if mime in result.data), None)
    if mime is None:
        return []
    try:
        content = result.content(mime)
    except ValueError:
        return []  # not the base64 that the media type requires
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, MAX_FILES):
        path = folder / f"{number:03}{EXTENSIONS[mime]}"
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return [path]
    return []


def render(result: Result, files: Sequence[Path], *, width: int | None) -> str:
    """Return a result as text that ends with a line break; empty if there is nothing to show.

    Args:
        result: Result of a cell.
        files: Paths of its saved images.
        width: Columns of the terminal; None without a terminal: plain text without colours and line folding.
    """
    parts = [draw(each, width) for each in _parts(result, width)]
    parts += [f"{path}\n" for path in files]
    if result.chart is not None:
        parts.append(draw(chart_table(result.chart), width))
    return "".join(parts)


def render_error(error: ExceptionInfo, *, width: int | None) -> str:
    """Return an exception as text; arguments as in :func:`render`."""
    text = legible(COLOURS.sub("", str(error))).rstrip("\n")
    if width is None:
        return f"{text}\n"
    from rich.text import Text

    *above, last = text.split("\n")
    return draw(Text.assemble("".join(f"{line}\n" for line in above), (last, "bold red")), width)


def draw(what: RenderableType, width: int | None) -> str:
    """Return the output of rich for a renderable."""
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
    """Return the data of a chart as a table."""
    from rich.console import Group

    if chart.charts:
        return Group(*(chart_table(each) for each in chart.charts))
    labels = [_label(chart.x_label, chart.x_unit), _label(chart.y_label, chart.y_unit)]
    columns = _COLUMNS.get(chart.type, _any_columns)(chart, labels)
    title = f"{chart.type}: {chart.title}" if chart.title else chart.type
    return _table(Table([columns.headers, *columns.rows], headers=1), title=title)


def _label(label: str, unit: str) -> str:
    """Return the label of an axis with its unit, unless the label has it."""
    return label if not unit or f"({unit})" in label or f"[{unit}]" in label else f"{label} ({unit})".lstrip()


def _parts(result: Result, width: int | None) -> list[RenderableType]:
    kind = choose_form(result)
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
    "html": lambda result: html_text(result.html or ""),
    "javascript": lambda result: f"JavaScript:\n{result.javascript}",
}


def _table(found: Table, title: str = "") -> RenderableType:
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [[Text(legible(cell).strip()) for cell in row] for row in found.rows]
    headers, body = rows[: found.headers], rows[found.headers :]
    columns = max((len(row) for row in rows), default=0)
    beyond = " ".join(
        f"{count - most} more {what}." for count, most, what in ((len(body), MAX_ROWS, "rows"), (columns, MAX_COLUMNS, "columns")) if count > most
    )
    rich_table = RichTable(box=SIMPLE, show_header=bool(headers), title=Text(legible(title)) if title else None, title_justify="left")
    columns = min(columns, MAX_COLUMNS)
    for column in range(columns):
        rich_table.add_column(Text(" ").join(row[column] for row in headers if column < len(row)))
    for row in body[:MAX_ROWS]:
        rich_table.add_row(*(row[column] if column < len(row) else "" for column in range(columns)))
    return Group(rich_table, Text(f"  {beyond}")) if beyond else rich_table


@dataclass(frozen=True, slots=True)
class _Columns:
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def _points(chart: Chart, labels: Sequence[str]) -> _Columns:
    rows = []
    for each in chart.elements:
        points = each.get("points")
        points = points if isinstance(points, list) else []
        rows += [[_field(each, "label"), *(_cell(value) for value in point[:2])] for point in points[:MAX_POINTS] if isinstance(point, list)]
        if len(points) > MAX_POINTS:
            rows.append([_field(each, "label"), f"... {len(points) - MAX_POINTS} more", ""])
    return _Columns(["series", labels[0] or "x", labels[1] or "y"], rows)


def _bars(chart: Chart, labels: Sequence[str]) -> _Columns:
    rows = [[_field(each, "label"), _field(each, "value"), _field(each, "group")] for each in chart.elements]
    return _Columns([labels[0] or "label", labels[1] or "value", "group"], rows)


def _any_columns(chart: Chart, _: Sequence[str]) -> _Columns:
    names: dict[str, None] = {}
    for each in chart.elements:
        names |= dict.fromkeys(str(name) for name, value in each.items() if not isinstance(value, list | dict))
    headers = list(names)[:MAX_COLUMNS]
    return _Columns(headers, [[_field(each, name) for name in headers] for each in chart.elements])


_COLUMNS: Mapping[str, Callable[[Chart, Sequence[str]], _Columns]] = {"line": _points, "scatter": _points, "bar": _bars}


def _field(element: Mapping[str, Any], name: str) -> str:
    return _cell(element.get(name))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
