"""Checks in child processes: their answers, their errors, and their deadlines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandlot.host.checks.runner import Task, run, run_forked

MODULE = """
import os, subprocess, sys, time

def add(a, b):
    print("noise")
    return {"sum": a + b}

def fail():
    open("/no/such/file")

def vanish():
    os._exit(3)

def hang(note):
    child = subprocess.Popen(["sleep", "1000"])
    open(note, "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(1000)

def leave(note):
    child = subprocess.Popen(["sleep", "1000"])
    open(note, "w").write(f"{child.pid}")
    return True
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_checks.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "their_checks"


def gone(pid: int) -> bool:
    for _ in range(500):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":  # its parent is gone as well; init takes it when it pleases
            return True
        time.sleep(0.01)
    return False


def test_result_error_and_missing_result_are_distinguished(module: str) -> None:
    answers = run(
        [Task("sum", f"{module}:add", {"a": 1, "b": 2}), Task("error", f"{module}:fail"), Task("gone", f"{module}:vanish"), Task("none", "no:no")]
    )
    assert answers["sum"].value == {"sum": 3}
    assert answers["error"].error == "No such file or directory: /no/such/file"
    assert answers["gone"].error == "the process ended without a result"
    assert "no" in answers["none"].error
    assert not any(answer.late for answer in answers.values())
    assert run([]) == {}


def test_hanging_check_is_killed_with_its_children_and_delays_no_other(module: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    answers = run([Task("late", f"{module}:hang", {"note": str(note)}, deadline_s=2.0), Task("sum", f"{module}:add", {"a": 1, "b": 2})])
    assert answers["late"].late
    assert "within 2 s" in answers["late"].error
    assert answers["sum"].value == {"sum": 3}
    assert all(gone(int(pid)) for pid in note.read_text().split())


def test_process_left_by_a_check_is_killed_without_waiting(module: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert run([Task("left", f"{module}:leave", {"note": str(note)}, deadline_s=60.0)])["left"].value is True
    assert gone(int(note.read_text()))


def test_a_check_dies_with_its_parent(module: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    program = f"from sandlot.host.checks.runner import Task, run; run([Task('x', '{module}:hang', {{'note': {str(note)!r}}}, deadline_s=1000.0)])"
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        while not (note.exists() and len(note.read_text().split()) == 2):
            assert parent.poll() is None
            time.sleep(0.01)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    check, started = (int(pid) for pid in note.read_text().split())
    assert gone(check)
    os.kill(started, signal.SIGKILL)  # an ordinary process is not bound to it; a check's own are


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_function_reports_why_it_failed() -> None:
    def refuse() -> None:
        raise PermissionError(1, "no", "/there")

    assert run_forked(lambda: None, 10.0) == ""
    assert run_forked(refuse, 10.0) == "no: /there"
    assert run_forked(lambda: os._exit(7), 10.0) == "the process ended without a result"
    assert "within" in run_forked(lambda: time.sleep(100), 0.1)
