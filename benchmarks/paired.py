"""Values of two variants that take turns, as a table with medians and ratios."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

_NAME_CHARS, _VALUE_CHARS = 50, 24


class PairedRows:
    """Values by row: those of the first variant, and those of the second. The variants have the same number of values, one for each round.

    Args:
        first: Title of the first variant.
        second: Title of the second variant, whose values are divided by those of the first.
    """

    def __init__(self, first: str, second: str) -> None:
        self._titles = (first, second)
        self.rows: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))

    def add(self, row: str, variant: int, value: float) -> None:
        """Add one value. The arguments are those of :meth:`timed`."""
        self.rows[row][variant].append(value)

    @contextmanager
    def timed(self, row: str, variant: int) -> Iterator[None]:
        """Add the milliseconds that a block takes.

        Args:
            row: Name of the row.
            variant: 0 for the first variant, 1 for the second.
        """
        began_s = time.perf_counter()
        yield
        self.add(row, variant, (time.perf_counter() - began_s) * 1000)

    def table(self) -> str:
        """Return a table for people: the median of each variant with the least value in parentheses, and the median of the ratios of the rounds."""
        lines = [f"{'':{_NAME_CHARS}}{self._titles[0]:>{_VALUE_CHARS}}{self._titles[1]:>{_VALUE_CHARS}}{'ratio':>8}{'n':>5}"]
        for row, (before, after) in self.rows.items():
            ratio = statistics.median(new / old for old, new in zip(before, after, strict=True))
            lines.append(f"{row:{_NAME_CHARS}}{_short(before):>{_VALUE_CHARS}}{_short(after):>{_VALUE_CHARS}}{ratio:8.2f}{len(after):5}")
        return "\n".join(lines)


def _short(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f})"
