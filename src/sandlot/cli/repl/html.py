"""Tables and text of HTML results.

The HTML comes from a sandbox: invalid HTML is read as far as possible and never raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first ``headers`` rows are column titles."""

    rows: Sequence[Sequence[str]]
    headers: int = 0


def first_table(html: str) -> Table:
    """Return the first table of HTML."""
    parser = _TableParser()
    parser.feed(html)
    parser.close()
    return Table([row for row in parser.rows if row], headers=parser.headers)


def html_text(html: str) -> str:
    """Return the text of HTML without scripts and styles."""
    parser = _TextParser()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


class _TolerantParser(HTMLParser):
    """Parser that reads every text. Python before 3.14 raises AssertionError at a marked section that it does not know, such as ``<![a``."""

    def parse_marked_section(self, i: int, report: bool = True) -> int:  # noqa: FBT001, FBT002 - HTMLParser's
        """Skip a marked section. Treat one that Python cannot read as a comment, as browsers do."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report=False)


class _TableParser(_TolerantParser):
    """Collects the cells of the first table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.headers = 0
        self._depth = 0
        self._done = False
        self._in_head = False
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        """Start a table, row or cell."""
        if tag == "table":
            self._depth += 1
        if self._depth != 1 or self._done:
            return
        if tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self.rows.append([])
            self.headers += self._in_head
        elif tag in {"td", "th"} and self.rows:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        """End a table, row or cell."""
        if self._depth == 1 and not self._done:
            if tag in {"td", "th"} and self._cell is not None:
                self.rows[-1].append(" ".join("".join(self._cell).split()))
                self._cell = None
            elif tag == "thead":
                self._in_head = False
        if tag == "table" and self._depth:
            self._depth -= 1
            self._done = self._done or not self._depth

    def handle_data(self, data: str) -> None:
        """Add text to the current cell."""
        if self._cell is not None:
            self._cell.append(data)


class _TextParser(_TolerantParser):
    """Collects text outside of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        """Start a line break or skipped element."""
        self._skipped += tag in {"script", "style"}
        if tag in {"br", "p", "div", "li", "tr", "h1", "h2", "h3"}:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a skipped element."""
        self._skipped -= tag in {"script", "style"} and self._skipped > 0

    def handle_data(self, data: str) -> None:
        """Add text."""
        if not self._skipped:
            self.parts.append(data)
