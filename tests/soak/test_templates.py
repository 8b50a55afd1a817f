"""Built-in templates whose images take minutes to build: their packages and programs work in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from sandlot.images import recipe_files
from sandlot.model.languages import LANGUAGES
from sandlot.sdk import Program
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


FORKS = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    char folder[100];
    int status = 0;
    for (int run = 0; run < 2; run++) {  // gVisor changes the system calls of the first run
        if (fork() == 0) exit(getcwd(folder, sizeof folder) == NULL);
        wait(&status);
        if (status != 0) return 1;
        if (fork() == 0) exit(system("true"));
        wait(&status);
        if (status != 0) return 2;
        if (getcwd(folder, sizeof folder) == NULL || system("true") != 0) return 3;
    }
    return 0;
}
"""


def test_forked_processes_of_c_and_r_run(service: LocalService, code_interpreter: Sandbox) -> None:
    code_interpreter.files.write("/tmp/forks.c", FORKS)
    done = code_interpreter.commands.run("gcc -o /tmp/forks /tmp/forks.c && /tmp/forks")
    assert done.exit_code == 0, done
    parallel = "cat(unlist(parallel::mclapply(1:4, function(n) if (dir.exists(getwd())) n + system('true'), mc.cores = 2)))"
    result = service.client.programs.run("r", parallel, template="languages", expected_output="1 2 3 4")
    assert result.ok, result


def test_languages_runs_a_program_of_each_language(service: LocalService) -> None:
    programs: list[Program] = [
        {"language": each.name, "code": each.example, "expected_output": "Hello, World!", "template": "languages", "timeout": 60}
        for each in LANGUAGES
    ]
    for language, item in zip(LANGUAGES, service.client.programs.run_batch(programs, concurrency=2), strict=True):
        result = item.unwrap()
        assert result.status == "completed", (language.name, result)
        print(f"{language.name}: {result.duration_s:.2f} s")


def test_versions_of_languages_are_those_of_the_image(service: LocalService) -> None:
    versions = service.client.templates.get("languages").languages
    assert versions.keys() == {language.name for language in LANGUAGES}
    with service.create("languages", network="none", timeout=1800) as sandbox:
        for language in LANGUAGES:
            version = versions[language.name]
            assert version
            assert version in sandbox.commands.run([*language.version_argv]).stdout, language.name
        done = sandbox.run_code("import sys; print('%d.%d.%d' % sys.version_info[:3])")
        assert done.stdout.strip() == versions["python"]


PLOT = """
png('plot.png')
plot(1:10, main = 'Title')
invisible(dev.off())
cat(readBin('plot.png', 'raw', 8)[2:4] == charToRaw('PNG'), file.size('plot.png') > 2000, '\\n')
"""


def test_languages_draws_with_r_and_has_the_standard_library_of_go_compiled(service: LocalService) -> None:
    drawn = service.client.programs.run("r", PLOT, template="languages", expected_output="TRUE TRUE TRUE TRUE")
    assert drawn.ok, drawn
    with service.create("languages", network="none", timeout=1800) as sandbox:
        sandbox.files.write(
            "/workspace/main.go", 'package main\nimport ("fmt"; "net/http"; "os")\nfunc main() { fmt.Println(http.MethodGet, len(os.Args)) }'
        )
        built = sandbox.commands.run(["go", "build", "-v", "-o", "/tmp/main", "main.go"], timeout=120)
        assert (built.exit_code, built.stderr) == (0, "command-line-arguments\n")
        assert sandbox.commands.run(["/tmp/main"]).stdout == "GET 1\n"


LINKED = """
set -e; cd /tmp
echo 'int puts(const char *); int main(void) { puts("c"); }' >a.c; gcc -O2 -flto a.c -o a; ./a
printf '#include <iostream>\nint main() { std::cout << "c++" << std::endl; }' >b.cpp; g++ -O2 -flto b.cpp -o b; ./b
echo 'fn main() { println!("rust"); }' >c.rs; rustc c.rs; ./c
readelf -p .comment c | grep -o LLD
"""


def test_languages_optimizes_while_linking_in_c_and_links_rust_with_lld(service: LocalService) -> None:
    with service.create("languages", network="none") as sandbox:
        done = sandbox.commands.run(LINKED, timeout=120)
        assert (done.exit_code, done.stdout) == (0, "c\nc++\nrust\nLLD\n"), done.stderr


@pytest.mark.parametrize("template, programs", [("claude", ["claude"]), ("codex", ["codex"]), ("agent", ["claude", "codex", "tmux -V", "g++", "rg"])])
def test_command_lines_of_agents_start_without_a_network(service: LocalService, template: str, programs: list[str]) -> None:
    locked = recipe_files.shipped()[template].npm
    assert locked is not None
    with service.create(template, network="none", timeout=1800) as sandbox:
        for program in programs:
            done = sandbox.commands.run(program if " " in program else f"{program} --version")
            assert done.exit_code == 0, done.stderr
            version = {name.rpartition("/")[2].removesuffix("-code"): version for name, version in locked.packages.items()}.get(program, "")
            assert version in done.stdout
