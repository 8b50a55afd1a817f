"""The first program of a sandbox, run on this machine: directly, and under a filter that makes its kernel behave as gVisor's."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.link.first_program import SYS_CLOSE_RANGE, first_program

CLOSE_ALL = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall({SYS_CLOSE_RANGE}, ctypes.c_ulong(0x7FFFFFFF), ctypes.c_ulong(0xFFFFFFFF), ctypes.c_ulong(0))
print(ctypes.get_errno())
"""
"""Prints the error of ``close_range(2**31 - 1, 2**32 - 1, 0)``."""
FAULTY = f"""
import errno, os, struct, sys
from sandlot.host.stage import syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
code = ((0x20, 0, 0, 0), (0x15, 0, 1, {SYS_CLOSE_RANGE}), (6, 0, 0, 0x50000 | errno.EINVAL), (6, 0, 0, 0x7FFF0000))
syscalls.set_seccomp_filter(b"".join(struct.pack("<HBBI", *each) for each in code))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Starts a program on a kernel that refuses close_range(2) with EINVAL."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "first"
    file.write_bytes(first_program())
    file.chmod(0o755)
    return file


def run(*argv: str | Path, env: dict[str, str] | None = None) -> str:
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def filters(*argv: str | Path) -> str:
    """Return the number of filters of a program that is started in this way."""
    (line,) = (line for line in run(*argv, "/bin/cat", "/proc/self/status").splitlines() if line.startswith("Seccomp_filters:"))
    return line


def test_becomes_the_next_program_with_its_arguments_and_environment(program: Path) -> None:
    assert run(program, "/bin/sh", "-c", 'echo "$0 $*"; env | grep -v ^PWD=', "a", "b c", env={"X": "1"}).splitlines() == ["a b c", "X=1"]


def test_keeps_standard_streams_and_process_id(program: Path) -> None:
    with subprocess.Popen([program, "/bin/sh", "-c", "cat; echo $$"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(b"in\n", timeout=60)
    assert out == b"in\n%d\n" % process.pid


def test_ends_with_127_if_the_next_program_does_not_exist(program: Path) -> None:
    assert subprocess.run([program, "/nowhere"], check=False, timeout=60).returncode == 127


def test_installs_no_filter_on_a_kernel_without_the_fault(program: Path) -> None:
    own = run("/bin/cat", "/proc/self/status")
    assert filters(program) in own
    assert run(program, sys.executable, "-c", CLOSE_ALL) == "0\n"


def test_programs_and_their_children_get_enosys_on_a_kernel_with_the_fault(program: Path) -> None:
    faulty = (sys.executable, "-c", FAULTY)
    assert run(*faulty, sys.executable, "-c", CLOSE_ALL) == f"{errno.EINVAL}\n", "the kernel has the fault"
    assert run(*faulty, program, sys.executable, "-c", CLOSE_ALL) == f"{errno.ENOSYS}\n"
    in_child = f"import os, sys\nif not os.fork():\n    os.execv(sys.executable, ['python', '-c', {CLOSE_ALL!r}])\nos.wait()"
    assert run(*faulty, program, sys.executable, "-c", in_child) == f"{errno.ENOSYS}\n"


def test_filter_leaves_other_calls_alone(program: Path) -> None:
    assert run(sys.executable, "-c", FAULTY, program, "/bin/sh", "-c", "cat /dev/null | (cat; echo $((6 * 7)))") == "42\n"
