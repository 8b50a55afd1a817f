"""Programs with several cases, and compile errors."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sandlot.core.programs import runner
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError
from sandlot.model.faults import Fault
from sandlot.model.languages import language_of
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.programs import Case, Comparison, ProgramParams, ProgramResult, ProgramStatus
from sandlot.model.sandboxes import LimitsChange
from tests.support.cases import cases as parametrized
from tests.support.service import Bench
from tests.support.until import until

pytestmark = pytest.mark.real_guest  # needs real processes


async def run(at: Bench, code: str, language: str = "python", **more: Any) -> ProgramResult:  # noqa: ANN401 - the fields of ProgramParams
    params = ProgramParams(language, code, template="base", limits=LimitsChange(pids=32768), **more)
    return await at.node.programs.run(OPERATOR, params)


def statuses(result: ProgramResult) -> list[str]:
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
    assert (done.status, done.stdout) == (ProgramStatus.WRONG_ANSWER, "4.0\n")
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
left = [os.path.expanduser('~/seen'), '/workspace/seen', '/tmp/seen', '/dev/shm/seen']
print(found, *(os.path.exists(path) for path in left))
for path in left: open(path, 'w').close()
quiet = subprocess.DEVNULL
subprocess.Popen(['sleep', '987'], env={}, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
"""


async def test_processes_and_temporary_files_of_a_case_are_gone_before_the_next_case(at: Bench) -> None:
    done = await run(at, LEAVES_A_PROCESS, cases=(Case(),) * 3)
    assert [(str(case.status), case.stdout) for case in done.cases] == [
        ("completed", f"0 {is_home_kept} False False False\n")
        for is_home_kept in (False, True, True)  # files in the home folder stay, because all cases run in the same sandbox
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
    done = await run(at, code, "bash", timeout_s=5, cases=(Case(b"a\n", "fine"), Case(b"end\n", "fine"), Case(b"b\n", "fine")))
    # The end of the sandbox is noticed at once, or only when the program does not respond at its timeout.
    assert statuses(done) in (["completed", "runtime_error", "completed"], ["completed", "timeout", "completed"])


async def test_case_in_a_damaged_sandbox_runs_in_a_new_one(at: Bench) -> None:
    code = "read what; if [ $what = damage ]; then chmod 555 /workspace; fi; echo fine"
    done = await run(at, code, "bash", cases=tuple(Case(what, "fine") for what in (b"a\n", b"damage\n", b"b\n")), files={"data": b""})
    assert statuses(done) == ["completed"] * 3


async def test_case_that_could_outlive_its_sandbox_runs_in_a_new_one(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1e6)
    code = "import os; os.chdir(os.path.expanduser('~')); print(os.path.exists('seen')); open('seen', 'w').close()"
    done = await run(at, code, cases=(Case(),) * 2)
    assert [case.stdout for case in done.cases] == ["False\n"] * 2


async def test_each_case_runs_in_a_new_sandbox_if_its_files_are_too_many_to_list(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    async def list_nothing(_sandbox: object, keep: object) -> None:
        requests.append(keep)

    monkeypatch.setattr(runner, "_clean_up", list_nothing)
    code = "import os; os.chdir(os.path.expanduser('~')); print(os.path.exists('seen')); open('seen', 'w').close()"
    done = await run(at, code, cases=(Case(),) * 3)
    assert [case.stdout for case in done.cases] == ["False\n"] * 3
    assert requests == [None] * 3, "each sandbox is asked once, and never told to remove anything"


async def test_each_case_runs_in_a_new_sandbox_if_the_sandbox_has_no_memory_for_the_helper(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_sandbox: object, _keep: object) -> None:
        raise ConflictError("The helper ended before it had finished.")

    monkeypatch.setattr(runner, "_clean_up", fail)
    done = await run(at, "print(input())", cases=(Case(b"1", "1"), Case(b"2", "2")))
    assert statuses(done) == ["completed"] * 2


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
        ("javascript", "import fs from 'fs';\nconsole.log('early'); if (;"),
        ("javascript", "console.log('early');\nexport const a = 3 3;"),
        ("javascript", "await 1;\nlet a; let a;"),
        ("bash", "echo early\nif ("),
        ("perl", "print 'early'; if ("),
    ],
)
async def test_syntax_error_is_a_compile_error(at: Bench, language: str, code: str) -> None:
    done = await run(at, code, language, cases=(Case(), Case()))
    assert (done.status, done.stdout, done.cases) == (ProgramStatus.COMPILE_ERROR, "", ())
    assert "main." in done.compile_output
    assert done.stderr == done.compile_output
    assert done.exit_code


@parametrized(
    "language, code",
    [
        ("python", "compile('if (', 'main.py', 'exec')"),
        ("javascript", "throw new SyntaxError('if (')"),
        ("javascript", "import 'absent';\nexport const a = await 1;"),
        ("javascript", "with (Math) { return process.exit(010); }"),
        ("javascript", "#!/usr/bin/env node\nprocess.exit(1);"),
        ("bash", "eval 'if ('"),
        ("perl", "die 'syntax error'"),
        ("python", "import os; os.remove('main.py'); os.mkdir('main.py'); raise SystemExit(1)"),
        ("python", "open('main.py', 'w').write('if ('); raise SystemExit(1)"),
    ],
)
async def test_program_without_a_syntax_error_has_a_runtime_error(at: Bench, language: str, code: str) -> None:
    done = await run(at, code, language)
    assert (done.status, done.compile_output) == (ProgramStatus.RUNTIME_ERROR, "")


async def test_files_of_a_program_do_not_change_its_syntax_check(at: Bench) -> None:
    shadows = dict.fromkeys(("enum.py", "argparse.py", "py_compile.py"), b"raise SystemExit(9)")
    assert (await run(at, "raise SystemExit(1)", files=shadows)).status is ProgramStatus.RUNTIME_ERROR


async def test_language_that_the_template_lacks_is_refused_without_a_sandbox(at: Bench) -> None:
    with pytest.raises(InvalidRequestError, match="programs in Rust") as refused:
        await run(at, "fn main() {}", "rust")
    assert refused.value.fields["language"] == "rust"
    assert at.sandboxes.list(OPERATOR) == []
    assert await at.node.languages.choose(OPERATOR, "python") == "code-interpreter"


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
        ProgramParams("python", "", **more)


def compile_with(monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    """Let a line of shell be the compiler of Python programs, which then are executable files."""
    compiled = replace(language_of("python"), compile_argv=("sh", "-c", compiler), run_argv=("{folder}/{name}",))
    monkeypatch.setattr(runner, "language_of", lambda _: compiled)


@parametrized(
    "compiler",
    ["true", "touch {folder}/{name}", "printf '\\177ELF' > {folder}/{name}; chmod +x {folder}/{name}"],
)
async def test_program_whose_compiler_writes_no_executable_file_has_a_runtime_error(
    at: Bench, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    compile_with(monkeypatch, compiler)
    done = await run(at, '#![crate_type = "lib"]')
    assert (done.status, done.fault, done.exit_code, done.signal) == (ProgramStatus.RUNTIME_ERROR, Fault.CODE, 126, None), done
    assert "/workspace/main" in done.detail
    done = await run(at, '#![crate_type = "lib"]', cases=(Case(), Case()))
    assert statuses(done) == ["runtime_error"] * 2


async def test_case_after_one_that_removed_the_program_runs_in_a_new_sandbox(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "printf '#!/bin/sh\\necho fine; rm -f /workspace/main\\n' > {folder}/{name}; chmod +x {folder}/{name}"
    compile_with(monkeypatch, script)
    done = await run(at, "fn main() {}", cases=(Case(b"", "fine"),) * 2)
    assert statuses(done) == ["completed"] * 2


async def test_compiler_with_a_child_that_was_killed_at_the_memory_limit_has_reached_a_limit(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(_sandbox: object) -> int:
        return 1

    compile_with(monkeypatch, "echo killed >&2; exit 1")
    done = await run(at, "fn main() {}")
    assert (done.status, done.fault, done.detail) == (ProgramStatus.COMPILE_ERROR, Fault.CODE, "")
    monkeypatch.setattr(runner, "_oom_kills", one)
    done = await run(at, "fn main() {}")
    assert (done.status, done.fault, done.compile_output) == (ProgramStatus.COMPILE_ERROR, Fault.LIMIT, "killed\n")
    assert "memory limit" in done.detail


async def test_compiler_that_ends_the_sandbox_at_the_memory_limit_has_reached_a_limit(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with(monkeypatch, "sleep 60; exit 0")
    done = await run_until_end_of_compiler(at, ExitReason.OOM)
    assert (done.status, done.fault, done.exit_code) == (ProgramStatus.COMPILE_ERROR, Fault.LIMIT, 137), done
    assert "memory limit" in done.detail
    with pytest.raises(SandboxEndedError):
        await run_until_end_of_compiler(at, ExitReason.KILLED)


async def run_until_end_of_compiler(at: Bench, reason: ExitReason) -> ProgramResult:
    """Run a program, and end its sandbox while the compiler runs."""
    task = asyncio.create_task(run(at, ""))
    await until(lambda: any(sandbox.is_announced for sandbox in at.sandboxes.list(OPERATOR)))
    (sandbox,) = at.sandboxes.list(OPERATOR)
    async with sandbox.connection() as link:
        while not any("sleep 60; exit 0" in info.argv for info in await link.processes.list()):  # noqa: ASYNC110 - the guest has no event
            await asyncio.sleep(0.01)
    sandbox.request_end(Exit(reason, "it ended"))
    return await task
