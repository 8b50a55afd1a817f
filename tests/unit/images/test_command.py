"""Commands of a build: their output is logged, and a failure is an error that names the log."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sandlot.host import locked_folder
from sandlot.host.free_space import FreeSpace
from sandlot.images import command
from sandlot.images.build_stop import BuildStop
from sandlot.images.command import CommandRunner
from sandlot.model.errors import ErrorCode, HostError, LimitError, UnavailableError

ENV = {"PATH": "/usr/bin:/bin"}


def test_output_goes_to_the_log_and_line_by_line_to_the_caller(tmp_path: Path) -> None:
    lines: list[str] = []
    runner = CommandRunner(tmp_path / "log", FreeSpace(tmp_path))
    runner.run("a", ("sh", "-c", "echo one; echo two >&2"), env=ENV, on_line=lines.append)
    runner.run("b", ("sh", "-c", "printf '\\377'"), env=ENV)
    assert lines == ["one", "two"]
    assert (tmp_path / "log").read_bytes() == b"+ sh -c echo one; echo two >&2\none\ntwo\n+ sh -c printf '\\377'\n\xff"


def test_command_gets_only_the_given_environment_and_no_input(tmp_path: Path) -> None:
    lines: list[str] = []
    CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("a", ("/usr/bin/env",), env={"ONLY": "this"}, on_line=lines.append)
    assert lines == ["ONLY=this"]
    CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("a", ("cat",), env=ENV)


def test_failure_shows_the_end_of_the_output_and_the_path_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"making it failed with status 3") as caught:
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("making it", ("sh", "-c", "seq 1 100; exit 3"), env=ENV)
    assert "\n    100\n" in str(caught.value)
    assert "\n    50\n" not in str(caught.value)
    assert str(tmp_path / "log") in caught.value.hint
    assert caught.value.code is ErrorCode.HOST_NOT_READY


def test_full_disk_is_reported_although_more_output_follows(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="SANDLOT_CACHE_DIR") as caught:
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run(
            "it", ("sh", "-c", "echo 'dpkg: error: No space left on device'; seq 1 100; exit 1"), env=ENV
        )
    assert caught.value.code is ErrorCode.NODE_DISK_FULL


def test_missing_program_is_reported_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="apt-get install no-such-program"):
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("it", ("no-such-program",), env=ENV)
    with pytest.raises(HostError, match="apt-get install no-such-program"):
        command.require_programs("sh", "no-such-program")
    assert command.output_of(("no-such-program",)) == ""
    assert command.output_of(("false",)) == ""


def test_signal_just_after_the_start_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: int) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(command, "leave_service_cgroup", end)
    with pytest.raises(SystemExit):
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("it", ("sleep", "1000"), env=ENV)


def test_error_of_the_caller_ends_the_command_and_its_children(tmp_path: Path) -> None:
    seen: list[str] = []

    def refuse(line: str) -> None:
        seen.append(line)
        raise KeyboardInterrupt

    # The grandchild is in the namespace that unshare kills.
    argv = ("unshare", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", "sleep 4711 & echo started; exec sleep 4711")
    with pytest.raises(KeyboardInterrupt):
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path)).run("it", argv, env=ENV, on_line=refuse)
    assert seen == ["started"]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert b"sleep\x004711\0" not in commands


def test_command_is_killed_when_no_more_than_the_reserve_is_free(small_disk: Path, tmp_path: Path) -> None:
    """``small_disk`` has 2 MiB; the command would otherwise succeed after 30 s."""
    write = f"head -c 1500000 /dev/zero > {small_disk}/half; echo written; exec sleep 30"
    lines: list[str] = []
    with pytest.raises(LimitError) as caught:
        CommandRunner(tmp_path / "log", FreeSpace(small_disk, 1 << 20)).run("it", ("sh", "-c", write), env=ENV, on_line=lines.append)
    assert (caught.value.code, caught.value.fields["reserve"]) == (ErrorCode.NODE_DISK_FULL, 1 << 20)
    assert lines == ["written"]
    assert (small_disk / "half").stat().st_size == 1_500_000, "the disk itself is not full"


def test_stop_kills_a_command_that_prints_nothing(tmp_path: Path) -> None:
    """The command, like mkfs.erofs, inherits the lock of its folder, which is free again."""
    stop, lock = BuildStop(), locked_folder.try_lock_file(tmp_path / "lock")
    assert lock is not None
    runner, raised = CommandRunner(tmp_path / "log", FreeSpace(tmp_path), inherit=(lock,), stop=stop), list[UnavailableError]()

    def run() -> None:
        with pytest.raises(UnavailableError) as caught:
            runner.run("it", ("sh", "-c", f"touch {tmp_path}/started; exec sleep 4712"), env=ENV)
        raised.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    stop.set()
    thread.join()
    assert (raised[0].code, raised[0].fields) == (ErrorCode.SERVICE_UNAVAILABLE, {"retry_after_s": 1})
    os.close(lock)
    again = locked_folder.try_lock_file(tmp_path / "lock")
    assert again is not None
    os.close(again)
    with pytest.raises(UnavailableError):
        runner.run("it", ("touch", str(tmp_path / "late")), env=ENV)
    assert not (tmp_path / "late").exists()


def test_command_that_begins_during_a_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, popen = BuildStop(), subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - those of Popen
        stop.set()
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(UnavailableError):
        CommandRunner(tmp_path / "log", FreeSpace(tmp_path), stop=stop).run("it", ("sleep", "4713"), env=ENV)
