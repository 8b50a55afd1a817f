"""The helper that watches a folder, run as a process of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.protocol import values
from tests.support.programs import begin, next_message, run

Happened = tuple[str, str, str | None]


class Watcher:
    """A watch of a folder with inotify or by scanning."""

    def __init__(self, folder: Path, *, recursive: bool, by: str, folders: int = 1000) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] = begin("watch")
        assert self.process.stdin is not None
        self.process.stdin.write(values.encode_message({"path": str(folder), "recursive": recursive, "folders": folders, "by": by}))
        self.process.stdin.flush()
        self.begun = self.next()

    def next(self) -> dict[str, Any]:
        assert self.process.stderr is not None
        return next_message(self.process.stderr)

    def sync(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(values.encode_message({"sync": True}))
        self.process.stdin.flush()

    def until(self, *wanted: Happened) -> list[Happened]:
        """Return the events until all expected ones have arrived."""
        found: list[Happened] = []
        while not set(wanted) <= set(found):
            message = self.next()
            if "events" not in message:
                raise AssertionError((message, found))
            found += [(event["kind"], self._short(event["path"]), self._short(event["from"])) for event in message["events"]]
        return found

    def _short(self, path: str | None) -> Any:  # noqa: ANN401 - as it comes
        return None if path is None else path.removeprefix(f"{self.folder}/")

    def end(self) -> int:
        self.process.communicate()  # closes its input
        return self.process.returncode


Begin = Callable[..., Watcher]


@pytest.fixture
def watch() -> Iterator[Begin]:
    begun: list[Watcher] = []

    def start(folder: Path, *, recursive: bool = True, by: str = "", folders: int = 1000) -> Watcher:
        begun.append(Watcher(folder, recursive=recursive, by=by, folders=folders))
        return begun[-1]

    yield start
    for watcher in begun:
        watcher.end()


@pytest.mark.parametrize("by", ["inotify", "scan"])
def test_changes_of_files_are_reported(tmp_path: Path, watch: Begin, by: str) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "sub").mkdir()
    watcher = watch(tmp_path, by=by)
    assert watcher.begun == {"watching": True, "by": by, "root": os.path.realpath(tmp_path)}
    (tmp_path / "new").write_text("new")
    assert watcher.until(("modified", "new", None))[0] == ("created", "new", None)
    (tmp_path / "empty").touch()
    (tmp_path / "old").write_text("newer")
    assert ("modified", "empty", None) not in watcher.until(("created", "empty", None), ("modified", "old", None))
    (tmp_path / "new").rename(tmp_path / "sub/moved")
    watcher.until(("moved", "sub/moved", "new"))
    (tmp_path / "sub/moved").unlink()
    watcher.until(("removed", "sub/moved", None))
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/file").write_text("x")
    found = watcher.until(
        ("created", "deep", None), ("created", "deep/er", None), ("created", "deep/er/file", None), ("modified", "deep/er/file", None)
    )
    assert len(found) == len(set(found)), "nothing twice"


@pytest.mark.parametrize("by", ["inotify", "scan"])
def test_watch_ends_when_the_folder_is_gone(tmp_path: Path, watch: Begin, by: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watcher = watch(folder, by=by)
    folder.rename(tmp_path / "elsewhere")
    message = watcher.next()
    while "result" not in message:
        message = watcher.next()
    assert message == {"result": {"gone": True}}


def test_subfolders_are_watched_only_on_request(tmp_path: Path, watch: Begin) -> None:
    (tmp_path / "sub").mkdir()
    watcher = watch(tmp_path, recursive=False)
    (tmp_path / "sub/unseen").write_text("x")
    (tmp_path / "seen").write_text("x")
    assert "sub/unseen" not in {path for _, path, _ in watcher.until(("created", "seen", None))}


def test_moved_subfolder_is_watched_until_it_leaves_the_folder(tmp_path: Path, watch: Begin) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "a/b").mkdir(parents=True)
    outside.mkdir()
    watcher = watch(inside)
    (inside / "a").rename(inside / "c")
    watcher.until(("moved", "c", "a"))
    (inside / "c/b/x").write_text("x")
    watcher.until(("created", "c/b/x", None))
    (inside / "c").rename(outside / "c")
    watcher.until(("removed", "c", None))
    (outside / "c/b/y").write_text("y")
    (inside / "z").write_text("z")
    assert not {path for _, path, _ in watcher.until(("created", "z", None))} & {"c/b/y", "c/b"}


def test_events_before_a_sync_are_reported_before_its_response(tmp_path: Path, watch: Begin) -> None:
    for by in ("", "scan"):
        watcher = watch(tmp_path, by=by)
        for number in range(3):
            (tmp_path / f"{by}-{number}").write_text("x")
            watcher.sync()
            created: list[str] = []
            while (message := watcher.next()) != {"synced": True}:
                created += [event["path"] for event in message["events"] if event["kind"] == "created"]
            assert created == [str(tmp_path / f"{by}-{number}")]
        assert watcher.end() == 0


def test_links_are_not_followed(tmp_path: Path, watch: Begin) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    watcher = watch(inside)
    (inside / "later").symlink_to(outside)
    (outside / "unseen").write_text("x")
    (inside / "seen").write_text("x")
    assert not [path for _, path, _ in watcher.until(("created", "seen", None)) if "unseen" in path]


def test_too_many_folders_are_refused_or_reported_as_overflow(tmp_path: Path, watch: Begin) -> None:
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    said = run("watch", {"path": str(tmp_path), "recursive": True, "folders": 4, "by": ""})
    assert said.error == "limit_exceeded"
    watcher = watch(tmp_path, folders=5)
    (tmp_path / "one more").mkdir()
    watcher.until(("overflow", "", None))


def test_overflowing_queue_reports_overflow_and_continues(tmp_path: Path, watch: Begin) -> None:
    """Creates as many unread events as the kernel keeps (/proc/sys/fs/inotify/max_queued_events)."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"this machine keeps {most} events")
    watcher = watch(tmp_path)
    watcher.process.send_signal(19)  # SIGSTOP
    names = [tmp_path / str(number) for number in range(2)]
    for number in range(most + 10):
        names[number % 2].touch()
    watcher.process.send_signal(18)  # SIGCONT
    watcher.until(("overflow", "", None))
    (tmp_path / "after").write_text("x")
    watcher.until(("created", "after", None))
