"""Output of the commands: notes, tables, JSON and escaping.

Invariant: control characters in text that code in a sandbox may have chosen are escaped before the text reaches the terminal. Only the streams of
``run``, ``exec`` and ``shell``, and ``--raw``, are passed through unchanged.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import typer

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400

_UNSEEN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters (C0, DEL and C1), line separators, bidirectional controls, and surrogates, which UTF-8 cannot encode."""
_UNSEEN_IN_LINES = re.compile(f"(?![\\n\\r\\t]){_UNSEEN.pattern}")


def visible(text: str) -> str:
    """Return a text on one line, with control characters escaped as Python does."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def legible(text: str) -> str:
    """Return a text with control characters escaped, except line breaks and tabs."""
    return _UNSEEN_IN_LINES.sub(lambda found: ascii(found[0])[1:-1], text)


class ControlCharacterFilter:
    """Filter for bytes of a file or program of a sandbox on a terminal. Control characters and bytes that are not UTF-8 are escaped."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the next bytes, escaped. An incomplete character is kept for the next call, unless these bytes are the last."""
        return legible(self._decoder.decode(data, last)).encode()


def note(text: str) -> None:
    """Print a line for people to standard error."""
    typer.echo(visible(text), err=True)


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


def print_ids(items: Iterable[_HasId]) -> None:
    """Print the id of each item on a line."""
    for item in items:
        typer.echo(visible(item.id))


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Return the time since or until a moment, in the largest fitting unit: ``40s``, ``5m``, ``3h``, ``2d``."""
    if moment is None:
        return "-"
    seconds = int(abs(((now or datetime.now(UTC)) - moment).total_seconds()))
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"


def duration(seconds: float) -> str:
    """Return a duration in the largest fitting unit: ``0.3s``, ``40s``, ``5m``, ``3h``, ``2d``."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if seconds >= 2 * unit_s:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{int(seconds)}s"  # noqa: PLR2004 - at least two digits


def size(value: int) -> str:
    """Return a number of bytes in the units that options accept: ``512M``, ``1.5G``."""
    for unit_bytes, unit in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if value >= unit_bytes:
            return f"{value / unit_bytes:.1f}".removesuffix(".0") + unit
    return str(value)


def as_json(value: object) -> str:
    """Return a value of the SDK as JSON text; times in ISO 8601."""
    return json.dumps(plain(value), indent=2)


def plain(value: object) -> Any:  # noqa: ANN401 - a JSON value
    """Return a value of the SDK as a JSON value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table that awk(1) can split; nothing is cut off."""
    shown = [[visible(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heads))]
    for row in shown:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
