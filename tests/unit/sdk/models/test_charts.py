"""Charts' data: what is of its form is read, and nothing that a sandbox says raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.sdk.models.code import CHART, Chart, Result

LINE = {"type": "line", "title": "t", "x_label": "x", "y_label": "y", "x_unit": "s", "y_unit": "m", "elements": [{"label": "a", "points": [[0, 1]]}]}


def test_a_result_has_its_charts_data() -> None:
    chart = Result({CHART: json.dumps(LINE), "image/png": "iVBORw=="}).chart
    assert chart == Chart("line", "t", "x", "y", "s", "m", ({"label": "a", "points": [[0, 1]]},))
    assert Result({"image/png": "iVBORw=="}).chart is None


def test_what_is_none_is_none(subtests: pytest.Subtests) -> None:
    for text in (None, "", "x", "[]", "1", "null", "[" * 100_000, '{"type":"superchart","elements":[' * 5000):
        with subtests.test(text=text):
            assert Chart.from_json(text) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*LINE, "other"]), JSON))
def test_whatever_is_said_is_read(raw: dict[str, object]) -> None:
    chart = Chart.from_json(json.dumps(raw))
    assert chart is not None
    assert isinstance(chart.title, str)
    assert all(isinstance(each, dict) for each in chart.elements)
