"""Selection of Matplotlib's backend, with a fake package named matplotlib. The tests of the images draw real figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.guest.kernel_programs.python.sandlot_kernel import figures
from tests.support.kernels import Process, errors_of


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site" / "matplotlib").mkdir(parents=True)
    (tmp_path / "site" / "matplotlib" / "__init__.py").write_text("import os\nrcParams = {'backend': os.environ.get('MPLBACKEND', 'auto')}\n")
    return tmp_path / "site"


@pytest.mark.parametrize(
    "env,backend",
    [({}, figures.BACKEND), ({"MPLBACKEND": "Agg"}, figures.BACKEND), ({"MPLBACKEND": ""}, figures.BACKEND), ({"MPLBACKEND": "svg"}, "svg")],
)
def test_inline_backend_is_selected_unless_the_environment_selects_another(tmp_path: Path, site: Path, env: dict[str, str], backend: str) -> None:
    kernel = Process(tmp_path, env={"PYTHONPATH": str(site), **env})
    try:
        assert kernel.value("import sys; 'matplotlib' in sys.modules") == "False", "nobody has asked for it yet"
        assert kernel.text("import matplotlib; print(matplotlib.rcParams['backend'])") == f"{backend}\n"
        child = "import subprocess; print(subprocess.check_output([sys.executable, '-c', 'import matplotlib as m; print(m.rcParams)'], text=True))"
        assert kernel.text(child) == f"{{'backend': {env.get('MPLBACKEND', 'auto')!r}}}\n\n", "children inherit nothing of it"
    finally:
        kernel.close()


def test_failed_import_of_matplotlib_raises_its_own_error(tmp_path: Path, site: Path) -> None:
    (site / "matplotlib" / "__init__.py").write_text("1 / 0")
    kernel = Process(tmp_path, env={"PYTHONPATH": str(site)})
    try:
        assert errors_of(kernel.run("import matplotlib")) == ["ZeroDivisionError"]
        assert kernel.value("1") == "1"
    finally:
        kernel.close()


def test_no_object_is_a_figure_without_matplotlib() -> None:
    assert not figures.is_figure(object())
    figures.remember_shown(object())
    figures.drop_shown()
