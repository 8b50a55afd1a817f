"""E2B's code interpreter by E2B's own client against a real service: code, its results in every form, contexts, languages.

The client is the vendor's package from PyPI, unmodified, sync and async, over TCP with a key; sandboxes are real.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import InvalidArgumentException, NotFoundException, SandboxException, SandboxState, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Context, Sandbox
from e2b_code_interpreter.charts import BarChart, BoxAndWhiskerChart, LineChart, PieChart, ScatterChart, SuperChart

from tests.support.tcpservice import TcpService

Opts = dict[str, Any]

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@pytest.fixture(scope="module")
def opts(service: TcpService) -> Opts:
    return opts_of(service)


def opts_of(service: TcpService, key: str = "interpreter") -> Opts:
    return {"api_key": service.key(key), "api_url": f"{service.url}/e2b", "sandbox_url": f"{service.url}/e2b"}


@pytest.fixture(scope="module")
def sandbox(opts: Opts) -> Iterator[Sandbox]:
    """One sandbox that tests share."""
    made = Sandbox.create(timeout=600, envs={"COLOUR": "green"}, **opts)
    yield made
    made.kill()


@pytest.mark.smoke
def test_variables_and_files_persist_between_runs(sandbox: Sandbox) -> None:
    assert sandbox.get_info().template_id == "code-interpreter-v1"
    first = sandbox.run_code("x = 41\nprint('out')\nimport sys\nprint('err', file=sys.stderr)\nx + 1")
    assert (first.text, "".join(first.logs.stdout), "".join(first.logs.stderr), first.error) == ("42", "out\n", "err\n", None)
    assert first.execution_count is not None
    again = sandbox.run_code("'x is ' + str(x)")
    assert again.text == "x is 41"  # as E2B tells it, without the quotes
    assert again.execution_count == first.execution_count + 1
    sandbox.files.write("note.txt", "written by the client")
    assert sandbox.run_code("open('note.txt').read()").text == "written by the client"
    assert sandbox.run_code("open('made.txt', 'w').write('by code'); import os; os.getcwd()").text == "/home/user"
    assert sandbox.files.read("made.txt") == sandbox.commands.run("cat made.txt").stdout == "by code"


def test_code_output_is_streamed(sandbox: Sandbox) -> None:
    seen: list[tuple[str, Any]] = []
    going = threading.Event()

    def on_stdout(message: Any) -> None:  # noqa: ANN401 - E2B's
        seen.append(("stdout", message.line))
        sandbox.files.write("/tmp/go", "")
        going.set()

    code = "import os, time\nprint('ä', end='', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\ndisplay(1)\n1/0"
    done = sandbox.run_code(
        code,
        on_stdout=on_stdout,
        on_result=lambda result: seen.append(("result", result.text)),
        on_error=lambda error: seen.append(("error", error.name)),
    )
    assert going.is_set()
    assert seen == [("stdout", "ä"), ("result", "1"), ("error", "ZeroDivisionError")]
    assert done.error is not None
    assert (done.error.value, done.text) == ("division by zero", None)
    assert "1/0" in done.error.traceback


def test_lines_and_characters_are_whole(sandbox: Sandbox) -> None:
    lines = r"print('a\u2028b\x85c\u2029d')"
    assert "".join(sandbox.run_code(lines).logs.stdout) == "a\u2028b\x85c\u2029d\n"
    error = sandbox.run_code(r"raise ValueError('a\u2028b')").error
    assert error is not None
    assert error.value == "a\u2028b"
    assert sandbox.run_code(r"display({'text/plain': 'a\u2028b'}, raw=True)").results[0].text == "a\u2028b"
    cut = "import os, time\nos.write(1, b'\\xe2')\ntime.sleep(0.1)\nos.write(1, b'\\x98\\x95')"
    assert "".join(sandbox.run_code(cut).logs.stdout) == "☕"


SHOWS = f"""
import base64
from IPython.display import display
data = {{
    "text/plain": "plain", "text/html": "<b>h</b>", "text/markdown": "*m*", "image/svg+xml": "<svg/>", "text/latex": "$l$",
    "image/png": base64.b64decode({base64.b64encode(PNG)!r}), "image/jpeg": b"jpeg", "application/pdf": b"%PDF",
    "application/json": {{"a": [1, None]}}, "application/javascript": "j()", "application/x-else": "else",
}}
display(data, raw=True)
"""


def test_result_has_every_displayed_format(sandbox: Sandbox) -> None:
    (result,) = sandbox.run_code(SHOWS).results
    assert not result.is_main_result
    assert (result.text, result.html, result.markdown, result.svg, result.latex) == ("plain", "<b>h</b>", "*m*", "<svg/>", "$l$")
    assert (result.json, result.javascript, result.extra) == ({"a": [1, None]}, "j()", {"application/x-else": "else"})
    assert [base64.b64decode(each or "") for each in (result.png, result.jpeg, result.pdf)] == [PNG, b"jpeg", b"%PDF"]


DRAWN = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots(2, 3)
axes[0, 0].plot([1, 2], [3, 4], label="a")
axes[0, 1].scatter([1, 2], [3, 4], label="b")
axes[0, 2].bar(["x", "y"], [5, 6])
axes[1, 0].pie([1, 3], labels=["p", "q"])
axes[1, 1].boxplot([[1, 2, 3, 4, 50]])
axes[1, 2].plot([0, 1], [0, 1])
axes[1, 2].set_xlabel("time (s)")
figure.suptitle("all")
plt.show()
"""


def test_figure_has_image_and_chart_data(sandbox: Sandbox) -> None:
    (result,) = sandbox.run_code(DRAWN).results
    assert base64.b64decode(result.png or "").startswith(b"\x89PNG")
    assert isinstance(result.chart, SuperChart)
    assert result.chart.title == "all"
    line, scatter, bar, pie, box, other = result.chart.elements
    assert isinstance(line, LineChart)
    assert (line.elements[0].label, line.elements[0].points) == ("a", [(1, 3), (2, 4)])
    assert isinstance(scatter, ScatterChart)
    assert isinstance(bar, BarChart)
    assert [(each.label, float(each.value)) for each in bar.elements] == [("x", 5), ("y", 6)]
    assert isinstance(pie, PieChart)
    assert [each.label for each in pie.elements] == ["p", "q"]
    assert isinstance(box, BoxAndWhiskerChart)
    assert box.elements[0].median == 3
    assert isinstance(other, LineChart)
    assert (other.x_label, other.x_unit) == ("time (s)", "s")


def test_figures_with_error_bars_have_chart_data(sandbox: Sandbox) -> None:
    code = "import matplotlib.pyplot as plt\nplt.bar(['A', 'B', 'C'], [10, 15, 7], yerr=[1, 2, .5], capsize=4);"
    chart = sandbox.run_code(code).results[-1].chart
    assert isinstance(chart, BarChart)
    assert [(each.label, float(each.value)) for each in chart.elements] == [("A", 10), ("B", 15), ("C", 7)]
    chart = sandbox.run_code("plt.errorbar([1, 2], [3, 4], yerr=.5, capsize=3, label='measured');").results[-1].chart
    assert isinstance(chart, LineChart)
    assert [(each.label, each.points) for each in chart.elements] == [("measured", [(1, 3), (2, 4)])]
    chart = sandbox.run_code("plt.boxplot([[1, 2, 3], [4, 5, 6]], labels=['u', 'v'], patch_artist=True);").results[-1].chart
    assert isinstance(chart, BoxAndWhiskerChart)
    assert [(each.label, each.median) for each in chart.elements] == [("u", 2), ("v", 5)]


def test_values_have_json_and_tables_have_data(sandbox: Sandbox) -> None:
    assert sandbox.run_code("{'a': [1, None], 'b': 'x'}").results[0].json == {"a": [1, None], "b": "x"}
    assert sandbox.run_code("[1, 'x']").results[0].json == [1, "x"]
    (table,) = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2024-01-01', '2024-01-02'])})").results
    assert table.data == {"a": [1, 2], "t": ["2024-01-01T00:00:00", "2024-01-02T00:00:00"]}
    assert "<table" in (table.html or "")
    assert not table.extra


@pytest.mark.parametrize("how", ["image.save('saved.png')", "image.show()", "image"])
def test_saved_or_shown_image_is_a_result(sandbox: Sandbox, how: str) -> None:
    (result,) = sandbox.run_code(f"from PIL import Image\nimage = Image.new('RGBA', (4, 4))\n{how}").results
    assert base64.b64decode(result.png or "").startswith(b"\x89PNG")


def test_code_sees_the_environment_of_sandbox_and_run(sandbox: Sandbox) -> None:
    look = "import os; [os.environ.get(each) for each in ('COLOUR', 'SIZE')]"
    assert sandbox.run_code(look, envs={"SIZE": "big"}).text == "['green', 'big']"
    assert sandbox.run_code(look, envs={"COLOUR": "red"}).text == "['red', None]"
    assert sandbox.run_code(look).text == "['green', None]"


def test_languages_of_the_template_are_available(sandbox: Sandbox) -> None:
    sandbox.run_code("let y = 20", language="javascript")
    assert sandbox.run_code("y + 1", language="js").text == "21"
    sandbox.run_code("z=3", language="bash")
    assert "".join(sandbox.run_code("echo $z in $PWD", language="bash").logs.stdout) == "3 in /home/user\n"
    with pytest.raises(SandboxException, match=r"400 .*Use one of: python"):
        sandbox.run_code("1", language="java")
    with pytest.raises(SandboxException, match="400"):
        sandbox.create_code_context(language="java")
    with pytest.raises(SandboxException, match=r"no R.*`languages`"):
        sandbox.run_code("1", language="r")
    with pytest.raises(SandboxException, match=r"no R.*`languages`"):
        sandbox.create_code_context(language="r")
    with pytest.raises(InvalidArgumentException):
        sandbox.run_code("1", language="python", context=Context("default", "python", "/"))


def test_typescript_runs_in_its_default_context_and_in_own_ones(sandbox: Sandbox) -> None:
    sandbox.run_code("enum Size { S, L }\nconst size: Size = Size.L", language="typescript")
    assert sandbox.run_code("Size[size as number]", language="ts").text == "L"
    made = sandbox.create_code_context(cwd="/tmp", language="typescript")
    assert (made.language, made.cwd) == ("typescript", "/tmp")
    execution = sandbox.run_code("const where: string = process.cwd(); console.log(where, typeof size)", context=made)
    assert "".join(execution.logs.stdout) == "/tmp undefined\n"
    error = sandbox.run_code("let a: number 5", language="typescript").error
    assert error is not None
    assert (error.name, error.value) == ("SyntaxError", "Expected a semicolon")


def test_contexts_have_their_own_variables_and_folder(sandbox: Sandbox) -> None:
    sandbox.run_code("mine = 'default'")
    made = sandbox.create_code_context(cwd="/tmp", language="python")
    assert (made.language, made.cwd) == ("python", "/tmp")
    assert sandbox.run_code("import os; mine = 'other'; os.getcwd()", context=made).text == "/tmp"
    assert sandbox.run_code("mine").text == "default"
    assert sandbox.create_code_context().cwd == "/home/user"
    listed = {each.id: each for each in sandbox.list_code_contexts()}
    assert listed[made.id].cwd == "/tmp"
    sandbox.restart_code_context(made)
    error = sandbox.run_code("mine", context=made).error
    assert error is not None
    assert error.name == "NameError"
    sandbox.remove_code_context(made.id)
    assert made.id not in {each.id for each in sandbox.list_code_contexts()}
    for ask in (sandbox.remove_code_context, sandbox.restart_code_context, lambda gone: sandbox.run_code("1", context=gone)):
        with pytest.raises(NotFoundException):
            ask(made)
    with pytest.raises(NotFoundException):
        sandbox.create_code_context(cwd="/no/such/folder")


def test_default_contexts_are_listed_before_their_first_run(opts: Opts) -> None:
    with Sandbox.create(timeout=120, **opts) as made:
        defaults = made.list_code_contexts()
        assert [(each.language, each.cwd) for each in defaults] == [(name, "/home/user") for name in ("python", "javascript", "bash", "typescript")]
        made.remove_code_context(defaults[1])
        made.restart_code_context(defaults[2])
        assert [made.run_code("1", context=each).error for each in defaults[:2]] == [None, None]
        created = made.create_code_context()
        assert [each.id for each in made.list_code_contexts()] == [*(each.id for each in defaults), created.id]


def test_removed_default_context_starts_anew(sandbox: Sandbox) -> None:
    sandbox.run_code("here = 1")
    (default,) = (each for each in sandbox.list_code_contexts() if each.language == "python" and sandbox.run_code("here", context=each).text == "1")
    sandbox.remove_code_context(default)
    error = sandbox.run_code("here").error
    assert error is not None
    sandbox.run_code("here = 2")
    sandbox.restart_code_context("default")  # as E2B calls it
    assert sandbox.run_code("here").error is not None


def test_request_timeout_interrupts_the_code(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.run_code("kept = 7\nimport time\nwhile True: time.sleep(0.01)", timeout=1)
    assert sandbox.run_code("kept").text == "7"  # its turn comes, and the variables are there


def test_exit_of_the_interpreter_is_reported(sandbox: Sandbox) -> None:
    error = sandbox.run_code("import os; os._exit(3)").error
    assert error is not None
    assert error.name == "KernelDied"
    assert sandbox.run_code("1 + 1").text == "2"


def test_end_of_the_sandbox_is_reported_to_running_code(opts: Opts) -> None:
    doomed = Sandbox.create(timeout=60, **opts)
    with pytest.raises(TimeoutException, match="killed"):
        doomed.run_code("print('on', flush=True)\nimport time\ntime.sleep(600)", on_stdout=lambda _: doomed.kill())
    with pytest.raises(TimeoutException, match="was not found"):
        doomed.run_code("1")
    with pytest.raises(TimeoutException, match="was not found"):
        doomed.list_code_contexts()


def test_variables_survive_pause_fork_and_snapshot(gvisor_service: TcpService) -> None:
    opts = opts_of(gvisor_service)
    with Sandbox.create(timeout=120, **opts) as made:
        made.run_code("x = [1]")
        (fork,) = made.fork()
        assert isinstance(fork, Sandbox)
        fork.run_code("x.append(2)")
        assert (fork.run_code("x").text, made.run_code("x").text) == ("[1, 2]", "[1]")
        fork.kill()
        made.pause()
        with pytest.raises(TimeoutException, match="was not found"):
            made.run_code("x")
        assert made.get_info().state is SandboxState.PAUSED
        assert Sandbox.connect(made.sandbox_id, **opts).run_code("x").text == "[1]"


def test_pause_without_memory_ends_contexts(gvisor_service: TcpService) -> None:
    with Sandbox.create(timeout=120, **opts_of(gvisor_service, "without-memory")) as made:
        own = made.create_code_context(cwd="/tmp")
        made.run_code("x = 1", context=own)
        made.run_code("open('kept', 'w').write('kept'); x = 1")
        assert made.pause(mode="filesystem")
        made.connect()
        error = made.run_code("x").error
        assert error is not None
        assert error.name == "NameError"
        assert made.run_code("open('kept').read()").text == "kept"
        with pytest.raises(NotFoundException):
            made.run_code("x", context=own)


def test_another_key_cannot_run_code(service: TcpService, sandbox: Sandbox) -> None:
    url, headers = f"{service.url}/e2b", {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-API-KEY": service.key("interpreter-stranger")}
    with httpx.Client(base_url=url, headers=headers) as http:
        for answer in (http.post("/execute", json={"code": "1"}), http.post("/contexts"), http.get("/contexts"), http.delete("/contexts/default")):
            assert answer.status_code == 502
            assert "was not found" in answer.json()["message"]
        assert http.get("/contexts", headers={"X-API-KEY": "none"}).status_code == 401


async def test_async_client_does_the_same(opts: Opts, sandbox: Sandbox) -> None:
    made = await AsyncSandbox.connect(sandbox.sandbox_id, **opts)
    lines: list[str] = []
    done = await made.run_code("x = 5\nprint('out')\nx", on_stdout=lambda message: lines.append(message.line))
    assert (done.text, lines) == ("5", ["out\n"])
    context = await made.create_code_context(language="bash", cwd="/tmp")
    one, other = await asyncio.gather(made.run_code("x + 1"), made.run_code("pwd", context=context))
    assert (one.text, "".join(other.logs.stdout)) == ("6", "/tmp\n")
    await made.restart_code_context(context)
    assert context.id in {each.id for each in await made.list_code_contexts()}
    await made.remove_code_context(context)
