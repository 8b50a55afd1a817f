"""Further results that a cell selects with a variable: JSON of dicts and lists, tables, and saved images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandlot.compat.e2b.interpreter.operations import EXTRA_RESULTS
from sandlot.compat.e2b.interpreter.translate import TABLE
from sandlot.guest.kernel_programs.python.sandlot_kernel import extra_results
from tests.support.kernels import Process, text_of

REASON = "scripts/setup --tools installs it"
pytest.importorskip("PIL", reason=REASON)
pytest.importorskip("pandas", reason=REASON)

JSON = "application/json"


def data_of(kernel: Process, code: str, env: dict[str, str] | None = None) -> list[dict[str, str]]:
    messages = kernel.run(code, env=dict(EXTRA_RESULTS) if env is None else env)
    return [message["data"] for message in messages if message["event"] == "display"]


def test_names_are_those_of_the_compatibility_api() -> None:
    assert dict(EXTRA_RESULTS) == {extra_results.VARIABLE: "1"}
    assert extra_results.TABLE == TABLE


@pytest.mark.parametrize(
    "code,expected",
    [
        ("{'a': [1, None, 'x'], 3: (1.5, True)}", {"a": [1, None, "x"], "3": [1.5, True]}),
        ("[1, float('nan'), -float('inf')]", [1, None, None]),
        ("import datetime; [datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3)]", ["2024-01-02", "2024-01-02T03:00:00"]),
        ("import numpy as np; {'n': np.int64(3), 'm': np.array([[1.5]])}", {"n": 3, "m": [[1.5]]}),
        ("import collections; collections.OrderedDict(a=1)", {"a": 1}),
        ("[]", []),
    ],
)
def test_dict_or_list_is_also_json(ipython: Process, code: str, expected: object) -> None:
    (data,) = data_of(ipython, code)
    assert json.loads(data[JSON]) == expected
    assert "text/plain" in data


@pytest.mark.parametrize(
    "code", ["[object()]", "{(1, 2): 3}", "a = []; a.append(a); a", f"list(range({extra_results.MAX_VALUES + 1}))", "(1, 2)", "{1, 2}", "'text'"]
)
def test_other_value_is_not_json(ipython: Process, code: str) -> None:
    (data,) = data_of(ipython, code)
    assert list(data) == ["text/plain"]


def test_data_frame_is_also_a_table(ipython: Process) -> None:
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2.5, None], 5: pd.to_datetime(['2024-01-01', None, '2024-01-02']), 'o': [object, 'x', [1]]})"
    (data,) = data_of(ipython, code)
    table = json.loads(data[TABLE])
    assert (table["a"], table["5"], table["o"][1:]) == ([1, 2.5, None], ["2024-01-01T00:00:00", None, "2024-01-02T00:00:00"], ["x", [1]])
    assert {"text/plain", "text/html"} < set(data)
    (data,) = data_of(ipython, f"pd.DataFrame({{'a': range({extra_results.MAX_VALUES + 1})}})")
    assert TABLE not in data


def test_saved_image_is_displayed(ipython: Process) -> None:
    setup = "import io, pathlib\nfrom PIL import Image\nimage = Image.new('RGB', (2, 2))\n"
    for path in ("'one.png'", "pathlib.Path('one.png')"):
        messages = ipython.run(f"{setup}image.save({path})\nprint('saved')", env=dict(EXTRA_RESULTS))
        assert [message["data"]["image/png"][:4] for message in messages if message["event"] == "display"] == [b"\x89PNG"]
        assert text_of(messages) == "saved\n"
    assert data_of(ipython, "image.save(io.BytesIO(), 'PNG')") == []
    failed = ipython.run("image.save('/nonexistent/one.png')", env=dict(EXTRA_RESULTS))
    assert [message["name"] for message in failed] == ["FileNotFoundError"]


def test_saved_figure_is_displayed_once(ipython: Process) -> None:
    pytest.importorskip("matplotlib", reason=REASON)
    (data,) = data_of(ipython, "import matplotlib.pyplot as plt\nplt.plot([1]); plt.savefig('figure.png')")
    assert "text/plain" in data


def test_cell_that_does_not_select_them_has_none(tmp_path: Path) -> None:
    kernel = Process(tmp_path)
    try:
        before = "from PIL import Image; plain = Image.Image.save\nImage.new('L', (1, 1)).save('x.png')"
        assert data_of(kernel, before, {}) == []
        assert [list(data) for code in ("{'a': 1}", "[1]") for data in data_of(kernel, code, {})] == [["text/plain"]] * 2
        assert TABLE not in data_of(kernel, "import pandas as pd; pd.DataFrame({'a': [1]})", {})[0]
        assert kernel.value("Image.Image.save is plain") == "True", "the library is unchanged"
    finally:
        kernel.close()
