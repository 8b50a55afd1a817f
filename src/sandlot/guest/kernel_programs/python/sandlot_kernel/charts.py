"""Chart data: the content of a Matplotlib figure as JSON, so that programs can read the values that the figure shows.

The format is the format of the package e2b-charts. A chart has ``type`` (line, scatter, bar, pie, box_and_whisker, superchart, unknown),
``title`` and ``elements``. A chart with axes also has ``x_label``, ``x_unit``, ``x_ticks``, ``x_tick_labels``, ``x_scale``, and the same fields
for y. Fields in addition to e2b-charts are ``orientation`` of bar charts and box-and-whisker plots, ``fraction`` of a pie's wedges, and ``series``
of axes that contain several types of charts.

Invariants:
- The figure is never changed. If a figure cannot be read, there is no chart data for it, and the cell does not fail.
- A line or scatter series has at most ``POINTS_MAX`` points, and a chart has at most ``ELEMENTS_MAX`` elements. If there are more, ``omitted`` is
  the number of points or elements that are missing.
- Numbers are finite or None. Dates have the format of ISO 8601.
"""

from __future__ import annotations

import json
import math
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIME = "application/vnd.sandlot.chart.v1+json"
POINTS_MAX = 5000
ELEMENTS_MAX = 1000
CHARTS_MAX = 64
UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
"""Matches the unit in the label of an axis, such as "Speed (m/s)" or "Speed [m/s]", as e2b-charts does."""


def describe(figure: Any) -> str | None:
    """Return the chart data of a figure as JSON; None if the figure has no data or cannot be read.

    Args:
        figure: A ``matplotlib.figure.Figure``.
    """
    try:
        chart = of_figure(figure)
        return None if chart is None else json.dumps(chart, allow_nan=False)
    except Exception:  # noqa: BLE001 - parts of a figure may be objects of any class
        return None


def of_figure(figure: Any) -> dict[str, Any] | None:
    """Return the chart data of a figure; None if the figure has no data.

    The chart of a figure with several ``Axes`` has the type ``superchart``. It contains one chart for each of the first ``CHARTS_MAX`` ``Axes``.

    Args:
        figure: A ``matplotlib.figure.Figure``.
    """
    axes = [ax for ax in figure.get_axes() if not hasattr(ax, "_colorbar")]
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        chart = of_axes(axes[0])
        if chart["title"] is None:
            chart["title"] = _suptitle(figure)
        return chart
    return {"type": "superchart", "title": _suptitle(figure), "elements": [of_axes(ax) for ax in axes[:CHARTS_MAX]]}


def of_axes(ax: Any) -> dict[str, Any]:
    """Return the chart data of one ``Axes``, which is one coordinate system of a figure.

    Args:
        ax: A ``matplotlib.axes.Axes``.
    """
    series = []
    for kind, read in (("pie", _pie), ("box_and_whisker", _whisker_plots), ("bar", _bars), ("scatter", _scatter), ("line", _lines)):
        elements, extra = read(ax)
        if elements:
            series.append({"type": kind, "elements": elements[:ELEMENTS_MAX], **extra, **_omitted(elements, ELEMENTS_MAX)})
            if kind == "box_and_whisker":
                break  # the lines of these axes are whiskers and medians, so they are not read as a line chart
    chart: dict[str, Any] = {"type": "unknown", "title": ax.get_title() or None, "elements": []}
    if len(series) == 1:
        chart.update(series[0])
    elif series:
        chart["series"] = series
    if chart["type"] != "pie":
        chart.update(_axis("x", ax.xaxis, ax.get_xlabel(), ax.get_xscale()))
        chart.update(_axis("y", ax.yaxis, ax.get_ylabel(), ax.get_yscale()))
    return chart


def _suptitle(figure: Any) -> str | None:
    title = getattr(figure, "_suptitle", None)
    return (title.get_text() or None) if title is not None else None


def _axis(letter: str, axis: Any, label: str, scale: str) -> dict[str, Any]:
    unit = UNIT.search(label)
    labels = [text.get_text() for text in axis.get_ticklabels()]
    ticks = list(axis.get_ticklocs())
    if _is_dates(axis):
        scale = "datetime"
    elif scale == "linear" and ticks and all(tick == at for at, tick in enumerate(ticks)) and not any(_number(text) is not None for text in labels):
        scale = "categorical"
    return {
        f"{letter}_label": label or None,
        f"{letter}_unit": (unit.group(1) or unit.group(2)) if unit else None,
        f"{letter}_ticks": [_value(tick if _is_dates(axis) else _rounded(float(tick)), axis) for tick in ticks],
        f"{letter}_tick_labels": labels,
        f"{letter}_scale": scale,
    }


def _lines(ax: Any) -> tuple[list[Any], dict[str, Any]]:
    found: list[Any] = []
    for line in ax.get_lines():
        if _is_rule(line):
            continue
        label = str(line.get_label())
        if label.startswith("_"):
            label = f"Line {label[6:] if label.startswith('_child') else len(found)}"
        found.append({"label": label, **_points(line.get_xdata(orig=False), line.get_ydata(orig=False), ax)})
    return found, {}


def _scatter(ax: Any) -> tuple[list[Any], dict[str, Any]]:
    collections = _module("collections")
    found: list[Any] = []
    for collection in ax.collections:
        if isinstance(collection, collections.PathCollection):
            offsets = collection.get_offsets()
            label = str(collection.get_label())
            if label.startswith("_child"):
                label = f"Points {label[6:]}"
            found.append({"label": label, **_points(offsets[:, 0], offsets[:, 1], ax)})
    return found, {}


def _bars(ax: Any) -> tuple[list[Any], dict[str, Any]]:
    containers = _module("container")
    found: list[Any] = []
    orientation = "vertical"
    for number, container in enumerate(c for c in ax.containers if isinstance(c, containers.BarContainer)):
        group = str(container.get_label())
        if group.startswith("_container"):
            group = f"Group {number}"
        orientation = getattr(container, "orientation", None) or "vertical"
        flat = orientation == "horizontal"
        axis = ax.yaxis if flat else ax.xaxis
        names = _names(axis)
        for bar in container.patches:
            middle = bar.get_y() + bar.get_height() / 2 if flat else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if flat else bar.get_height()
            found.append({"label": _name_at(names, middle, axis), "value": _finite(value), "group": group})
    return found, {"orientation": orientation}


def _pie(ax: Any) -> tuple[list[Any], dict[str, Any]]:
    patches = _module("patches")
    wedges = [patch for patch in ax.patches if isinstance(patch, patches.Wedge)]
    found: list[Any] = []
    for wedge in wedges:
        angle = abs(float(wedge.theta2) - float(wedge.theta1))
        found.append({"label": str(wedge.get_label()), "angle": _rounded(angle), "radius": _finite(wedge.r), "fraction": _rounded(angle / 360)})
    return found, {}


def _whisker_plots(ax: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the values and the orientation of all box-and-whisker plots in ``ax``; an empty list if the shapes in ``ax`` are not such plots.

    Matplotlib draws each plot as a closed outline, whiskers, caps, a median line and outliers. This function recognizes them by their positions.
    """
    patches = _module("patches")
    outlines = [patch.get_path().vertices for patch in ax.patches if isinstance(patch, patches.PathPatch)]
    lines = []
    for line in ax.get_lines():
        xy = line.get_xydata()
        if not outlines and len(xy) == 5 and tuple(xy[0]) == tuple(xy[-1]):  # noqa: PLR2004 - four corners, and the first corner again
            outlines.append(xy)
        else:
            lines.append((xy, line))
    outlines = [*outlines, *(xy for xy, _line in lines if len(xy) == 5 and tuple(xy[0]) == tuple(xy[-1]))]  # noqa: PLR2004
    plots = [_WhiskerPlot(xy) for xy in _unique(outlines)]
    if not plots or len(ax.get_lines()) < 3 * len(plots):  # each plot has at least three lines: two whiskers and a median
        return [], {}
    flat = all(any(len(xy) == 2 and plot.is_median(xy, flat=True) for xy, _line in lines) for plot in plots)  # noqa: PLR2004
    axis = ax.yaxis if flat else ax.xaxis
    names = _names(axis)
    found = [plot.read([xy for xy, _line in lines], flat=flat) for plot in plots]
    if any(element is None for element in found):
        return [], {}
    elements = [{"label": _name_at(names, plot.middle(flat=flat), axis), **element} for plot, element in zip(plots, found) if element is not None]
    return elements, {"orientation": "horizontal" if flat else "vertical"}


class _WhiskerPlot:
    """One box-and-whisker plot, given by the outline of its rectangle between the first and the third quartile.

    Args:
        outline: Array of the x and y coordinates of the rectangle's corners.
    """

    def __init__(self, outline: Any) -> None:
        self.low = [float(min(outline[:, at])) for at in (0, 1)]
        self.high = [float(max(outline[:, at])) for at in (0, 1)]

    def middle(self, *, flat: bool) -> float:
        """Return the middle of the plot on the axis that shows the categories.

        Args:
            flat: True if the plot is horizontal, so that the y axis shows the categories.
        """
        at = 1 if flat else 0
        return (self.low[at] + self.high[at]) / 2

    def is_median(self, xy: Any, *, flat: bool) -> bool:
        """Return True if a line is the median line: it crosses the rectangle from one side to the other.

        Args:
            xy: Array of the coordinates of the line's two points.
            flat: True if the plot is horizontal.
        """
        across, along = (1, 0) if flat else (0, 1)
        ends = sorted(float(value) for value in xy[:, across])
        level = float(xy[0, along])
        return (
            level == float(xy[1, along])
            and _near(ends[0], self.low[across])
            and _near(ends[1], self.high[across])
            and self.low[along] <= level <= self.high[along]
        )

    def read(self, lines: list[Any], *, flat: bool) -> dict[str, Any] | None:
        """Return the values of the plot: quartiles, median, ends of the whiskers and outliers. Return None if no line is the median line.

        Args:
            lines: One array of coordinates for each line in the same ``Axes``.
            flat: True if the plot is horizontal.
        """
        across, along = (1, 0) if flat else (0, 1)
        middle = self.middle(flat=flat)
        median = None
        ends: list[float] = []
        outliers: list[float] = []
        for xy in lines:
            if len(xy) == 2 and self.is_median(xy, flat=flat):  # noqa: PLR2004
                median = float(xy[0, along])
            elif len(xy) and all(_near(float(value), middle) for value in xy[:, across]):
                values = [float(value) for value in xy[:, along]]
                touches = len(values) == 2 and any(_near(value, edge) for value in values for edge in (self.low[along], self.high[along]))  # noqa: PLR2004
                if touches and len(ends) < 4:  # noqa: PLR2004 - two whiskers with two ends each
                    ends.extend(values)
                else:
                    outliers.extend(values)
        if median is None:
            return None
        edges = [*ends, self.low[along], self.high[along]]
        return {
            "min": _rounded(min(edges)),
            "first_quartile": _rounded(self.low[along]),
            "median": _rounded(median),
            "third_quartile": _rounded(self.high[along]),
            "max": _rounded(max(edges)),
            "outliers": [_rounded(value) for value in outliers[:POINTS_MAX]],
        }


def _unique(outlines: list[Any]) -> list[Any]:
    seen: set[Any] = set()
    kept = []
    for xy in outlines:
        key = tuple(map(tuple, xy.tolist()))
        if key not in seen:
            seen.add(key)
            kept.append(xy)
    return kept


def _points(xs: Any, ys: Any, ax: Any) -> dict[str, Any]:
    pairs = list(zip(xs[:POINTS_MAX], ys[:POINTS_MAX]))
    return {"points": [[_value(x, ax.xaxis), _value(y, ax.yaxis)] for x, y in pairs], **_omitted(xs, POINTS_MAX)}


def _omitted(whole: Any, kept: int) -> dict[str, int]:
    return {"omitted": len(whole) - kept} if len(whole) > kept else {}


def _is_rule(line: Any) -> bool:
    """Return True if a line was drawn by axhline() or axvline(), which means that the line is an auxiliary line and not data."""
    return bool(line.get_transform() != line.axes.transData)


def _names(axis: Any) -> dict[float, str]:
    """Return a dict for an axis: position of a tick -> label of the tick. Ticks without a label are left out."""
    return {round(float(at), 6): text.get_text() for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels()) if text.get_text()}


def _name_at(names: dict[float, str], place: Any, axis: Any) -> str:
    """Return the name of the category at a position of an axis. If no category is near, return the value at the position as text.

    Args:
        names: Position of a tick -> label of the tick.
        place: The position.
        axis: The axis, which may convert its values to dates or categories.
    """
    if names and any(_number(name) is None for name in names.values()):
        at = min(names, key=lambda tick: abs(tick - float(place)))
        if abs(at - float(place)) <= 0.5:  # noqa: PLR2004 - half of the way to the next category
            return names[at]
    value = _value(_rounded(float(place)), axis)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_dates(axis: Any) -> bool:
    dates = sys.modules.get("matplotlib.dates")
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return dates is not None and isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter))  # noqa: SLF001


def _value(value: Any, axis: Any) -> Any:
    """Return what a number on an axis stands for: a date as text, the name of a category, or the number itself. None if the number is not finite."""
    if _is_dates(axis):
        date = _module("dates").num2date(value)
        return date.date().isoformat() if date.time() == type(date.time())() else date.replace(tzinfo=None).isoformat()
    units = getattr(axis, "units", None)
    mapping = getattr(units, "_mapping", None)
    if mapping:
        for name, at in mapping.items():
            if at == value:
                return str(name)
    return _finite(value)


def _number(text: str) -> float | None:
    try:
        return float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return None


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _rounded(value: float) -> float:
    """Return a number rounded to nine significant digits, so that 0.1 + 0.2 is shown as 0.3."""
    return float(f"{value:.9g}")


def _module(name: str) -> Any:
    return sys.modules[f"matplotlib.{name}"]
