"""HTML that cells show: its tables and its words.

Law: it is a sandbox's. It is read as far as it can be, and nothing in it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first ones are heads where ``heads`` says so."""

    rows: Sequence[Sequence[str]]
    heads: int = 0


def first_table(html: str) -> Table:
    """The first table of a piece of HTML. Pure."""
    parser = _Tables()
    parser.feed(html)
    parser.close()
    return Table([row for row in parser.rows if row], heads=parser.heads)


def words(html: str) -> str:
    """The text of a piece of HTML, without scripts and styles. Pure."""
    parser = _Words()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.words).split("\n"))
    return "\n".join(line for line in lines if line)


class _TolerantParser(HTMLParser):
    """Parser that reads every text. Python before 3.14 raises AssertionError at a marked section that it does not know, such as ``<![a``."""

    def parse_marked_section(self, i: int, report: bool = True) -> int:  # noqa: FBT001, FBT002 - HTMLParser's
        """Skip a marked section. Treat one that Python cannot read as a comment, as browsers do."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report=False)


class _Tables(_TolerantParser):
    """Takes the cells of the first table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.heads = 0
        self._depth = 0
        self._over = False
        self._in_head = False
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        """Begin what it begins."""
        if tag == "table":
            self._depth += 1
        if self._depth != 1 or self._over:
            return
        if tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self.rows.append([])
            self.heads += self._in_head
        elif tag in {"td", "th"} and self.rows:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        """End what it ends."""
        if self._depth == 1 and not self._over:
            if tag in {"td", "th"} and self._cell is not None:
                self.rows[-1].append(" ".join("".join(self._cell).split()))
                self._cell = None
            elif tag == "thead":
                self._in_head = False
        if tag == "table" and self._depth:
            self._depth -= 1
            self._over = self._over or not self._depth

    def handle_data(self, data: str) -> None:
        """Take it where it is a cell's."""
        if self._cell is not None:
            self._cell.append(data)


class _Words(_TolerantParser):
    """Takes text, not what stands in scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        """Begin what it begins."""
        self._skipped += tag in {"script", "style"}
        if tag in {"br", "p", "div", "li", "tr", "h1", "h2", "h3"}:
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End what it ends."""
        self._skipped -= tag in {"script", "style"} and self._skipped > 0

    def handle_data(self, data: str) -> None:
        """Take it."""
        if not self._skipped:
            self.words.append(data)
