"""The helper that removes what a case of a program has left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandlot.guest.helpers import cleanup as module
from sandlot.guest.helpers.cleanup import clean_up
from sandlot.protocol import values
from sandlot.protocol.helpers import MAX_MESSAGE_BYTES


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = tmp_path / "work", tmp_path / "temporary"
    for folder in made:
        folder.mkdir()
    monkeypatch.setattr(module, "FOLDERS", (*map(str, made), "/nonexistent"))
    monkeypatch.setattr(module, "live_processes", list)
    monkeypatch.setattr(module, "_is_in_sandbox", lambda: True)
    return made


def test_first_request_reports_files_and_removes_nothing(folders: tuple[Path, Path]) -> None:
    program, other = folders[0] / "main.py", folders[1] / "other"
    program.touch()
    other.mkdir()
    assert clean_up({"keep": None}) == {"pids": [], "files": [str(program), str(other)]}
    assert program.exists()


def test_list_of_files_fits_into_a_message_or_is_left_out(folders: tuple[Path, Path]) -> None:
    size_bytes, number = 0, 0
    while True:
        path = folders[0] / f"{number:05}{'é' * 120}"
        size_bytes += len(values.encode(str(path)))
        if size_bytes > module.MAX_LIST_BYTES:
            break
        path.touch()
        number += 1
    listed = clean_up({"keep": None})
    assert len(listed["files"]) == number > 1000
    assert len(values.encode_message({"keep": listed})) < MAX_MESSAGE_BYTES
    path.touch()
    assert clean_up({"keep": None}) == {"pids": [], "files": None}


def test_new_files_folders_and_links_are_removed(folders: tuple[Path, Path]) -> None:
    work, temporary = folders
    program, target = work / "main.py", work.parent / "target"
    program.touch()
    target.mkdir()
    (target / "kept").touch()
    known = clean_up({"keep": None})
    (work / ".case-1" / "deep").mkdir(parents=True)
    (work / ".case-1" / "deep" / "file").touch()
    (temporary / "lock").touch()
    (temporary / "link").symlink_to(target)
    assert clean_up({"keep": known}) == {"pids": [], "files": []}
    assert [*work.iterdir(), *temporary.iterdir()] == [program]
    assert (target / "kept").exists()


def test_files_that_cannot_be_removed_are_reported(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "unlink", refuse)
    names = [folders[1] / f"file-{number}" for number in range(module.MAX_LEFT + 5)]
    for name in names:
        name.touch()
    left = clean_up({"keep": {"pids": [], "files": []}})["files"]
    assert len(left) == module.MAX_LEFT
    assert set(left) < set(map(str, names))


def test_removal_ends_after_a_time_and_reports_a_file(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVE_S", -1.0)
    (folders[0] / "tree" / "inner").mkdir(parents=True)
    assert clean_up({"keep": {"pids": [], "files": []}})["files"] == [str(folders[0] / "tree")]


def test_nothing_is_killed_or_removed_outside_of_a_sandbox(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # PID 1 is not a guest
    monkeypatch.setattr(module, "FOLDERS", tuple(map(str, folders)))
    (folders[0] / "file").touch()
    with subprocess.Popen(["sleep", "60"]) as process:
        left: dict[str, Any] = clean_up({"keep": {"pids": [], "files": []}})
        assert process.pid in left["pids"]
        assert left["files"] == []
        assert process.poll() is None
        process.kill()
    assert (folders[0] / "file").exists()
