"""The build cache: no incomplete build is visible, no key is built twice, and dead builders leave nothing."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host import locked_folder
from sandlot.host.free_space import FreeSpace
from sandlot.images.artifact_cache import ArtifactCache
from sandlot.images.build_stop import BuildStop
from sandlot.images.command import CommandRunner
from sandlot.model.errors import ErrorCode, HostError, LimitError, UnavailableError
from tests.support.killed import is_killed_at

KEY = "a" * 64
OTHER = "b" * 64


def fill(text: str = "done") -> Callable[[Path, int], None]:
    def build(folder: Path, _lock: int) -> None:
        (folder / "file").write_text(text, encoding="utf-8")

    return build


def never(_folder: Path, _lock: int) -> None:
    pytest.fail("built again")


def nobody() -> None:
    pytest.fail("waited for nobody")


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "tmp").iterdir())


def test_result_is_built_once_and_found_afterwards(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", "things", FreeSpace(tmp_path / "cache"))
    assert cache.find(KEY) is None
    assert cache.keys() == []
    folder = cache.ensure(KEY, fill(), nobody)
    assert (folder / "file").read_text(encoding="utf-8") == "done"
    assert cache.ensure(KEY, never, nobody) == folder
    assert cache.find(KEY) == folder
    assert cache.keys() == [KEY]
    assert left_in(tmp_path / "cache") == []


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))

    def fail(folder: Path, _lock: int) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.ensure(KEY, fail, nobody)
    assert cache.find(KEY) is None
    assert left_in(tmp_path) == []
    assert cache.ensure(KEY, fill(), nobody).is_dir()


def test_rebuilt_result_replaces_the_old_one_once_it_is_complete(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))
    folder = cache.ensure(KEY, fill("old"), nobody)

    def fail(_folder: Path, _lock: int) -> None:
        assert (folder / "file").read_text(encoding="utf-8") == "old"
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.rebuild(KEY, fail, nobody)
    assert (folder / "file").read_text(encoding="utf-8") == "old"
    assert cache.rebuild(KEY, fill("new"), nobody) == folder
    assert (folder / "file").read_text(encoding="utf-8") == "new"
    assert cache.rebuild(OTHER, fill(), nobody).is_dir()
    assert left_in(tmp_path) == []


def test_second_builder_builds_if_the_first_failed(tmp_path: Path) -> None:
    building, waiting = threading.Event(), threading.Event()
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))

    def failing(_folder: Path, _lock: int) -> None:
        building.set()
        assert waiting.wait(30)
        raise RuntimeError

    def attempt() -> None:
        with pytest.raises(RuntimeError):
            cache.ensure(KEY, failing, nobody)

    first = threading.Thread(target=attempt)
    first.start()
    assert building.wait(30)
    assert (cache.ensure(KEY, fill("second"), waiting.set) / "file").read_text(encoding="utf-8") == "second"
    first.join()


def test_stop_ends_the_wait_for_another_builder(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    lock = locked_folder.try_lock_file(tmp_path / "locks" / f"things-{KEY}")
    assert lock is not None
    stop = BuildStop()
    with pytest.raises(UnavailableError):
        ArtifactCache(tmp_path, "things", FreeSpace(tmp_path), stop).ensure(KEY, never, stop.set)
    os.close(lock)


def test_builders_of_different_keys_do_not_wait(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))

    def build(folder: Path, lock: int) -> None:
        cache.ensure(OTHER, fill(), nobody)
        fill()(folder, lock)

    cache.ensure(KEY, build, nobody)
    assert cache.keys() == [KEY, OTHER]


def test_build_is_protected_by_the_lock_whose_descriptor_it_gets(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))

    def build(folder: Path, lock: int) -> None:
        assert os.path.samestat(os.fstat(lock), folder.parent.stat())
        assert cache.sweep() == 0

    cache.ensure(KEY, build, nobody)


def test_next_builder_sweeps_what_a_dead_one_left(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))
    (tmp_path / "tmp/things-dead").mkdir(parents=True)
    cache.ensure(KEY, fill(), nobody)
    assert left_in(tmp_path) == []


def test_removed_folder_is_built_again(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))
    cache.ensure(KEY, fill(), nobody)
    assert cache.remove(KEY)
    assert not cache.remove(KEY)
    assert left_in(tmp_path) == []
    assert (cache.ensure(KEY, fill("new"), nobody) / "file").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize(
    "number, kind, code",
    [
        (errno.ENOSPC, LimitError, ErrorCode.NODE_DISK_FULL),
        (errno.EDQUOT, LimitError, ErrorCode.NODE_DISK_FULL),
        (errno.EROFS, HostError, ErrorCode.HOST_NOT_READY),
    ],
)
def test_error_of_the_system_is_reported_with_a_hint(tmp_path: Path, number: int, kind: type[Exception], code: ErrorCode) -> None:
    def build(_folder: Path, _lock: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(kind, match="SANDLOT_CACHE_DIR") as caught:
        ArtifactCache(tmp_path, "things", FreeSpace(tmp_path)).ensure(KEY, build, nobody)
    assert getattr(caught.value, "code", None) is code
    assert left_in(tmp_path) == []


def test_no_build_begins_while_no_more_than_the_reserve_is_free(small_disk: Path) -> None:
    cache = ArtifactCache(small_disk, "things", FreeSpace(small_disk, 3 << 20))
    with pytest.raises(LimitError) as caught:
        cache.ensure(KEY, never, nobody)
    assert caught.value.code is ErrorCode.NODE_DISK_FULL
    assert list((small_disk / "things").iterdir()) == []
    assert ArtifactCache(small_disk, "things", FreeSpace(small_disk, 1 << 20)).ensure(KEY, fill(), nobody).is_dir()


def test_build_during_which_the_disk_fills_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    space = FreeSpace(small_disk, 1 << 20)

    def build(folder: Path, lock: int) -> None:
        write = f"head -c 1500000 /dev/zero > {folder}/half; exec sleep 30"
        CommandRunner(tmp_path / "log", space, inherit=(lock,)).run("it", ("sh", "-c", write), env={"PATH": "/usr/bin:/bin"})

    cache = ArtifactCache(small_disk, "things", space)
    with pytest.raises(LimitError) as caught:
        cache.ensure(KEY, build, nobody)
    assert caught.value.code is ErrorCode.NODE_DISK_FULL
    assert left_in(small_disk) == []
    assert cache.find(KEY) is None
    space.check()


def test_process_that_is_killed_while_it_rebuilds_leaves_one_of_both_results(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, "things", FreeSpace(tmp_path))
    folder = cache.ensure(KEY, fill("old"), nobody)
    for step in itertools.count(1):
        is_killed = is_killed_at(step, tmp_path, lambda: cache.rebuild(KEY, fill("new"), nobody))
        assert (folder / "file").read_text(encoding="utf-8") in {"old", "new"}, step
        assert cache.keys() == [KEY]
        if not is_killed:
            break
    assert step > 10  # steps before and after the new result is complete
    assert cache.rebuild(KEY, fill("last"), nobody) == folder
    assert left_in(tmp_path) == []
