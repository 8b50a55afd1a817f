"""What the commands share: notes for a person, tables, and words out of arguments.

Law: Text that code in a sandbox may have chosen reaches the terminal as text: what would be a command to the terminal, or break a line, is
spelled out. Only what somebody asks for as it is, is passed through: the streams of ``run``, ``exec`` and ``shell``, and ``--raw``.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

import typer

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400

_UNSEEN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters (C0, DEL and C1), breaks of lines, changes of direction, and what UTF-8 cannot carry."""
_UNSEEN_IN_LINES = re.compile(f"(?![\\n\\r\\t]){_UNSEEN.pattern}")


def visible(text: str) -> str:
    """A text on one line, in which nothing commands the terminal: such characters are spelled as Python spells them. Pure."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def legible(text: str) -> str:
    """A text of several lines, in which nothing commands the terminal; as :class:`Legible`. Pure."""
    return _UNSEEN_IN_LINES.sub(lambda found: ascii(found[0])[1:-1], text)


class Legible:
    """What a file or a program of a sandbox holds, for a terminal: lines, and nothing that commands it. Bytes that are no UTF-8 are spelled too."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """The next bytes as they may be shown; half a character waits for its other half, but for the last."""
        return legible(self._decoder.decode(data, last)).encode()


def note(text: str) -> None:
    """Tell the person something, on one line; scripts read standard output and do not see it."""
    typer.echo(visible(text), err=True)


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping.

    Raises:
        typer.BadParameter: One has no ``=`` or no name.
    """
    found = {}
    for value in values or ():
        name, equals, content = value.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {value!r}: it takes NAME=VALUE.")
        found[name] = content
    return found


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or how long until, in the largest fitting unit: ``40s``, ``5m``, ``3h``, ``2d``."""
    if moment is None:
        return "-"
    seconds = int(abs(((now or datetime.now(UTC)) - moment).total_seconds()))
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"


def span(seconds: float) -> str:
    """How long something took, in the largest fitting unit: ``0.3s``, ``40s``, ``5m``, ``3h``, ``2d``. Pure."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if seconds >= 2 * unit_s:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{int(seconds)}s"  # noqa: PLR2004 - two digits either way


def size(value: int) -> str:
    """Bytes for a person, in the units that options take: ``512M``, ``1.5G``."""
    for unit_bytes, unit in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if value >= unit_bytes:
            return f"{value / unit_bytes:.1f}".removesuffix(".0") + unit
    return str(value)


def as_json(value: object) -> str:
    """Anything that the SDK gives as JSON; moments in ISO 8601."""
    return json.dumps(plain(value), indent=2)


def plain(value: object) -> Any:  # noqa: ANN401 - what JSON can carry
    """Dataclasses, and what holds them, as what JSON can carry. Pure."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table: columns that cut(1) and awk(1) can take apart, nothing cut off."""
    shown = [[visible(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heads))]
    for row in shown:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
