"""Verdicts about programs that lacked memory."""

from __future__ import annotations

from sandlot.core.programs.verdict import Observation, grade
from sandlot.model.executions import ProcessOutcome
from sandlot.model.faults import Fault
from sandlot.model.ids import new_process_id
from sandlot.model.programs import ProgramParams, ProgramResult, ProgramStatus
from tests.support.cases import cases


def end(language: str, stderr: str, exit_code: int = 1) -> ProgramResult:
    outcome = ProcessOutcome(new_process_id(), exit_code, None, "exited", 1.0)
    return grade(ProgramParams(language, "x"), Observation(stderr=stderr, outcome=outcome))


@cases(
    "language, stderr, text",
    [
        ("python", 'Traceback (most recent call last):\n  File "main.py", line 1, in <module>\nMemoryError\n', "MemoryError"),
        (
            "python",
            "Traceback (most recent call last):\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB\n",
            "numpy._core._exceptions._ArrayMemoryError",
        ),
        (
            "javascript",
            "\n<--- Last few GCs --->\n\nFATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed - JavaScript heap out of memory\n"
            + "1: 0xc32640  [node]\n" * 2000,
            "JavaScript heap out of memory",
        ),
        ("typescript", "RangeError: Array buffer allocation failed\n", "Array buffer allocation failed"),
        ("bash", "main.sh: xrealloc: cannot allocate 16000128 bytes\n", ": cannot allocate 16000128 bytes"),
        (
            "java",
            'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat Main.main(Main.java:16)\n',
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        ("cpp", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "'std::bad_alloc'"),
        (
            "go",
            "runtime: out of memory: cannot allocate 4194304-byte block (335282176 in use)\nfatal error: out of memory\n"
            + "goroutine 1 [running]:\n" * 2000,
            "fatal error: out of memory",
        ),
        ("rust", "memory allocation of 1048576 bytes failed\n", "memory allocation of 1048576 bytes failed"),
        ("ruby", "main.rb: failed to allocate memory (NoMemoryError)\n", "(NoMemoryError)"),
        (
            "php",
            "PHP Fatal error:  Allowed memory size of 67108864 bytes exhausted (tried to allocate 2097152 bytes) in main.php on line 11\n",
            "Fatal error:  Allowed memory size of 67108864 bytes exhausted",
        ),
        ("php", "\nmmap() failed: [12] Cannot allocate memory\nOut of memory\n", "Out of memory"),
        ("r", "Error: cannot allocate vector of size 1024 Kb\nExecution halted\n", "cannot allocate vector of size"),
        ("perl", "Out of memory in perl:util:safesysmalloc\n", "Out of memory"),
    ],
)
def test_report_of_the_runtime_about_lack_of_memory_is_memory_exceeded(language: str, stderr: str, text: str) -> None:
    done = end(language, stderr)
    assert (done.status, done.fault, done.detail) == (ProgramStatus.MEMORY_EXCEEDED, Fault.LIMIT, f"The program could not allocate memory: {text}")


@cases(
    "language, stderr",
    [
        ("python", "java.lang.OutOfMemoryError: Java heap space\n"),
        ("python", "ValueError: MemoryError\n"),
        ("java", "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource limits reached\n"),
        ("c", "Out of memory\n"),
        ("go", ""),
    ],
)
def test_other_failures_are_runtime_errors(language: str, stderr: str) -> None:
    assert end(language, stderr).status is ProgramStatus.RUNTIME_ERROR


def test_program_that_survives_lack_of_memory_is_graded() -> None:
    assert end("python", "MemoryError\n", exit_code=0).status is ProgramStatus.COMPLETED


def test_successful_program_with_an_oom_killed_child_is_graded() -> None:
    seen = Observation(stdout="1", outcome=ProcessOutcome(new_process_id(), 0, None, "exited", 1.0), oom_kills=1)
    assert grade(ProgramParams("python", "x", expected_output="1"), seen).status is ProgramStatus.COMPLETED
    assert grade(ProgramParams("python", "x", expected_output="2"), seen).status is ProgramStatus.WRONG_ANSWER
    seen.outcome = ProcessOutcome(new_process_id(), 1, None, "exited", 1.0)
    assert grade(ProgramParams("python", "x"), seen).status is ProgramStatus.MEMORY_EXCEEDED
