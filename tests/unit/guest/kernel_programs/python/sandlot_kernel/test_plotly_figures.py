"""Figures of plotly in an IPython kernel without nbformat: one result for each figure, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.guest.kernel_programs.python.sandlot_kernel import plotly_figures
from tests.support.kernels import Process

pytest.importorskip("plotly", reason="scripts/setup --tools installs it")

FIGURE = "application/vnd.plotly.v1+json"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("plotly"))
    running.run("import sys; sys.modules['nbformat'] = None")  # as in an image without it
    assert running.run("from datetime import date\nimport plotly.graph_objects as go\nfigure = go.Figure(go.Bar(x=['a'], y=[1]))") == []
    yield running
    running.close()


def shown(kernel: Process, code: str) -> list[dict[str, Any]]:
    messages = kernel.run(code)
    assert {message["event"] for message in messages} <= {"display"}, messages
    return [message["data"] for message in messages]


@pytest.mark.parametrize(
    "code",
    [
        "figure.show()",
        "figure",
        "figure.show(config={'displayModeBar': False}, width=300)",
        "from plotly.offline import iplot; iplot(figure)",
        "import plotly.io; plotly.io.show(figure.to_dict())",
    ],
)
def test_figure_is_one_result_with_its_data(kernel: Process, code: str) -> None:
    (data,) = shown(kernel, code)
    assert [(each["x"], each["y"]) for each in json.loads(data[FIGURE])["data"]] == [(["a"], [1])]
    assert "Plotly.newPlot" in data["text/html"]
    assert 'src="https://cdn.plot.ly/' in data["text/html"], "the result loads what it needs"


def test_dates_are_text(kernel: Process) -> None:
    (data,) = shown(kernel, "go.Figure(go.Scatter(x=[date(2024, 1, 1), date(2024, 1, 2)], y=[1, 2])).show()")
    assert json.loads(data[FIGURE])["data"][0]["x"] == ["2024-01-01", "2024-01-02"]


def test_each_figure_is_a_result(kernel: Process) -> None:
    assert [json.loads(data[FIGURE])["data"][0]["y"] for data in shown(kernel, "for n in range(3): go.Figure(go.Bar(y=[n])).show()")] == [
        [0],
        [1],
        [2],
    ]


@pytest.mark.parametrize("renderer", [*plotly_figures._WITHOUT_FRONT_END, "colab"])  # noqa: SLF001
def test_renderer_of_another_front_end_gives_html(kernel: Process, renderer: str) -> None:
    (data,) = shown(kernel, f"figure.show(renderer={renderer!r})")
    assert "Plotly.newPlot" in data["text/html"]


def test_renderer_that_a_cell_or_the_environment_selects_is_used(kernel: Process, tmp_path: Path) -> None:
    (data,) = shown(kernel, "plotly.io.renderers.default = 'json'\nfigure.show()\nplotly.io.renderers.default = 'plotly_mimetype+notebook'")
    assert list(data) == ["application/json"]
    other = Process(tmp_path, env={"PLOTLY_RENDERER": "json"})
    try:
        (data,) = shown(other, "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1])).show()")
        assert list(data) == ["application/json"]
    finally:
        other.close()
