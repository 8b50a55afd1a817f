"""R contexts in sandboxes of the template ``languages``, whose image takes minutes to build."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path

import e2b_code_interpreter
import nbformat
import pytest

from sandlot.link.kernels import CellCall
from sandlot.link.types import CellResult
from sandlot.model.executions import CellError, CellStarted, Display, Output
from sandlot.model.specs import CellSpec
from sandlot.sdk.compat.sandboxapi import SandboxAPI
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession, driver_sandboxes, wake
from tests.support.tcpservice import TcpService, tcp_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

TEMPLATE = "languages"
PNG = b"\x89PNG\r\n\x1a\n"


class Outcome:
    """Output, results and error of a cell."""

    def __init__(self) -> None:
        self.stdout = ""
        self.stderr = ""
        self.displays: list[Display] = []
        self.error: CellError | None = None
        self.result: CellResult | None = None

    @property
    def status(self) -> str:
        assert self.result is not None
        return self.result.status

    @property
    def texts(self) -> list[str]:
        """Textual results."""
        return [str(display.data["text/plain"]) for display in self.displays if "image/png" not in display.data]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Width and height of each image."""
        images = [display.data["image/png"] for display in self.displays if "image/png" in display.data]
        for image in images:
            assert isinstance(image, bytes)
            assert image.startswith(PNG)
        return [(int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")) for image in images if isinstance(image, bytes)]


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox that the tests share."""
    limits = replace(SMALL, pids=256)
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation="gvisor", limits=limits, template=TEMPLATE) as sandbox:
        yield sandbox


async def listen(call: CellCall, outcome: Outcome, until: str | None = None) -> Outcome:
    async for item in call:
        if isinstance(item, Output):
            text = item.data.decode("utf-8", "replace")
            if item.channel == 1:
                outcome.stdout += text
            else:
                outcome.stderr += text
            if until is not None and until in outcome.stdout:
                return outcome
        elif isinstance(item, CellError):
            outcome.error = item
        elif isinstance(item, Display):
            outcome.displays.append(item)
        else:
            assert isinstance(item, CellStarted)
    outcome.result = await call.result()
    return outcome


async def run(inside: GuestSession, code: str, timeout_s: float = 60) -> Outcome:
    return await listen(await inside.link.kernels.execute(CellSpec(code, language="r", timeout_s=timeout_s)), Outcome())


async def test_visible_values_are_results_and_output_is_on_its_stream(inside: GuestSession) -> None:
    outcome = await run(inside, "x <- 5\ncat('out\\n'); message('err')\nx\ninvisible(6)\nc(a = 1, b = 2)")
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "out\n", "err\n")
    assert [(display.data["text/plain"], display.main) for display in outcome.displays] == [("[1] 5", False), ("a b \n1 2 ", True)]
    assert (await run(inside, "x + 1")).texts == ["[1] 6"]
    assert (await run(inside, "for (i in 1:3) i")).displays == []
    assert (await run(inside, "print.mine <- function(x, ...) cat('mine\\n'); structure(1, class = 'mine')")).texts == ["mine"]
    assert (await run(inside, "'ü'")).texts == ['[1] "ü"']
    assert (await run(inside, "cat('\\xff')")).stdout == "\ufffd"


async def test_long_value_is_cut(inside: GuestSession) -> None:
    (text,) = (await run(inside, "paste(rep('x', 2e6), collapse = '')")).texts
    assert 1_000_000 < len(text) < 1_100_000
    assert text.endswith("[... cut after 1048576 of 2000006 bytes]")


async def test_each_page_of_a_plot_is_an_image(inside: GuestSession) -> None:
    assert (await run(inside, "plot(1:3)\nlines(3:1)\ntitle('one')")).sizes == [(840, 840)]
    outcome = await run(inside, "plot(1)\nhist(c(1, 2, 2))\n'text'")
    assert [sorted(display.data) for display in outcome.displays] == [["image/png", "text/plain"], ["text/plain"], ["image/png", "text/plain"]]
    assert (await run(inside, "par(mfrow = c(1, 2)); plot(1); plot(2)")).sizes == [(840, 840)]
    assert (await run(inside, "for (i in 1:3) plot(i)")).sizes == [(840, 840)] * 3
    assert (await run(inside, "options(repr.plot.width = 4, repr.plot.height = 3, repr.plot.res = 100); plot(1); dev.off()")).sizes == [(400, 300)]
    outcome = await run(inside, "plot(1); stop('late')")
    assert (outcome.sizes, outcome.error and outcome.error.value) == ([(400, 300)], "late")
    outcome = await run(inside, "lines(1:2)")
    assert outcome.error is not None, "the plot of another cell is complete"
    await run(inside, "options(repr.plot.width = NULL, repr.plot.height = NULL, repr.plot.res = NULL)")


async def test_devices_of_the_cell_are_its_own(inside: GuestSession) -> None:
    assert (await run(inside, "png('/tmp/own.png'); plot(1); dev.off(); file.size('/tmp/own.png') > 0")).sizes == []
    assert (await run(inside, "pdf('/tmp/own.pdf'); plot(1); NULL")).sizes == []
    assert (await run(inside, "names(dev.cur()); invisible(dev.off())")).texts == ['[1] "pdf"']


async def test_error_has_name_message_and_lines_and_keeps_the_state(inside: GuestSession) -> None:
    outcome = await run(inside, "kept <- 1\nf <- function(a) {\n  g(a)\n}\ng <- function(b) stop('boom ', b)\nf(3)\nkept <- 2")
    assert outcome.error is not None
    assert (outcome.status, outcome.error.name, outcome.error.value) == ("error", "Error", "boom 3")
    count = outcome.result.execution_count if outcome.result is not None else 0
    assert list(outcome.error.traceback) == [
        "Error in g(a): boom 3",
        "Traceback:",
        "1. f(3)",
        f"2. g(a)  at cell-{count}.R:3",
        f'3. stop("boom ", b)  at cell-{count}.R:5',
    ]
    assert (await run(inside, "kept")).texts == ["[1] 1"]


async def test_every_kind_of_error_has_its_name_and_message_and_keeps_the_state(inside: GuestSession) -> None:
    await run(inside, "kept <- 1")
    for code, name, value in (
        ("kept <- 3; y +", "SyntaxError", "unexpected end of input"),
        ("a b", "SyntaxError", "unexpected symbol"),
        ("nosuch", None, "object 'nosuch' not found"),
        ("stop(structure(class = c('mine', 'error', 'condition'), list(message = 'own', call = NULL)))", "mine", "own"),
        ("deep <- function(n) deep(n + 1); deep(1)", None, ""),  # a limit of R or of the kernel: which one differs by release
        ("structure(1, class = 'bad') -> b; print.bad <- function(x, ...) stop('in print'); b", "Error", "in print"),
    ):
        error = (await run(inside, code)).error
        assert error is not None, code
        assert name is None or name == error.name, error
        assert value in error.value, error
        assert not any("sandlot" in line or "kernel" in line for line in error.traceback), error
    assert (await run(inside, "kept")).texts == ["[1] 1"]


async def test_long_traceback_has_its_first_and_last_calls(inside: GuestSession) -> None:
    error = (await run(inside, "deep <- function(n) if (n == 0) stop('bottom') else deep(n - 1)\ndeep(99)")).error
    assert error is not None
    assert (error.traceback[2], error.traceback[12]) == ("1. deep(99)", "[71 calls left out]")
    assert error.traceback[-1].startswith('101. stop("bottom")')
    assert len(error.traceback) == 33


async def test_error_with_very_many_lines_is_cut_and_keeps_the_state(inside: GuestSession) -> None:
    error = (await run(inside, "kept <- 4\nstop(simpleError(strrep('a\\n', 150000)))")).error
    assert error is not None
    assert (len(error.value), len(error.traceback)) == (8000, 1000)  # the guest passes on 1,000 lines
    assert (await run(inside, "kept")).texts == ["[1] 4"]


async def test_warnings_and_messages_are_on_stderr(inside: GuestSession) -> None:
    outcome = await run(inside, "f <- function() { warning('careful'); message('note'); 7 }\nf()\nas.integer('x')")
    assert (outcome.status, outcome.stderr) == ("ok", "Warning in f(): careful\nnote\nWarning: NAs introduced by coercion\n")
    assert outcome.texts == ["[1] 7", "[1] NA"]
    assert (await run(inside, "for (i in 1:60) warning(i)")).stderr.endswith("Warning: 50\n10 further warnings\n")
    error = (await run(inside, "options(warn = 2); warning('strict')")).error
    assert error is not None
    assert "converted from warning" in error.value
    assert (await run(inside, "options(warn = -1); warning('quiet')")).stderr == ""
    assert (await run(inside, "options(warn = 1); warning('at once')")).stderr == "Warning: at once\n"
    await run(inside, "options(warn = 0)")


async def test_quit_ends_the_cell_only(inside: GuestSession) -> None:
    assert (await run(inside, "kept <- 'yes'; cat('on\\n'); quit(); cat('never\\n')")).stdout == "on\n"
    error = (await run(inside, "f <- function() q(status = 3); f()")).error
    assert error is not None
    assert (error.name, error.value) == ("ExitStatus", "3")
    await run(inside, "invokeRestart('abort')")
    assert (await run(inside, "kept")).texts == ['[1] "yes"']


async def test_standard_input_is_empty(inside: GuestSession) -> None:
    error = (await run(inside, "readline('? ')")).error
    assert error is not None
    assert "Standard input is not available" in error.value
    assert (await run(inside, "c(length(readLines(stdin())), length(readLines(file('stdin'))), length(scan(quiet = TRUE)))")).texts == ["[1] 0 0 0"]


async def test_missing_package_is_an_error_that_says_what_to_install(inside: GuestSession) -> None:
    error = (await run(inside, "library(nosuch)")).error
    assert error is not None
    assert "no package called" in error.value
    assert "apt-get install r-cran-nosuch" in error.traceback[-1]


IGNORES_THE_FIRST = r"""system("bash -c 'trap \"trap - INT\" INT; while :; do sleep 0.1; done'"); Sys.sleep(300)"""
"""Runs a program that an interrupt ends only at its second signal, as if the program had been about to start at the first. R ignores both."""


@pytest.mark.parametrize("code", ["repeat {}", "Sys.sleep(300)", "system('sleep 300'); Sys.sleep(300)", IGNORES_THE_FIRST, "for (i in 1:1e9) i"])
async def test_interrupt_ends_a_cell_and_keeps_the_state(inside: GuestSession, code: str) -> None:
    call = await inside.link.kernels.execute(CellSpec(f"kept <- 'yes'; cat('on\\n'); {code}", language="r"))
    outcome = await listen(call, Outcome(), until="on\n")
    await inside.link.kernels.interrupt("r")
    await listen(call, outcome)
    assert outcome.error is not None
    assert (outcome.error.name, outcome.stdout) == ("KeyboardInterrupt", "on\n")
    assert (await run(inside, "kept")).texts == ['[1] "yes"']


async def test_cell_that_ignores_interrupts_loses_the_state_and_says_so(inside: GuestSession) -> None:
    await run(inside, "kept <- 'yes'")
    outcome = await run(inside, "suspendInterrupts(repeat {})", timeout_s=0.5)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.name) == ("timeout", "KernelDied")
    assert (await run(inside, "exists('kept')")).texts == ["[1] FALSE"]


async def test_end_of_r_is_reported_and_the_next_cell_gets_a_new_kernel(inside: GuestSession) -> None:
    outcome = await run(inside, "cat('last\\n'); system('sleep 300 &'); tools::pskill(Sys.getpid(), 9)")
    assert (outcome.status, outcome.stdout) == ("died", "last\n")
    assert (await run(inside, "6 * 7")).texts == ["[1] 42"]
    assert "sleep" not in await inside.sh("ps -eo args")
    assert (await inside.sh("ps -eo args | grep -c '[r]/kernel.py'")) == "1\n"


async def test_profile_that_ends_r_does_not_prevent_the_start(inside: GuestSession) -> None:
    await inside.sh("echo 'quit()' >~/.Rprofile")
    await inside.link.kernels.restart("r")
    assert (await run(inside, "6 * 7")).texts == ["[1] 42"]
    await inside.sh("rm ~/.Rprofile")


async def test_hostile_cell_does_not_affect_later_cells(inside: GuestSession) -> None:
    for code in (
        "file('/tmp/open', 'w'); sink('/tmp/sunk'); closeAllConnections()",
        "c <- 1; cat <- 2; eval <- function(...) stop('mine'); T <- FALSE; `+` <- function(a, b) 0",
        "rm(list = ls(all.names = TRUE))",
        "Sys.setlocale('LC_ALL', 'C')",
        "unlink(tempdir(), recursive = TRUE); plot(1)",
        "stop('\\xff')",
        "names(quote(f(x)))",
        "print(strrep('x', 9e6))",
    ):
        await run(inside, f"kept <- 5; {code}")
        assert (await run(inside, "base::`+`(40, 2)")).texts == ["[1] 42"], code


async def test_restart_removes_the_state(inside: GuestSession) -> None:
    await run(inside, "kept <- 1")
    await inside.link.kernels.restart("r")
    assert (await run(inside, "exists('kept')")).texts == ["[1] FALSE"]


async def test_cell_that_fills_the_memory_ends_as_oom_and_the_sandbox_continues(inside: GuestSession) -> None:
    outcome = await run(inside, "kept <- list(); repeat kept[[length(kept) + 1]] <- rep(1, 1e6)")
    assert outcome.status == "oom"
    assert (await run(inside, "exists('kept')")).texts == ["[1] FALSE"]


async def test_environment_of_context_and_cell_is_set(inside: GuestSession) -> None:
    context = await inside.link.kernels.create("ctx-00000000000000aa", "r", cwd="/tmp", env={"COLOUR": "green"})
    code = "c(getwd(), Sys.getenv('COLOUR'), Sys.getenv('SIZE'))"
    for env, expected in (({"SIZE": "big", "COLOUR": "red"}, '[1] "/tmp" "red"  "big" '), ({}, '[1] "/tmp"  "green" ""     ')):
        call = await inside.link.kernels.execute(CellSpec(code, language=None, context=context.kernel, env=env))
        assert (await listen(call, Outcome())).texts == [expected]
    await inside.link.kernels.remove(context.kernel)


async def test_copies_of_one_image_draw_different_numbers_and_keep_the_state(tmp_path: Path) -> None:
    async with driver_sandboxes(tmp_path, TEMPLATE) as here:
        source = await here.open()
        await wake(source, "sb-source")
        await run(source, "kept <- 5; set.seed(1); x <- runif(1)")
        copies = await here.copies(source, 2)
        for number, copy in enumerate(copies):
            await wake(copy, f"sb-copy-{number}")
        drawn = await asyncio.gather(*(run(each, "cat(runif(3), sample(1e9, 2), kept)") for each in (source, *copies)))
        numbers = [outcome.stdout.split() for outcome in drawn]
        assert all(len(set(column)) == 3 for column in list(zip(*numbers, strict=True))[:5]), numbers
        assert [outcome.stdout.split()[-1] for outcome in drawn] == ["5"] * 3


@pytest.fixture(scope="module")
def service() -> Iterator[TcpService]:
    with tcp_service() as running:
        yield running


def test_e2bs_client_gets_results_and_plots_of_r(service: TcpService) -> None:
    url = f"{service.url}/e2b"
    options = {"api_key": service.key("r"), "api_url": url, "sandbox_url": url}
    sandbox = e2b_code_interpreter.Sandbox.create(template=TEMPLATE, timeout=1200, request_timeout=1200, **options)
    try:
        sandbox.run_code("x <- 20", language="r")
        assert sandbox.run_code("x + 1", language="r").text == "[1] 21"
        context = sandbox.create_code_context(cwd="/tmp", language="r")
        assert (context.language, context.cwd) == ("r", "/tmp")
        execution = sandbox.run_code("print(getwd())\nplot(1:3)\nexists('x')", context=context)
        assert ("".join(execution.logs.stdout), execution.text) == ('[1] "/tmp"\n', "[1] FALSE")
        (image,) = [result for result in execution.results if result.png]
        assert base64.b64decode(image.png or "").startswith(PNG)
        assert not image.is_main_result
        error = sandbox.run_code("stop('no')", language="r").error
        assert error is not None
        assert (error.name, error.value, error.traceback.splitlines()[0]) == ("Error", "no", "Error: no")
        assert {"r"} <= {each.language for each in sandbox.list_code_contexts()}
    finally:
        sandbox.kill()


def test_session_in_r_gets_a_template_with_r(service: TcpService) -> None:
    with SandboxAPI(api_key=service.key("sessions"), base_url=f"{service.url}/sandboxapi") as sandboxapi:
        session = sandboxapi.sessions.create(language="r")
        assert sandboxapi.sessions.execute(session.id, code="x <- 41").status == "completed"
        done = sandboxapi.sessions.execute(session.id, code="cat(x + 1)")
        assert (done.status, done.stdout, done.language) == ("completed", "42", "r")
        sandboxapi.sessions.close(session.id)


def test_notebook_of_r_has_its_kernel_and_plots(service: TcpService, tmp_path: Path) -> None:
    with service.create(TEMPLATE, timeout=1200) as sandbox:
        execution = sandbox.run_code("plot(1)\n1 + 1", language="r")
        assert (execution.ok, execution.text) == (True, "[1] 2")
        notebook = json.loads(sandbox.export_notebook(tmp_path / "r.ipynb").read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    assert notebook["metadata"]["kernelspec"]["name"] == "ir"
    (cell,) = notebook["cells"]
    assert (cell["source"], len(cell["outputs"])) == ("plot(1)\n1 + 1", 2)
    assert [sorted(output["data"]) for output in cell["outputs"]] == [["text/plain"], ["image/png", "text/plain"]]
    assert base64.b64decode(cell["outputs"][1]["data"]["image/png"]).startswith(PNG)
