"""Programs that are run once: every status, measured usage, and clients that go away."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sandlot.model.languages import language_of
from sandlot.sdk.models.programs import Program
from tests.support.corpus import problems
from tests.support.localservice import EACH_ISOLATION, ON_GVISOR, TEMPLATE, LocalService, local_service
from tests.support.traces import NOTHING, settle

HUNGRY = "x = []\nwhile True: x.append(b'x' * (1 << 22))"
GREEDY_CHILD = f"import subprocess, sys\nprint('before', flush=True)\nsys.exit(subprocess.run([sys.executable, '-c', {HUNGRY!r}]).returncode != 0)"


@pytest.fixture(scope="module", params=EACH_ISOLATION)
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service(isolation=request.param) as running:
        yield running
        settle(running.traces, NOTHING)


def program(service: LocalService, code: str, language: str = "python", **more: Any) -> Program:  # noqa: ANN401 - ProgramOptions
    return cast("Program", {"language": language, "code": code, "template": TEMPLATE, "isolation": service.isolation or "auto", **more})


def test_every_status_in_one_batch(service: LocalService) -> None:
    asked: dict[str, Program] = {
        "completed": program(service, "console.log(require('fs').readFileSync(0, 'utf8') * 2)", "js", stdin="21", expected_output="42"),
        "wrong_answer": program(service, "echo 41", "sh", expected_output="42"),
        "runtime_error": program(service, "raise SystemExit(3)"),
        "timeout": program(service, "print('early', flush=True)\nwhile True: pass", timeout=1),
        "memory_exceeded": program(service, HUNGRY, memory="128M", timeout=50),
        "output_limit": program(service, "yes", "bash", output_bytes=1000),
    }
    done = [item.unwrap() for item in service.client.programs.run_batch(asked.values(), concurrency=3)]
    assert [each.status for each in done] == list(asked)
    assert [each.ok for each in done] == [True, False, False, False, False, False]
    assert [each.exit_code for each in done] == [0, 0, 3, 124, 137, 137]
    assert [each.timed_out for each in done] == [False, False, False, True, False, False]
    assert [each.signal for each in done] == [None, None, None, 9, 9, 9]
    assert [each.stdout for each in done] == ["42\n", "41\n", "", "early\n", "", "y\n" * 500]
    assert [bool(each.detail) for each in done] == [False, False, False, True, True, True]


LEAVES_FILES = """
import os
paths = [os.path.expanduser('~/left'), '/workspace/left', '/tmp/left', '/var/tmp/left', '/dev/shm/left']
print(*(os.path.exists(path) for path in paths))
for path in paths:
    with open(path, 'wb') as file: file.write(bytes(40 << 20))
"""


def test_next_case_runs_in_the_same_sandbox_without_temporary_files(service: LocalService) -> None:
    done = service.client.programs.run(**program(service, LEAVES_FILES, memory="256M", cases=[{}] * 3))
    assert done.status == "completed", done
    # A new sandbox would have no file in the home folder.
    assert [case.stdout.split() for case in done.cases] == [[left, *["False"] * 4] for left in ("False", "True", "True")]


@pytest.mark.slow
def test_heap_limit_of_a_runtime_is_memory_exceeded(service: LocalService) -> None:
    code = "const eaten = [];\nfor (;;) eaten.push(Array(1 << 17).fill(eaten.length));"
    done = service.client.programs.run(**program(service, code, "javascript", memory="256M", timeout=50))
    assert (done.status, done.fault) == ("memory_exceeded", "limit"), done


def test_program_of_the_corpus_is_graded_right_and_its_mutant_wrong(service: LocalService) -> None:
    # tests/soak/test_graded_programs.py has all languages and problems.
    python = language_of("python")
    (problem,) = (each for each in problems() if each.name == "run-length-encoding")
    codes = (problem.solution(python), problem.mutant(python))
    programs = [problem.program(python, code, template=TEMPLATE, isolation=service.isolation or "auto") for code in codes]
    done = [item.unwrap() for item in service.client.programs.run_batch(programs, concurrency=2)]
    assert [each.status for each in done] == ["completed", "wrong_answer"]
    assert all(len(each.cases) == len(problem.cases) for each in done)


@pytest.mark.slow
def test_memory_exceeded_by_a_child_is_reported_too(service: LocalService) -> None:
    done = service.client.programs.run(**program(service, GREEDY_CHILD, memory="128M", timeout=50))
    assert (done.status, done.stdout) == ("memory_exceeded", "before\n"), done


def test_usage_is_measured_and_there_is_no_network(service: LocalService) -> None:
    code = (
        "import os, time\nx = b'x' * (64 << 20)\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(0.3)\n"
        "print(sorted(os.listdir('/sys/class/net')) if os.path.isdir('/sys/class/net') else ['lo'])"
    )
    done = service.client.programs.run(**program(service, code))
    assert (done.status, done.stdout) == ("completed", "['lo']\n")
    assert done.cpu_s is not None
    assert done.peak_bytes is not None
    assert 0.25 < done.cpu_s < done.duration_s
    assert done.peak_bytes > 64 << 20
    small = service.client.programs.run(**program(service, ":", "bash"))
    assert small.peak_bytes is not None
    assert small.peak_bytes < 12 << 20, "not that of the process that starts it"


LEAVES = """
import sys
from sandlot import Client
with Client(data_dir=sys.argv[1], autostart=False) as client:
    programs = [{"language": "bash", "code": "sleep 100", "template": sys.argv[2], "isolation": sys.argv[3], "timeout": 100}] * 3
    client.programs.run_batch(programs, concurrency=2)
"""


@pytest.mark.slow
@ON_GVISOR
def test_killed_client_leaves_no_sandbox(service: LocalService) -> None:
    client = subprocess.Popen([sys.executable, "-c", LEAVES, str(service.data_dir), TEMPLATE, service.isolation or "auto"])
    while len(service.client.sandboxes.list(state="running")) < 2:
        assert client.poll() is None
        time.sleep(0.02)
    client.send_signal(signal.SIGKILL)
    client.wait()
    while service.client.sandboxes.list():
        time.sleep(0.02)
