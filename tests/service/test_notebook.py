"""Notebooks from the execution log: charts of a real kernel, hostile results, and a killed service. Jupyter's own programs open and run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sandlot import Sandbox
from sandlot.cli.main import dispatch
from tests.support.localservice import ON_GVISOR, LocalService
from tests.support.traces import settle

pytestmark = ON_GVISOR

MIB = 1 << 20
CELLS = (
    "import matplotlib.pyplot as plt\nimport pandas as pd",
    "df = pd.DataFrame({'x': [1, 2, 3], 'y': [2, 4, 8]})\ndf",
    "plt.plot(df.x, df.y)\nprint('drawn')\nplt.show()",
    "1 / 0",
    "int(df.y.sum())",
)
HOSTILE = """
from IPython.display import display
display({"image/png": "no base64!", "text/plain": "a"}, raw=True)
display({"application/json": "[" * 5000, "text/plain": "b"}, raw=True)
display({"text/html": "<script>alert(1)</script>", "x/<script>": "c", "text/plain": "c"}, raw=True)
"""


def jupyter(folder: Path, *arguments: str) -> None:
    """Run nbconvert, with its state in a folder of the test."""
    env = {**os.environ, "HOME": str(folder), "JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    done = subprocess.run([sys.executable, "-m", "nbconvert", *arguments], cwd=folder, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def outputs(path: Path) -> list[list[dict[str, Any]]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    nbformat.validate(json.loads(path.read_text(encoding="utf-8")))
    return [cell["outputs"] for cell in cells]


@pytest.mark.slow
def test_notebook_has_charts_and_exceptions_and_runs_elsewhere(service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service.create("code-interpreter-slim") as sandbox:
        for cell in CELLS:
            sandbox.run_code(cell)
        sandbox.run_code("echo from bash", "bash")
        sandbox.commands.run("true")
        path = sandbox.export_notebook(tmp_path / "run.ipynb")
    (_, (table,), (drawn, figure), (failed,), (total,), (shell,)) = outputs(path)
    assert "<table" in table["data"]["text/html"]
    assert drawn["text"] == "drawn\n"
    assert figure["data"]["image/png"].startswith("iVBOR")
    assert figure["data"]["application/vnd.sandlot.chart.v1+json"]["type"] == "line"
    assert failed["ename"] == "ZeroDivisionError"
    assert "1 / 0" in "".join(failed["traceback"])
    assert (total["output_type"], total["data"]["text/plain"], shell["text"]) == ("execute_result", "14", "from bash\n")

    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))
    assert dispatch(["export", sandbox.id, "--output", str(tmp_path / "ended.ipynb")]) == 0
    assert (tmp_path / "ended.ipynb").read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), "the sandbox has ended"

    jupyter(tmp_path, "--to", "html", "--template", "basic", "--output", "run.html", "run.ipynb")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert figure["data"]["image/png"].replace("\n", "")[:100] in page.replace("\n", "")
    jupyter(tmp_path, "--to", "notebook", "--execute", "--output", "again.ipynb", "run.ipynb")
    (_, (table,), (_, figure), (failed,), (total,), (shell,)) = outputs(tmp_path / "again.ipynb")
    assert "<table" in "".join(table["data"]["text/html"])
    assert "image/png" in figure["data"]
    assert failed["ename"] == "ZeroDivisionError"
    assert ("".join(total["data"]["text/plain"]), "".join(shell["text"])) == ("14", "from bash\n")


@pytest.mark.slow
def test_hostile_results_leave_a_valid_notebook(service: LocalService, tmp_path: Path) -> None:
    with service.create("code-interpreter-slim") as sandbox:
        sandbox.run_code(HOSTILE)
        (shown,) = outputs(sandbox.export_notebook(tmp_path / "run.ipynb"))
    assert [output["data"]["text/plain"] for output in shown] == ["a", "b", "c"]
    assert [set(output["data"]) for output in shown] == [{"text/plain"}, {"text/plain"}, {"text/plain", "text/html"}]
    jupyter(tmp_path, "--to", "html", "--template", "basic", "--output", "run.html", "run.ipynb")


@pytest.mark.slow
def test_stored_results_of_one_run_are_bounded(service: LocalService) -> None:
    image = f"'A' * {7 * MIB // 2}"
    many = f"from IPython.display import display\nfor n in range(30):\n    display({{'text/plain': str(n), 'image/png': {image}}}, raw=True)"
    with service.create("code-interpreter-slim", memory="1G") as sandbox:
        done = sandbox.run_code(many)
        found = service.client.executions.results(done.id)
        assert found.results[0] == done.results[0]
        assert found.results_omitted > done.results_omitted
        assert len(found.results) + found.results_omitted == len(done.results) + done.results_omitted
        assert service.client.executions.get(done.id).results_bytes <= 4 * MIB
        huge = sandbox.run_code(f"'x' * {100 * MIB}")
        assert service.client.executions.get(huge.id).results_bytes <= 4 * MIB


@pytest.mark.slow
def test_results_of_a_run_that_outlives_a_killed_service_are_stored_once(service: LocalService, tmp_path: Path) -> None:
    code = (
        "import os, time\nfrom IPython.display import display\ndisplay({'text/plain': 'before'}, raw=True)\n"
        "while not os.path.exists('/tmp/go'): time.sleep(0.05)\n'after'"
    )
    with service.create("code-interpreter-slim") as sandbox:
        run = sandbox.run_code(code, background=True)
        settle(lambda: [str(result.text) for result in service.client.executions.results(run.id).results], ["before"])
        assert service.end(signal.SIGKILL) == -signal.SIGKILL
        service.start()
        again = Sandbox.connect(sandbox.id, client=service.client)
        again.files.write("/tmp/go", "")
        again.connect_code(run.id).wait()
        settle(lambda: str(service.client.executions.get(run.id).status), "ok")
        assert [result.text for result in service.client.executions.results(run.id).results] == ["before", "'after'"]
        (shown,) = outputs(again.export_notebook(tmp_path / "run.ipynb"))
        assert [output["output_type"] for output in shown] == ["display_data", "execute_result"]
