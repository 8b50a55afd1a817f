"""Programs with several cases, and compile errors."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.core.oneshot import runner
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InvalidRequestError
from sandlot.model.programs import Case, Comparison, OneShotParams, Result, Status
from sandlot.model.specs import Limits
from tests.support.cases import cases as parametrized
from tests.support.service import Bench

pytestmark = pytest.mark.real_guest  # programs and their processes are what these are about


async def run(at: Bench, code: str, language: str = "python", **more: Any) -> Result:  # noqa: ANN401 - the fields of OneShotParams
    params = OneShotParams(language, code, template="base", limits=Limits(pids=32768), **more)
    return await at.node.programs.run(OPERATOR, params)


def statuses(result: Result) -> list[str]:
    return [str(case.status) for case in result.cases]


async def test_each_case_has_an_input_an_expected_output_and_a_comparison(at: Bench) -> None:
    done = await run(
        at,
        "print(float(input()) * 2)",
        comparison=Comparison.NUMERIC,
        cases=(Case(b"1", "2"), Case(b"2", "4", Comparison.EXACT), Case(b"3", "6.4"), Case(b"3", "6.4", tolerance=1.0), Case(b"4")),
    )
    assert statuses(done) == ["completed", "wrong_answer", "wrong_answer", "completed", "completed"]
    assert [case.stdout for case in done.cases] == ["2.0\n", "4.0\n", "6.0\n", "6.0\n", "8.0\n"]
    assert (done.status, done.stdout) == (Status.WRONG_ANSWER, "4.0\n")
    assert done.duration_s == pytest.approx(sum(case.duration_s for case in done.cases))
    assert done.peak_bytes == max(case.peak_bytes or 0 for case in done.cases)
    assert len({case.execution for case in done.cases}) == 5


async def test_each_case_has_a_folder_with_the_files_of_the_program(at: Bench) -> None:
    code = "import os, help\nprint(sorted(os.listdir()), open('data/a').read())\nopen('new', 'w').close()\nopen('data/a', 'w').close()"
    done = await run(at, code, files={"data/a": b"content", "help.py": b""}, cases=(Case(),) * 2)
    assert [case.stdout for case in done.cases] == ["['data', 'help.py'] content\n"] * 2, done


LEAVES_A_PROCESS = """
import glob, os, subprocess
found = 0
for path in glob.glob('/proc/[0-9]*/cmdline'):
    try:
        found += open(path, 'rb').read().split(b'\\0')[:2] == [b'sleep', b'987']
    except OSError:
        pass
print(found, os.path.exists('/tmp/seen'))
open('/tmp/seen', 'w').close()
quiet = subprocess.DEVNULL
subprocess.Popen(['sleep', '987'], env={}, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
"""


async def test_processes_of_a_case_are_dead_before_the_next_case(at: Bench) -> None:
    done = await run(at, LEAVES_A_PROCESS, cases=(Case(),) * 3)
    assert [(str(case.status), case.stdout) for case in done.cases] == [
        ("completed", f"0 {seen}\n")  # in the same sandbox
        for seen in (False, True, True)
    ]


async def test_failed_case_does_not_change_the_next(at: Bench) -> None:
    code = (
        "import os, sys, time\n"
        "what = input()\n"
        "if what == 'slow': time.sleep(60)\n"
        "if what == 'crash': os.kill(os.getpid(), 11)\n"
        "if what == 'flood': print('x' * 10_000_000)\n"
        "if what == 'fail': sys.exit(3)\n"
        "if what == 'kill': os.kill(-1, 9)\n"
        "print('fine')"
    )
    asked = [b"slow", b"a", b"crash", b"b", b"flood", b"c", b"fail", b"d"]
    done = await run(at, code, timeout_s=1, output_bytes=1000, cases=tuple(Case(what, "fine") for what in asked))
    assert statuses(done)[::2] == ["timeout", "runtime_error", "output_limit", "runtime_error"]
    assert statuses(done)[1::2] == ["completed"] * 4
    assert [case.exit_code for case in done.cases][::2] == [124, 139, 137, 3]


async def test_case_after_the_end_of_the_sandbox_runs_in_a_new_sandbox(at: Bench) -> None:
    code = "read what; if [ $what = end ]; then sudo kill -9 1; sleep 60; fi; echo fine"
    done = await run(at, code, "bash", timeout_s=20, cases=(Case(b"a\n", "fine"), Case(b"end\n", "fine"), Case(b"b\n", "fine")))
    assert statuses(done) in (["completed", "runtime_error", "completed"], ["completed", "timeout", "completed"])


async def test_case_in_a_damaged_sandbox_runs_in_a_new_one(at: Bench) -> None:
    code = "read what; if [ $what = damage ]; then chmod 555 /workspace; fi; echo fine"
    done = await run(at, code, "bash", cases=tuple(Case(what, "fine") for what in (b"a\n", b"damage\n", b"b\n")), files={"data": b""})
    assert statuses(done) == ["completed"] * 3


async def test_case_that_could_outlive_its_sandbox_runs_in_a_new_one(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1e6)
    done = await run(at, "import os; print(os.path.exists('/tmp/seen')); open('/tmp/seen', 'w').close()", cases=(Case(),) * 2)
    assert [case.stdout for case in done.cases] == ["False\n"] * 2


async def test_oom_kill_counts_for_its_case_only(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((0, 1, 1, 1, 1))  # before and after the first case, before the second, before and after the third

    async def kills(_sandbox: object) -> int:
        return next(counts)

    monkeypatch.setattr(runner, "_oom_kills", kills)
    done = await run(at, "raise SystemExit(int(input()))", cases=(Case(b"3"), Case(b"0"), Case(b"3")))
    assert statuses(done) == ["memory_exceeded", "completed", "runtime_error"]


@parametrized(
    "language, code",
    [
        ("python", "print('early')\nif True print(1)"),
        ("javascript", "console.log('early'); if (;"),
        ("bash", "echo early\nif ("),
        ("perl", "print 'early'; if ("),
    ],
)
async def test_syntax_error_is_a_compile_error(at: Bench, language: str, code: str) -> None:
    done = await run(at, code, language, cases=(Case(), Case()))
    assert (done.status, done.stdout, done.cases) == (Status.COMPILE_ERROR, "", ())
    assert "main." in done.compile_output
    assert done.stderr == done.compile_output
    assert done.exit_code


@parametrized(
    "language, code",
    [
        ("python", "compile('if (', 'main.py', 'exec')"),
        ("javascript", "throw new SyntaxError('if (')"),
        ("bash", "eval 'if ('"),
        ("perl", "die 'syntax error'"),
        ("python", "import os; os.remove('main.py'); os.mkdir('main.py'); raise SystemExit(1)"),
        ("python", "open('main.py', 'w').write('if ('); raise SystemExit(1)"),
    ],
)
async def test_program_without_a_syntax_error_has_a_runtime_error(at: Bench, language: str, code: str) -> None:
    done = await run(at, code, language)
    assert (done.status, done.compile_output) == (Status.RUNTIME_ERROR, "")


async def test_files_of_a_program_do_not_change_its_syntax_check(at: Bench) -> None:
    shadows = dict.fromkeys(("enum.py", "argparse.py", "py_compile.py"), b"raise SystemExit(9)")
    assert (await run(at, "raise SystemExit(1)", files=shadows)).status is Status.RUNTIME_ERROR


async def test_language_that_the_template_lacks_is_refused_without_a_sandbox(at: Bench) -> None:
    with pytest.raises(InvalidRequestError, match="programs in Rust") as refused:
        await run(at, "fn main() {}", "rust")
    assert refused.value.fields["language"] == "rust"
    assert at.sandboxes.list(OPERATOR) == []
    assert await at.node.programs._choose_template(OPERATOR, OneShotParams("python", "")) == "code-interpreter"  # noqa: SLF001


@parametrized(
    "more",
    [
        {"cases": (Case(),) * 101},
        {"cases": (Case(),), "stdin": b"1"},
        {"cases": (Case(),), "expected_output": ""},
        {"cases": (Case(tolerance=-1),)},
        {"check_types": True},
        {"cases": (Case(),), "files": {"../main.py": b""}},
    ],
)
def test_invalid_cases_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        OneShotParams("python", "", **more)
