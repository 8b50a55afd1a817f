"""Chart data of figures as Matplotlib, pandas and seaborn draw them. A figure that cannot be read has the type unknown, and never a wrong type."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandlot.guest.kernel_programs.python.sandlot_kernel import charts
from sandlot.sdk.models.code import CHART

REASON = "scripts/setup --tools installs it"
matplotlib = pytest.importorskip("matplotlib", reason=REASON)
pandas = pytest.importorskip("pandas", reason=REASON)
seaborn = pytest.importorskip("seaborn", reason=REASON)
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(code: str) -> dict[str, Any]:
    """Return the chart data of the figure that a cell draws."""
    exec(code, {"plt": plt, "np": np, "pd": pandas, "sns": seaborn, "dt": dt, "day": lambda number: dt.date(2024, 1, number)})  # noqa: S102 - as in a cell
    described = charts.describe(plt.gcf())
    assert described is not None
    chart: dict[str, Any] = json.loads(described)
    return chart


def values(chart: dict[str, Any]) -> list[Any]:
    """Return the elements of a chart in a short form."""
    short: dict[str, Callable[[dict[str, Any]], Any]] = {
        "line": lambda each: (each["label"], each.get("points")),
        "scatter": lambda each: (each["label"], each.get("points")),
        "bar": lambda each: (each["group"], each["label"], each["value"]),
        "pie": lambda each: (each["label"], each["fraction"]),
        "box_and_whisker": lambda each: tuple(each.values()),
        "superchart": lambda each: (each["type"], values(each)),
        "unknown": lambda each: each,
    }
    return [short[chart["type"]](each) for each in chart["elements"]]


ABC = [("Group 0", "A", 10), ("Group 0", "B", 15), ("Group 0", "C", 7)]
MEASURED = [("measured", [[1, 2], [2, 4], [3, 5]])]
BOX = ("u", 1, 2, 3, 4, 4, [20])


@pytest.mark.parametrize(
    "code,elements",
    [
        ("plt.bar(['A', 'B', 'C'], [10, 15, 7], yerr=[1, 2, .5], capsize=4)", ABC),
        ("plt.barh(['A', 'B', 'C'], [10, 15, 7], xerr=1, capsize=4)", ABC),
        ("plt.bar(['A', 'B', 'C'], [10, 15, 7]); plt.errorbar(['A', 'B', 'C'], [10, 15, 7], yerr=1, fmt='none', capsize=4)", ABC),
        ("plt.bar(['A', 'B', 'C'], [10, 15, 7]); plt.axhline(3); plt.axvspan(0, 1)", ABC),
        ("sns.barplot(x=['A', 'A', 'B', 'B', 'C', 'C'], y=[9, 11, 14, 16, 7, 7], capsize=.2)", ABC),
        ("sns.barplot(y=['A', 'A', 'B', 'B', 'C', 'C'], x=[9, 11, 14, 16, 7, 7])", ABC),
        ("pd.Series([10, 15, 7], index=['A', 'B', 'C']).plot.bar(yerr=1)", [("Group 0", "A", 10), ("Group 0", "B", 15), ("Group 0", "C", 7)]),
        (
            "x = np.arange(2)\nfor i in range(3): plt.bar(x + i / 4, [i, i + 1], .25, label=f'g{i}')\nplt.xticks(x, ['p', 'q'])",
            [("g0", "p", 0), ("g0", "q", 1), ("g1", "p", 1), ("g1", "q", 2), ("g2", "p", 2), ("g2", "q", 3)],
        ),
        (
            "plt.bar(['p', 'q'], [3, 4], yerr=.2, label='x'); plt.bar(['p', 'q'], [1, 2], bottom=[3, 4], yerr=.1, label='y')",
            [("x", "p", 3), ("x", "q", 4), ("y", "p", 1), ("y", "q", 2)],
        ),
        ("sns.barplot(x=['p', 'p'], y=[1, 2], hue=['m', 'w'])", [("m", "p", 1), ("w", "p", 2)]),
        ("plt.bar(['p', 'q'], [1, 2], label=['x', 'y'])", [("x", "p", 1), ("y", "q", 2)]),
        (
            "plt.bar([0, 1], [3, 4], .4); plt.bar([.4, 1.4], [4, 3], .4); plt.legend(['s', 'c'])",
            [("s", "0", 3), ("s", "1", 4), ("c", "0.4", 4), ("c", "1.4", 3)],
        ),
        (
            "plt.hist([[1, 1, 2], [2, 3, 3]], bins=2, label=['a', 'b'], stacked=True)",
            [("a", "1.5", 2), ("a", "2.5", 1), ("b", "1.5", 0), ("b", "2.5", 3)],
        ),
        ("plt.bar([day(1), day(2)], [1, 2])", [("Group 0", "2024-01-01", 1), ("Group 0", "2024-01-02", 2)]),
        ("plt.bar([1234567, 1234568], [1, 2])", [("Group 0", "1234567", 1), ("Group 0", "1234568", 2)]),
        (
            "plt.bar(range(3), [1, 2, 3]); plt.xticks([0, 2], ['first', 'last'])",
            [("Group 0", "first", 1), ("Group 0", "1", 2), ("Group 0", "last", 3)],
        ),
        ("plt.subplot(projection='polar').bar([0, 1], [1, 2])", [("Group 0", "0", 1), ("Group 0", "1", 2)]),
    ],
)
def test_bars_have_their_values_and_names(code: str, elements: list[Any]) -> None:
    chart = drawn(code)
    assert (chart["type"], values(chart)) == ("bar", elements)


@pytest.mark.parametrize(
    "code,elements",
    [
        ("plt.errorbar([1, 2, 3], [2, 4, 5], yerr=.5, capsize=3, label='measured')", MEASURED),
        ("plt.errorbar([1, 2, 3], [2, 4, 5], yerr=[[1, 1, 1], [2, 2, 2]], xerr=.1, fmt='o', uplims=True, label='measured')", MEASURED),
        ("plt.errorbar([1, 2, 3], [2, 4, 5], yerr=.5, ls='', label='measured')", MEASURED),
        ("plt.stem([1, 2, 3], [2, 4, 5], label='measured')", MEASURED),
        ("plt.plot([1, 2, 3], [2, 4, 5], label='measured'); plt.fill_between([1, 2, 3], [1, 3, 4], [3, 5, 6], label='95 %')", MEASURED),
        ("plt.plot([1, 2, 3], [2, 4, 5]); plt.plot([2, 2], [0, 3], 'r--'); plt.axhline(4, label='limit'); plt.legend(['measured'])", MEASURED),
        ("plt.fill_between([1, 2, 3], [2, 4, 5], alpha=.4, label='measured'); plt.plot([1, 2, 3], [2, 4, 5])", MEASURED),
        ("ax = plt.subplot(projection='polar'); ax.plot([1, 2, 3], [2, 4, 5], label='measured'); ax.fill([1, 2, 3], [2, 4, 5])", MEASURED),
        ("sns.lineplot(x=[1, 1, 2, 2], y=[1, 3, 3, 5], err_style='bars')", [("Line 0", [[1, 2], [2, 4]])]),
        ("sns.lineplot(x=[1, 2, 1, 2], y=[1, 2, 3, 4], hue=['m', 'm', 'w', 'w'])", [("m", [[1, 1], [2, 2]]), ("w", [[1, 3], [2, 4]])]),
        ("sns.pointplot(x=['a', 'a', 'b', 'b'], y=[1, 2, 3, 5], capsize=.1)", [("Line 0", [["a", 1.5], ["b", 4]])]),
        ("plt.plot([1, 2], [3, 3])", [("Line 0", [[1, 3], [2, 3]])]),
        ("plt.loglog([1, 10], [100, 1000], label='p')", [("p", [[1, 100], [10, 1000]])]),
        ("plt.plot(['a', 'b'], [1, np.nan])", [("Line 0", [["a", 1], ["b", None]])]),
        ("pd.Series([1, 2], index=pd.period_range('2024-01', periods=2, freq='M')).plot()", [("Line 0", [["2024-01-01", 1], ["2024-02-01", 2]])]),
        (
            "plt.plot(pd.date_range('2024-01-01', periods=2, tz='Europe/Berlin'), [1, 2])",
            [("Line 0", [["2024-01-01T00:00:00+01:00", 1], ["2024-01-02T00:00:00+01:00", 2]])],
        ),
        ("line, = plt.plot([1, 2]); line.set_visible(False); plt.plot([3, 4], label='v')", [("v", [[0, 3], [1, 4]])]),
    ],
)
def test_lines_have_their_points_and_labels(code: str, elements: list[Any]) -> None:
    chart = drawn(code)
    assert (chart["type"], values(chart)) == ("line", elements)


@pytest.mark.parametrize(
    "code,elements",
    [
        ("plt.scatter([1, 2], [3, 4], s=[9, 99], label='s'); plt.colorbar()", [("s", [[1, 3], [2, 4]])]),
        ("plt.scatter([1, 2], [3, 4]); plt.scatter([1, 2], [5, 6]); plt.legend(['u', 'v'])", [("u", [[1, 3], [2, 4]]), ("v", [[1, 5], [2, 6]])]),
        ("sns.scatterplot(x=[1, 2], y=[3, 4], hue=['m', 'w'])", [("Points 0", [[1, 3], [2, 4]])]),
        ("sns.stripplot(x=['a', 'a', 'b'], y=[1, 2, 3])", [("Points 0", [["a", 1], ["a", 2]]), ("Points 1", [["b", 3]])]),
        ("plt.scatter([day(1)], [3]); plt.axhline(3)", [("Points 0", [["2024-01-01", 3]])]),
    ],
)
def test_scatter_plots_have_their_points(code: str, elements: list[Any]) -> None:
    chart = drawn(code)
    assert (chart["type"], values(chart)) == ("scatter", elements)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "patch_artist=True",
        "notch=True",
        "notch=True, patch_artist=True",
        "showmeans=True",
        "showmeans=True, meanline=True",
        "showcaps=False",
        "showbox=False",
        "orientation='horizontal'",
        "orientation='horizontal', notch=True, showmeans=True",
    ],
)
def test_boxes_have_their_values_whichever_parts_are_drawn(options: str) -> None:
    chart = drawn(f"plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], tick_labels=['u', 'v'], {options})")
    assert (chart["type"], values(chart)) == ("box_and_whisker", [BOX, ("v", 2, 2.5, 3, 3.5, 4, [])])
    assert chart["orientation"] == ("horizontal" if "horizontal" in options else "vertical")


@pytest.mark.parametrize(
    "code,elements",
    [
        ("plt.boxplot([[1, 2, 3, 4, 20]], showmeans=True, showfliers=False); plt.xticks([1], ['u'])", [(*BOX[:-1], [])]),
        ("sns.boxplot(x=['u'] * 5, y=[1, 2, 3, 4, 20])", [BOX]),
        ("sns.boxplot(y=['u'] * 5, x=[1, 2, 3, 4, 20], hue=['m'] * 5, fill=False)", [BOX]),
        ("pd.DataFrame({'u': [1, 2, 3, 4, 20]}).plot.box()", [BOX]),
        ("plt.gca().bxp([{'med': 3, 'q1': 2, 'q3': 4, 'whislo': 1, 'whishi': 5, 'fliers': [7, 8], 'label': 'z'}])", [("z", 1, 2, 3, 4, 5, [7, 8])]),
    ],
)
def test_boxes_of_other_functions_have_their_values(code: str, elements: list[Any]) -> None:
    chart = drawn(code)
    assert (chart["type"], values(chart)) == ("box_and_whisker", elements)


@pytest.mark.parametrize(
    "code",
    [
        "plt.pie([1, 3], labels=['p', 'q'], autopct='%.0f', startangle=90, counterclock=False, explode=[0, .1], shadow=True)",
        "plt.pie([1, 3]); plt.legend(['p', 'q'])",
        "plt.pie([1, 3], labels=['p', 'q'], wedgeprops={'width': .3}); plt.gca().add_artist(plt.Circle((0, 0), .7))",
        "pd.Series([1, 3], index=['p', 'q']).plot.pie()",
    ],
)
def test_pies_have_their_fractions(code: str) -> None:
    chart = drawn(code)
    assert (chart["type"], values(chart)) == ("pie", [("p", 0.25), ("q", 0.75)])
    assert [each["angle"] for each in chart["elements"]] == [90, 270]


GRID = "z = [[1, 2, 3], [3, 4, 5], [1, 2, 1]]; "
TRIANGLES = "x, y = [0, 1, 0, 1], [0, 0, 1, 1]; "
SOLID = "x, y = np.meshgrid([1, 2], [1, 2]); ax = plt.subplot(projection='3d'); "


@pytest.mark.parametrize(
    "code",
    [
        "plt.fill_between([1, 2, 3], [1, 2, 3], [2, 3, 4], label='band')",
        "plt.stackplot([1, 2, 3], [1, 2, 3], [2, 2, 2])",
        "plt.stackplot([1, 2, 3], [1, 2, 3], [2, 2, 2]); plt.plot([1, 2, 3], [3, 4, 5], label='total')",
        "pd.DataFrame({'a': [1, 2], 'b': [3, 4]}).plot.area()",
        "plt.stairs([1, 2, 3])",
        "plt.stairs([1, 2]); plt.plot([0, 1], [1, 2])",
        "plt.hist([1, 2, 2], histtype='step'); plt.plot([1, 2, 3], [1, 2, 1])",
        "plt.violinplot([[1, 2, 3, 4]], showmedians=True)",
        "sns.violinplot(x=['a'] * 5, y=[1, 2, 3, 4, 20])",
        "sns.violinplot(x=['a'] * 5, y=[1, 2, 3, 4, 20], inner='quart')",
        "sns.boxenplot(x=['a'] * 5, y=[1, 2, 3, 4, 20])",
        "sns.kdeplot([1, 2, 2, 3], fill=True)",
        "plt.eventplot([[1, 2, 3], [2, 4]])",
        "plt.hist2d([1, 2, 3], [1, 2, 3], bins=2); plt.colorbar()",
        "plt.hexbin([1, 2, 3], [1, 2, 3], gridsize=3)",
        "plt.imshow([[1, 2], [3, 4]])",
        "plt.imshow([[1, 2], [3, 4]]); plt.plot([0, 1], [0, 1])",
        "plt.pcolormesh([[1, 2], [3, 4]])",
        "sns.heatmap([[1, 2], [3, 4]], annot=True)",
        GRID + "plt.contour(z)",
        GRID + "plt.contourf(z); plt.plot([0, 1], [1, 1], 'o')",
        "plt.quiver([1, 2], [1, 2], [1, 1], [0, 1])",
        "plt.barbs([1, 2], [1, 2], [10, 20], [0, 30])",
        "y, x = np.mgrid[0:3:5j, 0:3:5j]; plt.streamplot(x, y, np.ones((5, 5)), x)",
        TRIANGLES + "plt.tricontour(x, y, [1, 2, 3, 5])",
        TRIANGLES + "plt.tricontourf(x, y, [1, 2, 3, 5]); plt.scatter(x, y)",
        TRIANGLES + "plt.tripcolor(x, y, [1, 2, 3, 5])",
        TRIANGLES + "plt.triplot(x, y)",
        SOLID + "ax.plot([1, 2], [1, 2], [1, 2])",
        SOLID + "ax.scatter([1, 2], [1, 2], [1, 2])",
        SOLID + "ax.plot_surface(x, y, x + y)",
        SOLID + "ax.bar([1, 2], [1, 2], zs=1, zdir='y')",
        SOLID + "ax.stem([1, 2], [1, 2], [1, 2])",
        "plt.axhline(1)",
        "from matplotlib.patches import Wedge; plt.gca().add_patch(Wedge((0, 0), 1, 0, 90)); plt.xlim(-1, 1)",
    ],
)
def test_figure_of_another_type_is_unknown(code: str) -> None:
    chart = drawn(code)
    assert (chart["type"], chart["elements"], "series" in chart) == ("unknown", [], False)


@pytest.mark.parametrize(
    "code,kinds",
    [
        ("plt.bar(['p', 'q'], [1, 2]); plt.plot(['p', 'q'], [3, 4])", ["bar", "line"]),
        ("plt.boxplot([[1, 2, 3]]); plt.plot([1], [2], 'o', label='mean')", ["box_and_whisker", "line"]),
        ("sns.regplot(x=[1, 2, 3], y=[1, 2, 2])", ["scatter", "line"]),
    ],
)
def test_several_types_in_one_axes_are_listed(code: str, kinds: list[str]) -> None:
    chart = drawn(code)
    assert (chart["type"], [each["type"] for each in chart["series"]]) == ("unknown", kinds)


def test_each_axes_has_its_own_chart() -> None:
    chart = drawn("plt.errorbar([1, 2], [3, 4], yerr=.1, label='l', capsize=2); plt.twinx().bar([1, 2], [30, 40], yerr=1, label='r')")
    assert values(chart) == [("line", [("l", [[1, 3], [2, 4]])]), ("bar", [("r", "1", 30), ("r", "2", 40)])]
    plt.close("all")
    chart = drawn("figure, axes = plt.subplot_mosaic('AB;CC'); axes['A'].imshow([[1]]); axes['B'].plot([1, 2]); figure.suptitle('all')")
    assert (chart["title"], values(chart)) == ("all", [("unknown", []), ("line", [("Line 0", [[0, 1], [1, 2]])]), ("unknown", [])])


@pytest.mark.parametrize(
    "code,scales",
    [
        ("plt.semilogy([day(1), day(2)], [1, 100])", ("datetime", "log")),
        ("plt.barh(['a', 'b'], [10, 100], xerr=1, log=True)", ("log", "categorical")),
        ("plt.bar([0, 1, 2], [1, 2, 3]); plt.tick_params(labelbottom=False)", ("linear", "linear")),
        ("plt.plot([1, 2]); plt.xticks([0, 1], ['one', 'two'])", ("categorical", "linear")),
    ],
)
def test_axes_have_their_scales(code: str, scales: tuple[str, str]) -> None:
    chart = drawn(code)
    assert (chart["x_scale"], chart["y_scale"]) == scales


def test_mime_type_is_the_documented_one() -> None:
    assert charts.MIME == CHART == "application/vnd.sandlot.chart.v1+json"


class _Odd:
    def get_axes(self) -> list[object]:
        return [object()]


@pytest.mark.parametrize("figure", [None, object(), _Odd()])
def test_unreadable_figure_has_no_data_and_does_not_fail_the_cell(figure: object) -> None:
    assert charts.describe(figure) is None


@pytest.mark.parametrize(
    "label,unit",
    [("Speed (m/s)", "m/s"), ("Speed [m/s]", "m/s"), ("Speed", None), ("f(x)", None), ("", None), ("Time (s) [ms]", "s")],
)
def test_unit_is_read_from_a_label(label: str, unit: str | None) -> None:
    found = charts.UNIT.search(label)
    assert (found and (found.group(1) or found.group(2))) == unit


def test_numbers_are_finite_and_rounded() -> None:
    assert [charts._finite(value) for value in (1, 2.5, float("nan"), float("inf"), float("-inf"))] == [1.0, 2.5, None, None, None]  # noqa: SLF001
    assert charts._rounded(0.1 + 0.2) == 0.3  # noqa: SLF001
    assert charts._number("\N{MINUS SIGN}3.5") == -3.5  # noqa: SLF001
    assert charts._number("March") is None  # noqa: SLF001


def test_omitted_points_are_counted() -> None:
    assert charts._omitted(range(charts.POINTS_MAX), charts.POINTS_MAX) == {}  # noqa: SLF001
    assert charts._omitted(range(charts.POINTS_MAX + 7), charts.POINTS_MAX) == {"omitted": 7}  # noqa: SLF001
