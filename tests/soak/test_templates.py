"""Built-in templates whose images take minutes to build: their packages and programs work in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from sandlot.images import recipe as recipes
from tests.support.localservice import LocalService, local_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(env={"SANDLOT_TEMPLATE_ALIASES": ""}) as started:
        yield started


@pytest.fixture(scope="module")
def code_interpreter(service: LocalService) -> Iterator[Sandbox]:
    with service.create("code-interpreter", memory="2G", timeout=1800) as sandbox:
        yield sandbox


MODULES = (
    *("aiohttp", "bokeh.plotting", "bs4", "cv2", "docx", "gensim", "imageio", "IPython", "joblib", "kaleido", "librosa", "matplotlib.pyplot"),
    *("nltk", "numba", "numpy", "openpyxl", "orjson", "pandas", "PIL.Image", "plotly.express", "pytest", "pytz", "requests", "scipy.stats"),
    *("seaborn", "skimage.io", "sklearn.linear_model", "soundfile", "spacy", "sympy", "textblob", "tornado.web", "urllib3", "xarray", "xlrd"),
)
"""A module of each Python package."""


def test_packages_of_code_interpreter_can_be_imported(code_interpreter: Sandbox) -> None:
    for module in MODULES:
        done = code_interpreter.commands.run(["python3", "-c", f"import time; t = time.monotonic(); import {module}; print(time.monotonic() - t)"])
        assert done.exit_code == 0, (module, done.stderr)
        print(f"{module}: {float(done.stdout):.2f} s")


WORK = """
import cv2, numba, numpy, pandas, plotly.express, soundfile, spacy, sympy
assert cv2.cvtColor(numpy.zeros((4, 4, 3), numpy.uint8), cv2.COLOR_BGR2GRAY).shape == (4, 4)
assert numba.njit(lambda n: n + 1)(41) == 42
pandas.DataFrame({"a": [1, 2]}).to_excel("/tmp/a.xlsx", index=False)
assert list(pandas.read_excel("/tmp/a.xlsx").a) == [1, 2]
soundfile.write("/tmp/a.ogg", numpy.zeros(8000), 8000)
assert len(soundfile.read("/tmp/a.ogg")[0]) == 8000
assert [str(token) for token in spacy.blank("en")("Sandboxes run code.")] == ["Sandboxes", "run", "code", "."]
assert sympy.integrate(2 * sympy.Symbol("x"), sympy.Symbol("x")) == sympy.Symbol("x") ** 2
plotly.express.bar(x=[1], y=[2]).to_html()
"""


def test_packages_of_code_interpreter_work(code_interpreter: Sandbox) -> None:
    done = code_interpreter.run_code(WORK, timeout=300)
    assert done.ok, done.error


def test_code_interpreter_compiles_c_and_cpp(code_interpreter: Sandbox) -> None:
    script = (
        "set -e; cd /tmp; echo 'int puts(const char *); int main(void) { puts(\"c\"); }' >a.c; gcc a.c -o a; ./a; "
        "echo '#include <iostream>\nint main() { std::cout << \"c++\" << std::endl; }' >b.cpp; printf 'b: b.cpp\n\tg++ b.cpp -o b\n' >Makefile; "
        "make -s; ./b; for program in git curl jq rg unzip ss; do command -v $program >/dev/null; done"
    )
    done = code_interpreter.commands.run(["bash", "-c", script])
    assert (done.exit_code, done.stdout) == (0, "c\nc++\n"), done.stderr


@pytest.mark.parametrize("template, programs", [("claude", ["claude"]), ("codex", ["codex"]), ("agent", ["claude", "codex", "tmux -V", "g++", "rg"])])
def test_command_lines_of_agents_start_without_a_network(service: LocalService, template: str, programs: list[str]) -> None:
    locked = recipes.shipped()[template].npm
    assert locked is not None
    with service.create(template, network="none", timeout=1800) as sandbox:
        for program in programs:
            done = sandbox.commands.run(program if " " in program else f"{program} --version")
            assert done.exit_code == 0, done.stderr
            version = {name.rpartition("/")[2].removesuffix("-code"): version for name, version in locked.packages.items()}.get(program, "")
            assert version in done.stdout
