"""Chart data: the content of a Matplotlib figure as JSON, so that programs can read the values that the figure shows.

The format is the format of the package e2b-charts. A chart has ``type`` (line, scatter, bar, pie, box_and_whisker, superchart, unknown),
``title`` and ``elements``. A chart with axes also has ``x_label``, ``x_unit``, ``x_ticks``, ``x_tick_labels``, ``x_scale``, and the same fields
for y. Fields in addition to e2b-charts are ``orientation`` of bar charts and box-and-whisker plots, ``fraction`` of a pie's wedges, and ``series``
of axes that contain several types of charts.

Invariants:
- The figure is never changed. If a figure cannot be read, there is no chart data for it, and the cell does not fail.
- A line or scatter series has at most ``POINTS_MAX`` points, and a chart has at most ``ELEMENTS_MAX`` elements. If there are more, ``omitted`` is
  the number of points or elements that are missing.
- Numbers are finite or None. Dates have the format of ISO 8601; a period, such as a month of a pandas series, is given as its start.
- A chart has a type other than unknown only if that type shows all data of its ``Axes``. Error bars, confidence bands and rules are left out.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys

from . import whisker_plots

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
    """Return the chart data of one ``Axes``, which is one coordinate system of a figure. The type is ``unknown`` if its content cannot be read.

    Args:
        ax: A ``matplotlib.axes.Axes``.
    """
    try:
        series = [
            {"type": kind, **extra, "elements": elements[:ELEMENTS_MAX], **_omitted(elements, ELEMENTS_MAX)} for kind, elements, extra in _series(ax)
        ]
    except Exception:  # noqa: BLE001 - parts of a figure may be objects of any class
        series = []
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
    elif scale == "linear" and all(tick == at for at, tick in enumerate(ticks)) and _has_names(labels):
        scale = "categorical"
    return {
        f"{letter}_label": label or None,
        f"{letter}_unit": (unit.group(1) or unit.group(2)) if unit else None,
        f"{letter}_ticks": [_value(tick if _is_dates(axis) else _rounded(float(tick)), axis) for tick in ticks],
        f"{letter}_tick_labels": labels,
        f"{letter}_scale": scale,
    }


def _series(ax: Any) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Return the series of an ``Axes`` by type: name of the type, elements, further fields. Empty if any part of the content cannot be read.

    Args:
        ax: A ``matplotlib.axes.Axes``.
    """
    if ax.name == "3d":
        return []  # Matplotlib keeps projections to the screen there, not values
    legend = _legend(ax)
    plots = whisker_plots.find(list(ax.get_lines()))
    bars = [each for each in ax.containers if isinstance(each, _module("container").BarContainer) and each.patches]
    wedges = _pie_wedges(ax)
    clouds = [each for each in ax.collections if _is_cloud(each)]
    lines = _Lines(ax, plots, bars, others=bool(plots or bars or wedges or clouds))
    if not _is_readable(ax, lines, {id(patch) for patch in wedges} | {id(patch) for each in bars for patch in each.patches}, plots):
        return []
    series: tuple[tuple[str, list[Any], dict[str, Any]], ...] = (
        ("pie", _pie(wedges, legend), {}),
        ("box_and_whisker", *_whisker_charts(ax, plots)),
        ("bar", *_bars(ax, bars, legend)),
        ("scatter", _scatter(ax, clouds, legend), {}),
        ("line", _curves(ax, lines, legend), {}),
    )
    return [each for each in series if each[1]]


class _Lines:
    """The lines of an ``Axes`` that are data. Rules, error bars, parts of box-and-whisker plots and samples for a legend are left out.

    Attributes:
        shown: The lines.
        labels: Id of a line -> label of the error bar plot or the stem plot to which it belongs.
    """

    def __init__(self, ax: Any, plots: list[whisker_plots.WhiskerPlot], bars: list[Any], *, others: bool) -> None:
        containers = _module("container")
        self.labels: dict[int, str] = {}
        aside = {id(line) for plot in plots for line in plot.lines}
        for container in ax.containers:
            line = None
            if isinstance(container, containers.ErrorbarContainer):
                line, caps, _bars = container.lines
                aside.update(id(cap) for cap in caps)
            elif isinstance(container, containers.StemContainer):
                line = container.markerline
                aside.add(id(container.baseline))
            if line is not None:
                self.labels[id(line)] = _label(container)
        self.shown = [line for line in ax.get_lines() if line.get_visible() and id(line) not in aside and _in_data(line) and _has_points(line)]
        drawn = [line for line in self.shown if _is_drawn(line)]
        if drawn or others:
            self.shown = drawn
        flat = _is_flat(bars) if bars else bool(_categories(ax.yaxis)) and not _categories(ax.xaxis)
        data = [line for line in self.shown if not (self.is_unnamed(line) and _is_segment(line, flat=flat))]
        if data or others:  # what remains are error bars that a library has drawn as lines, such as seaborn
            self.shown = data

    def is_unnamed(self, line: Any) -> bool:
        """Return True if neither the line nor the plot that contains it has a label."""
        return _label(line).startswith("_") and self.labels.get(id(line), "_").startswith("_")

    def curves(self) -> list[Any]:
        """Return the lines that are more than a point or a segment parallel to an axis."""
        return [line for line in self.shown if not any(_is_segment(line, flat=flat) for flat in (False, True))]


def _is_readable(ax: Any, lines: _Lines, known: set[int], plots: list[whisker_plots.WhiskerPlot]) -> bool:
    """Return True if the ``Axes`` has no other data than the types of charts show. Shapes that decorate a chart are not data.

    Args:
        ax: A ``matplotlib.axes.Axes``.
        lines: The lines that are data.
        known: Ids of the patches that belong to bars and pies.
        plots: The box-and-whisker plots.
    """
    if any(image.get_visible() for image in ax.images):
        return False
    patches = _module("patches")
    data_patches = (patches.Polygon, getattr(patches, "StepPatch", patches.Polygon), *(() if plots else (patches.PathPatch,)))
    for patch in ax.patches:
        is_data = patch.get_visible() and id(patch) not in known and type(patch) in data_patches and _in_data(patch)
        if is_data and not any(_traces(patch.get_path().vertices, curve) for curve in lines.curves()):
            return False
    collections = _module("collections")
    fills = (collections.PolyCollection, getattr(collections, "FillBetweenPolyCollection", collections.PolyCollection))
    for collection in ax.collections:
        if not collection.get_visible() or _is_cloud(collection) or id(collection) in known:
            continue
        if type(collection) is collections.LineCollection and all(_is_parallel(each) for each in collection.get_segments()[:ELEMENTS_MAX]):
            continue
        if type(collection) not in fills or collection.get_array() is not None or not _is_band(collection, lines):
            return False
    return True


def _is_band(fill: Any, lines: _Lines) -> bool:
    """Return True if a filled area belongs to a curve, such as a confidence interval. An area that is stacked on another area is data.

    If the area rests on a level and only the area has a label, the curve receives the label.

    Args:
        fill: A ``matplotlib.collections.PolyCollection``.
        lines: The lines that are data.
    """
    if not _in_data(fill):
        return True
    label = _label(fill)
    vertices = [(float(x), float(y)) for path in fill.get_paths() for x, y in path.vertices[: 2 * POINTS_MAX]]
    ranges: dict[float, tuple[float, float]] = {}
    for x, y in vertices:
        low, high = ranges.get(x, (y, y))
        ranges[x] = (min(low, y), max(high, y))
    if not lines.curves():
        return False
    is_inside = len({y for _x, y in vertices}) <= 2  # noqa: PLR2004 - a band of constant height marks a range
    for curve in lines.curves():
        points = _finite_points(curve)
        shared = [(ranges[x], y) for x, y in points if x in ranges]
        is_inside = is_inside or not shared or any(low <= y <= high for (low, high), y in shared)
        if lines.is_unnamed(curve) and not label.startswith("_") and shared and all(y in bounds for bounds, y in shared):
            others = {low if y == high else high for (low, high), y in shared}
            if len(others) > 1:
                return False
            lines.labels[id(curve)] = label
    return is_inside


def _traces(vertices: Any, line: Any) -> bool:
    points = set(_finite_points(line))
    return all((float(x), float(y)) in points for x, y in vertices if math.isfinite(x) and math.isfinite(y))


def _curves(ax: Any, lines: _Lines, legend: dict[Any, str]) -> list[Any]:
    looks = [_look(line.get_color()) for line in lines.shown]
    found: list[Any] = []
    for line, look in zip(lines.shown, looks):
        label = _label(line)
        if label.startswith("_"):
            label = lines.labels.get(id(line), label)
        if label.startswith("_"):
            number = label[6:] if label.startswith("_child") else len(found)
            label = (legend.get(look) if looks.count(look) == 1 else None) or f"Line {number}"
        found.append({"label": label, **_points(line.get_xdata(orig=False), line.get_ydata(orig=False), ax)})
    return found


def _scatter(ax: Any, clouds: list[Any], legend: dict[Any, str]) -> list[Any]:
    found: list[Any] = []
    for cloud in clouds:
        offsets = cloud.get_offsets()
        label = _label(cloud)
        if label.startswith("_"):
            faces = {_look(face) for face in cloud.get_facecolor()}
            known = legend.get(faces.pop()) if len(faces) == 1 else None
            label = known or (f"Points {label[6:]}" if label.startswith("_child") else f"Points {len(found)}")
        found.append({"label": label, **_points(_category_places(offsets[:, 0], ax.xaxis), _category_places(offsets[:, 1], ax.yaxis), ax)})
    return found


def _category_places(places: Any, axis: Any) -> Any:
    """Return positions with each one beside a category moved to the category: seaborn spreads the points of a category."""
    categories = _categories(axis)
    return [round(float(place)) if round(float(place)) in categories else place for place in places] if categories else places


def _bars(ax: Any, bars: list[Any], legend: dict[Any, str]) -> tuple[list[Any], dict[str, Any]]:
    found: list[Any] = []
    for number, container in enumerate(bars):
        flat = _is_flat([container])
        middles = [float(bar.get_y() + bar.get_height() / 2 if flat else bar.get_x() + bar.get_width() / 2) for bar in container.patches]
        groups = _groups(container, f"Group {number}", legend)
        labels = _labels_at(middles, ax.yaxis if flat else ax.xaxis, _smallest_step(sorted(middles)))
        for bar, label, group in zip(container.patches, labels, groups):
            found.append({"label": label, "value": _finite(bar.get_width() if flat else bar.get_height()), "group": group})
    return found, {"orientation": "horizontal" if _is_flat(bars) else "vertical"}


def _groups(container: Any, default: str, legend: dict[Any, str]) -> list[str]:
    """Return the label of each bar's group. A histogram gives its label to its first bar, and bar() may give one to each bar."""
    label = _label(container)
    labels = [text for text in (_label(bar) for bar in container.patches) if text and not text.startswith("_")]
    if not label.startswith("_"):
        return [label] * len(container.patches)
    if len(labels) == len(container.patches):
        return labels
    return [labels[0] if labels else legend.get(_look(bar.get_facecolor()), default) for bar in container.patches]


def _is_flat(bars: list[Any]) -> bool:
    return bool(bars) and getattr(bars[-1], "orientation", None) == "horizontal"


def _whisker_charts(ax: Any, plots: list[whisker_plots.WhiskerPlot]) -> tuple[list[Any], dict[str, Any]]:
    flat = any(plot.flat for plot in plots)
    labels = _labels_at([plot.middle for plot in plots], ax.yaxis if flat else ax.xaxis)
    found: list[Any] = []
    for label, plot in zip(labels, plots):
        values = {name: _rounded(value) for name, value in plot.values.items() if name != "outliers"}
        found.append({"label": label, **values, "outliers": [_rounded(value) for value in plot.values["outliers"][:POINTS_MAX]]})
    return found, {"orientation": "horizontal" if flat else "vertical"}


def _pie_wedges(ax: Any) -> list[Any]:
    """Return the wedges of pies. Each wedge of a pie begins where the one before it ends. Other wedges are shapes."""
    wedges = [patch for patch in ax.patches if isinstance(patch, _module("patches").Wedge) and patch.get_visible()]
    rings: dict[float, list[Any]] = {}
    for wedge in wedges:
        rings.setdefault(float(wedge.r), []).append(wedge)
    for ring in rings.values():
        total = sum(abs(float(wedge.theta2) - float(wedge.theta1)) for wedge in ring)
        joined = all(any(math.isclose(end, start, abs_tol=1e-3) for end, start in _edges(*pair)) for pair in zip(ring, ring[1:]))
        if not joined or total > 360.1 or (len(ring) == 1 and total < 359.9):  # noqa: PLR2004 - degrees, computed in single precision
            return []
    return wedges


def _edges(one: Any, other: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    return (float(one.theta2), float(other.theta1)), (float(one.theta1), float(other.theta2))


def _pie(wedges: list[Any], legend: dict[Any, str]) -> list[Any]:
    found: list[Any] = []
    for wedge in wedges:
        angle = abs(float(wedge.theta2) - float(wedge.theta1))
        label = _label(wedge)
        if not label or label.startswith("_"):
            label = legend.get(_look(wedge.get_facecolor()), "")
        # Angles have single precision in Matplotlib before 3.11.
        found.append({"label": label, "angle": round(angle, 4), "radius": _finite(wedge.r), "fraction": round(angle / 360, 6)})
    return found


def _legend(ax: Any) -> dict[Any, str]:
    """Return the labels in the legend by colour, for lines and bars that have no label of their own. A colour that occurs twice is left out."""
    legend = ax.get_legend()
    found: dict[Any, set[str]] = {}
    handles = () if legend is None else getattr(legend, "legend_handles", getattr(legend, "legendHandles", ()))
    for handle, text in zip(handles, legend.get_texts() if handles else ()):
        if hasattr(handle, "get_facecolor"):
            faces = handle.get_facecolor()
            color = faces[0] if len(getattr(faces, "shape", ())) > 1 else faces
        elif hasattr(handle, "get_color"):
            color = handle.get_color()
        else:
            continue
        found.setdefault(_look(color), set()).add(text.get_text())
    return {look: labels.pop() for look, labels in found.items() if len(labels) == 1}


def _label(artist: Any) -> str:
    """Return the label of an artist. A label that begins with an underscore was not chosen by the user."""
    label = artist.get_label()
    return "_" if label is None else str(label)


def _look(color: Any) -> tuple[float, ...]:
    """Return a colour as red, green and blue, without its transparency."""
    return tuple(round(float(part), 4) for part in _module("colors").to_rgba(color)[:3])


def _is_cloud(collection: Any) -> bool:
    """Return True if a collection is the points of a scatter plot."""
    if not isinstance(collection, _module("collections").PathCollection) or not collection.get_visible():
        return False
    return len(collection.get_sizes()) > 0 and len(collection.get_offsets()) > 0


def _in_data(artist: Any) -> bool:
    """Return True if the coordinates of an artist are values on both axes. axhline(), for example, draws from one edge to the other."""
    return all(artist.get_transform().contains_branch_seperately(artist.axes.transData))


def _is_drawn(line: Any) -> bool:
    return str(line.get_linestyle()) not in {"None", " ", ""} or str(line.get_marker()) not in {"None", " ", ""}


def _finite_points(line: Any) -> list[tuple[float, float]]:
    pairs = zip(line.get_xdata(orig=False)[:POINTS_MAX], line.get_ydata(orig=False)[:POINTS_MAX])
    return [(float(x), float(y)) for x, y in pairs if math.isfinite(float(x)) and math.isfinite(float(y))]


def _has_points(line: Any) -> bool:
    """Return True if a line has a finite point, and is not a set of separate segments, as the edges of a mesh or the error bars of seaborn."""
    xs = [float(x) for x in line.get_xdata(orig=False)[:POINTS_MAX]]
    gaps = [at for at, x in enumerate(xs) if math.isnan(x)]
    return bool(_finite_points(line)) and not (gaps and len(xs) > 3 and gaps == list(range(2, len(xs), 3)))  # noqa: PLR2004 - two ends and a gap


def _is_segment(line: Any, *, flat: bool) -> bool:
    """Return True if a line is a point or a segment parallel to the axis of the values.

    Args:
        line: The line.
        flat: True if the x axis shows the values.
    """
    points = line.get_ydata(orig=False) if flat else line.get_xdata(orig=False)
    return len(points) == 1 or (len(points) == 2 and float(points[0]) == float(points[1]))  # noqa: PLR2004 - both ends


def _is_parallel(segment: Any) -> bool:
    return len(segment) == 2 and any(float(segment[0][at]) == float(segment[1][at]) for at in (0, 1))  # noqa: PLR2004 - both ends


def _points(xs: Any, ys: Any, ax: Any) -> dict[str, Any]:
    pairs = list(zip(xs[:POINTS_MAX], ys[:POINTS_MAX]))
    return {"points": [[_value(x, ax.xaxis), _value(y, ax.yaxis)] for x, y in pairs], **_omitted(xs, POINTS_MAX)}


def _omitted(whole: Any, kept: int) -> dict[str, int]:
    return {"omitted": len(whole) - kept} if len(whole) > kept else {}


def _names(axis: Any) -> dict[float, str]:
    """Return the names on an axis: position of a tick -> name. Empty if the axis has none, for example if its labels are numbers or dates."""
    if _is_dates(axis) or not isinstance(axis.get_major_locator(), (_module("ticker").FixedLocator, _module("category").StrCategoryLocator)):
        return {}
    names = {round(float(at), 6): text.get_text() for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels()) if text.get_text()}
    return names if _has_names(list(names.values())) else {}


def _has_names(labels: list[str]) -> bool:
    return any(labels) and any(label and _number(label) is None for label in labels)


def _labels_at(places: list[float], axis: Any, spacing: float = 1e9) -> list[str]:
    """Return the names of the categories at positions of an axis. For a position without a name, return its value as text.

    Args:
        places: Positions of the bars of one group, or of all box-and-whisker plots.
        axis: The axis, which may convert its values to dates or categories.
        spacing: Distance between two categories if the positions have one each. A name is valid up to half of the way to the next category.
    """
    names = _names(axis)
    ticks = sorted(names)
    step = _smallest_step(ticks)
    shifts = [place - tick for place, tick in zip(sorted(places), ticks)]
    # A group of bars beside other groups has a bar for each name, all at the same distance from it.
    if ticks and len(places) == len(ticks) and max(shifts) - min(shifts) < step / 100 and abs(shifts[0]) < step:
        found: dict[float, str] = {place: names[tick] for place, tick in zip(sorted(places), ticks)}
        return [found[place] for place in places]
    labels = []
    for place in places:
        tick = min(ticks, key=lambda at: abs(at - place), default=None)
        if tick is not None and abs(tick - place) <= min(step, spacing) / 2:
            labels.append(names[tick])
        else:
            value = _value(_rounded(place), axis)
            labels.append(f"{value:.9g}" if isinstance(value, float) else str(value))
    return labels


def _smallest_step(places: list[float]) -> float:
    return min((high - low for low, high in zip(places, places[1:]) if high > low), default=1.0)


def _is_dates(axis: Any) -> bool:
    dates = sys.modules.get("matplotlib.dates")
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return dates is not None and isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter))  # noqa: SLF001


def _value(value: Any, axis: Any) -> Any:
    """Return what a number on an axis stands for: a date as text, the name of a category, or the number itself. None if the number is not finite."""
    if not math.isfinite(float(value)):
        return None
    if _is_dates(axis):
        date = _date(value, axis)
        return str(date.isoformat() if date.tzinfo is not None or date.time() != type(date.time())() else date.date().isoformat())
    return _categories(axis).get(float(value), float(value))


def _date(value: Any, axis: Any) -> Any:
    """Return a number on an axis of dates as a date. On the axis of a series with a frequency, pandas counts periods, for example months."""
    freq = getattr(axis, "freq", None)
    if freq is None:
        zone = axis.units if isinstance(axis.units, dt.tzinfo) else None
        date = _module("dates").num2date(value, tz=zone)
        return date if zone is not None else date.replace(tzinfo=None)
    return sys.modules["pandas"].Period(ordinal=int(value), freq=freq).start_time


def _categories(axis: Any) -> dict[float, str]:
    """Return the categories that were plotted on an axis: position -> name. Empty if the axis shows numbers or dates."""
    mapping = getattr(getattr(axis, "units", None), "_mapping", None)
    return {float(at): str(name) for name, at in mapping.items()} if mapping else {}


def _number(text: str) -> float | None:
    try:
        return float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return None


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _rounded(value: float) -> float:
    """Return a number rounded to nine significant digits, so that 0.1 + 0.2 is shown as 0.3."""
    return float(f"{value:.9g}")


def _module(name: str) -> Any:
    return sys.modules[f"matplotlib.{name}"]
