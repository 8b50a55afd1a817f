"""Chart data without Matplotlib: units, numbers and limits. The tests of the images read real figures."""

from __future__ import annotations

import pytest

from sandlot.guest.kernel_programs.python.sandlot_kernel import charts
from sandlot.sdk.models.code import CHART


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
