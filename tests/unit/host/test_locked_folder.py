"""Locked folders: complete under their final name, safe while their maker lives, and swept after its death."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host import durable, locked_folder
from sandlot.host.locked_folder import LockedFolder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "tmp"  # created when it is needed


def start_process(work: Callable[[], object]) -> int:
    """Fork a process, wait until it has done some work, and return its pid. The process then sleeps until it is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kept_alive = work()
        os.write(writer, b"x")
        time.sleep(600)
        os._exit(kept_alive is None)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_published_content_is_complete_and_nothing_else_is_left(scratch: Path, tmp_path: Path) -> None:
    with LockedFolder(scratch, prefix="image-") as folder:
        assert folder.path.name.startswith("image-")
        assert folder.path.stat().st_mode & 0o077 == 0
        (folder.path / "log").touch()
        (folder.content / "file").write_text("text", encoding="utf-8")
        folder.publish(tmp_path / "final")
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["file"]
    assert list(scratch.iterdir()) == []


def test_publish_is_one_rename_of_a_synced_folder(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    rename = Path.rename

    def recorded_rename(self: Path, target: Path) -> Path:
        steps.append(f"rename {self.name} {target.name}")
        return rename(self, target)

    monkeypatch.setattr(durable, "fsync_folder", lambda path: steps.append(f"sync {path.name}"))
    monkeypatch.setattr(Path, "rename", recorded_rename)
    with LockedFolder(scratch) as folder:
        folder.publish(tmp_path / "final")
    assert steps == ["sync content", "rename content final", f"sync {tmp_path.name}"]


def test_folder_of_a_failed_maker_is_removed(scratch: Path) -> None:
    def fail() -> None:
        with LockedFolder(scratch) as folder:
            (folder.content / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(scratch.iterdir()) == []


def test_close_waits_for_a_publish_in_another_thread(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    publish = durable.publish_folder

    def slow_publish(draft: Path, path: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        publish(draft, path)

    monkeypatch.setattr(durable, "publish_folder", slow_publish)
    folder = LockedFolder(scratch)
    (folder.content / "file").touch()
    threads = [threading.Thread(target=folder.publish, args=(tmp_path / "final",)), threading.Thread(target=folder.close)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    threads[1].join(0.1)
    assert (folder.content / "file").exists()
    go_on.set()
    for thread in threads:
        thread.join()
    assert (tmp_path / "final/file").exists()


def test_closed_folder_is_not_published(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_folder, "remove_tree", lambda _path: None)  # the worst case: removal left everything
    folder = LockedFolder(scratch)
    folder.close()
    folder.close()  # can be repeated
    with pytest.raises(OSError, match="Bad file descriptor"):
        folder.publish(tmp_path / "final")
    assert not (tmp_path / "final").exists()


def test_sweep_keeps_the_folder_of_a_live_maker_and_removes_that_of_a_killed_one(scratch: Path) -> None:
    child = start_process(lambda: LockedFolder(scratch, prefix="child-"))
    with LockedFolder(scratch, prefix="own-"):
        assert locked_folder.sweep(scratch) == 0
        assert sorted(path.name.partition("-")[0] for path in scratch.iterdir()) == ["child", "own"]
        kill(child)
        assert locked_folder.sweep(scratch) == 1
        assert [path.name.partition("-")[0] for path in scratch.iterdir()] == ["own"]


def test_sweep_keeps_the_folder_of_a_killed_maker_while_its_command_runs(scratch: Path) -> None:
    def run_command() -> object:
        folder = LockedFolder(scratch)
        command = subprocess.Popen(["sleep", "600"], pass_fds=[folder.descriptor])
        (folder.path / "pid").write_text(str(command.pid), encoding="ascii")
        return folder, command

    kill(start_process(run_command))
    assert locked_folder.sweep(scratch) == 0
    command = int(next(scratch.glob("*/pid")).read_text(encoding="ascii"))
    os.kill(command, signal.SIGKILL)
    while locked_folder.sweep(scratch) == 0:
        time.sleep(0.01)
    assert list(scratch.iterdir()) == []


def test_sweep_during_creation_removes_nothing(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []
    sweeper = threading.Thread(target=lambda: swept.append(locked_folder.sweep(scratch)))
    make = tempfile.mkdtemp

    def slow_mkdtemp(prefix: str, dir: Path) -> str:  # noqa: A002 - the name that mkdtemp gives its parameter
        made = make(prefix=prefix, dir=dir)
        sweeper.start()
        sweeper.join(0.1)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", slow_mkdtemp)
    with LockedFolder(scratch) as folder:
        sweeper.join()
        assert folder.content.is_dir()
    assert swept == [0]


def test_sweep_passes_over_a_folder_that_cannot_be_removed(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (scratch / name).mkdir(parents=True)
    remove_tree = locked_folder.remove_tree

    def fail_once(path: Path) -> None:
        if path.name == "a":
            raise OSError(5, "Input/output error")
        remove_tree(path)

    monkeypatch.setattr(locked_folder, "remove_tree", fail_once)
    assert locked_folder.sweep(scratch) == 1
    assert [path.name for path in scratch.iterdir()] == ["a"]


def test_sweep_of_a_missing_scratch_folder_does_nothing(tmp_path: Path) -> None:
    assert locked_folder.sweep(tmp_path / "missing") == 0


def test_interrupted_discard_is_finished_by_the_next_sweep(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = tmp_path / "final"
    (final / "a/b").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(locked_folder, "remove_tree", lambda _path: None)
        locked_folder.discard(final, scratch)
    assert not final.exists()
    assert locked_folder.sweep(scratch) == 1
    assert list(scratch.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        locked_folder.discard(final, scratch)


def test_file_lock_excludes_others_until_its_holder_dies(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    child = start_process(lambda: locked_folder.try_lock_file(file))
    assert locked_folder.try_lock_file(file) is None
    kill(child)
    descriptor = locked_folder.try_lock_file(file)
    assert descriptor is not None
    assert locked_folder.try_lock_file(file) is None
    os.close(descriptor)
    again = locked_folder.try_lock_file(file)
    assert again is not None
    os.close(again)


def test_removed_tree_leaves_targets_of_its_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a/b").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").touch()
    (root / "out").symlink_to(outside)
    locked_folder.remove_tree(root)
    assert not root.exists()
    locked_folder.remove_tree(root)  # can be repeated
    assert (outside / "kept").exists()


def test_removal_is_retried_while_files_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_folder, "_REMOVE_PAUSE_S", 0.001)
    remove, folder, failures = shutil.rmtree, tmp_path / "folder", [OSError(errno.EBUSY, "in use")] * 3

    def fail_first(path: Path) -> None:
        if failures:
            raise failures.pop()
        remove(path)

    folder.mkdir()
    monkeypatch.setattr("sandlot.host.locked_folder.shutil.rmtree", fail_first)
    locked_folder.remove_tree(folder)
    assert not folder.exists()

    folder.mkdir()
    failures[:] = [OSError(errno.EBUSY, "in use")] * 1000
    with pytest.raises(OSError, match="in use"):
        locked_folder.remove_tree(folder)
