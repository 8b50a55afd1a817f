"""The helper that finds created and changed files, run as a process of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandlot.guest.helpers import changes
from sandlot.protocol import values
from tests.support.programs import begin, decoded, next_message


@contextmanager
def between(*folders: Path) -> Iterator[dict[str, Any]]:
    """Run the helper around the body. Afterwards, the yielded object has ``files`` (path -> True if created) and ``more``."""
    found: dict[str, Any] = {}
    with begin("changes") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(values.encode_message({"folders": [str(folder) for folder in folders]}))
        process.stdin.flush()
        assert next_message(process.stderr) == {"marked": True}
        yield found
        _, raw = process.communicate(values.encode_message({}))
    *told, last = decoded(raw)
    found["files"] = {os.path.relpath(file["path"], folders[0]): file["created"] for message in told for file in message["files"]}
    found.update(last["result"])


def test_created_and_changed_files_are_reported(tmp_path: Path) -> None:
    for name in ("same", "content", "length", "rights", "replaced", "renamed", "removed", "read"):
        (tmp_path / name).write_text("old")
    (tmp_path / "sub").mkdir()
    with between(tmp_path) as found:
        (tmp_path / "read").read_text()
        times = (tmp_path / "content").stat()
        (tmp_path / "content").write_text("new")
        os.utime(tmp_path / "content", ns=(times.st_atime_ns, times.st_mtime_ns))
        (tmp_path / "length").write_text("longer")
        (tmp_path / "rights").chmod(0o600)
        (tmp_path / "beside").write_text("old")
        (tmp_path / "beside").rename(tmp_path / "replaced")
        (tmp_path / "renamed").rename(tmp_path / "sub/renamed")
        (tmp_path / "removed").unlink()
        (tmp_path / ".hidden").write_text("x")
        (tmp_path / "new/deep").mkdir(parents=True)
        (tmp_path / "new/deep/file").write_text("x")
        (tmp_path / "link").symlink_to("same")
        os.mkfifo(tmp_path / "pipe")
    assert not found["more"]
    changed, created = ("content", "length", "rights", "replaced"), ("sub/renamed", ".hidden", "new/deep/file")
    assert found["files"] == {**dict.fromkeys(changed, False), **dict.fromkeys(created, True)}


def test_second_write_within_one_clock_tick_is_reported(tmp_path: Path) -> None:
    """The kernel's clock for file times advances every few milliseconds. Two writes of the same length in one tick have the same times."""
    for _ in range(5):
        (tmp_path / "file").write_text("a")
        with between(tmp_path) as found:
            (tmp_path / "file").write_text("b")
        assert found["files"] == {"file": False}


def test_links_are_not_followed_and_later_folders_are_new(tmp_path: Path) -> None:
    inside, outside, later = tmp_path / "in", tmp_path / "out", tmp_path / "later"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    with between(inside, later) as found:
        (outside / "file").write_text("x")
        (inside / "linked").symlink_to(outside)
        later.mkdir()
        (later / "file").write_text("x")
    assert found == {"files": {"../later/file": True}, "more": False}


def test_unexamined_files_are_not_reported_as_new(tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        (folder / "file").write_text("x")
    before = changes.FolderScan(str(tmp_path), max_entries=40)
    for number in range(5):
        (tmp_path / f"{number:02}" / "file").unlink()
        (tmp_path / f"{number:02}").rmdir()
    (tmp_path / "05/new").write_text("x")
    (tmp_path / "06/file").write_text("changed")
    after = changes.FolderScan(str(tmp_path), max_entries=40)
    assert not before.complete
    found = {file["path"].removeprefix(f"{tmp_path}/"): file["created"] for file in changes.difference(before, after)}
    assert found == {"05/new": True, "06/file": False}


def test_report_is_limited_to_a_thousand_files(tmp_path: Path) -> None:
    with between(tmp_path) as found:
        for number in range(1005):
            (tmp_path / str(number)).touch()
    assert len(found["files"]) == 1000
    assert found["more"]
