"""Values of box-and-whisker plots, read from the lines that Matplotlib has drawn for them.

Matplotlib keeps no object for such a plot. ``Axes.bxp`` draws the lines of each plot one after the other: the outline unless it is a filled shape,
the lower and the upper whisker, two caps, the median, the mean and the outliers. Outline, caps, mean and outliers are optional. A whisker begins at
its quartile, so the outline is not needed.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OUTLINE_POINTS = (5, 11)
"""Number of points of a closed outline: a rectangle, or one with notches."""


class WhiskerPlot:
    """One box-and-whisker plot.

    Attributes:
        lines: The lines that belong to the plot.
        flat: True if the plot is horizontal, so that the y axis shows the categories.
        middle: Position on the axis that shows the categories.
        values: Ends of the whiskers, quartiles, median and outliers, under the names of e2b-charts.
    """

    def __init__(self, lines: list[Any], middle: float, values: dict[str, Any], *, flat: bool) -> None:
        self.lines = lines
        self.middle = middle
        self.values = values
        self.flat = flat


def find(lines: list[Any]) -> list[WhiskerPlot]:
    """Return the box-and-whisker plots of an ``Axes``.

    Args:
        lines: All lines of the ``Axes`` in the order in which they were added.
    """
    found = []
    at = 0
    sizes = [len(line.get_xdata(orig=False)) for line in lines]
    while at < len(lines):
        may_begin = sizes[at : at + 2] == [2, 2] or (sizes[at] in _OUTLINE_POINTS and sizes[at + 1 : at + 3] == [2, 2])
        plot = (_read(lines, at, flat=False) or _read(lines, at, flat=True)) if may_begin else None
        if plot is not None:
            found.append(plot)
        at += len(plot.lines) if plot is not None else 1
    return found


def _read(lines: list[Any], start: int, *, flat: bool) -> WhiskerPlot | None:
    """Return the plot whose first line is ``lines[start]``; None if no plot begins there."""
    rest = [_Line(line, flat=flat) for line in lines[start : start + 8]]  # the maximum number of lines of one plot
    at = 1 if rest[0].is_outline() else 0
    if len(rest) < at + 3:
        return None
    low, high = rest[at : at + 2]
    if not (low.is_along() and high.is_along() and _near(low.across[0], high.across[0])):
        return None
    middle, first, third = low.across[0], low.along[0], high.along[0]
    at += 2
    caps = rest[at : at + 2]
    if len(rest) > at + 2 and caps[0].is_across(middle, low.along[1]) and caps[1].is_across(middle, high.along[1]) and rest[at + 2].is_across(middle):
        at += 2
    median = rest[at]
    if not (median.is_across(middle) and low.along[1] <= first <= median.along[0] <= third <= high.along[1]):
        return None
    at += 1
    outliers: list[float] = []
    if len(rest) > at and rest[at].is_mean_of(median):
        at += 1
    if len(rest) > at and rest[at].is_outliers(middle, low):
        outliers = rest[at].along
        at += 1
    values: dict[str, Any] = {"min": low.along[1], "first_quartile": first, "median": median.along[0], "third_quartile": third, "max": high.along[1]}
    values["outliers"] = outliers
    return WhiskerPlot(lines[start : start + at], middle, values, flat=flat)


class _Line:
    """A line of the figure, with its coordinates on the axis of the categories (``across``) and on the axis of the values (``along``)."""

    def __init__(self, line: Any, *, flat: bool) -> None:
        xs = [float(x) for x in line.get_xdata(orig=False)]
        ys = [float(y) for y in line.get_ydata(orig=False)]
        self.across, self.along = (ys, xs) if flat else (xs, ys)
        self.zorder = line.get_zorder()
        self.connected = str(line.get_linestyle()) not in {"None", "", " "}

    def is_outline(self) -> bool:
        """Return True if the line is closed and has the number of points of a box."""
        return len(self.across) in _OUTLINE_POINTS and (self.across[0], self.along[0]) == (self.across[-1], self.along[-1])

    def is_along(self) -> bool:
        """Return True for a line that may be a whisker."""
        return len(self.across) == 2 and _near(*self.across) and self.connected  # noqa: PLR2004 - both ends

    def is_across(self, middle: float, level: float | None = None) -> bool:
        """Return True for a line that may be a cap or a median: at a right angle to the whisker, and centred on it.

        Args:
            middle: Position of the whisker.
            level: Value of the line; None for any value.
        """
        if len(self.across) != 2 or not _near(*self.along) or _near(*self.across):  # noqa: PLR2004 - both ends
            return False
        return _near(sum(self.across) / 2, middle) and (level is None or _near(self.along[0], level))

    def is_mean_of(self, median: _Line) -> bool:
        """Return True for the mean. Matplotlib draws it above the outliers, as it draws the median."""
        if self.zorder != median.zorder:
            return False
        middle = sum(median.across) / 2
        return self.is_across(middle) if self.connected else len(self.across) == 1 and _near(self.across[0], middle)

    def is_outliers(self, middle: float, whisker: _Line) -> bool:
        """Return True for the outliers, which are points without a line. There may be none."""
        return not self.connected and self.zorder == whisker.zorder and all(_near(value, middle) for value in self.across)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
