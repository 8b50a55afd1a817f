"""Removal of trees of any depth, and of nothing outside the tree."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandlot.guest.fs.remove import STEP_ENTRIES, remove_tree
from sandlot.guest.process.accounts import Account

ROOT = Account("root", 0, 0, "/root", [0])
DEPTH = 1500
"""Of folders whose names have 10 bytes: four times PATH_MAX, and more than the usual limit of descriptors."""


def deep(top: Path) -> None:
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("0123456789", dir_fd=fd)
        deeper = os.open("0123456789", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_tree_deeper_than_the_longest_path_is_removed(tmp_path: Path) -> None:
    deep(tmp_path / "top")
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert sum(remove_tree(str(tmp_path / "top"), ROOT)) == DEPTH + 2
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened


def test_wide_tree_is_removed_in_short_steps(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / "top" / f"folder {number}" / "inner").mkdir(parents=True)
        for file in range(150):
            (tmp_path / "top" / f"folder {number}" / f"file {file}").touch()
    steps = list(remove_tree(str(tmp_path / "top"), ROOT))
    assert sum(steps) == 1 + 7 * (2 + 150)
    assert max(steps) <= 2 * STEP_ENTRIES
    assert not (tmp_path / "top").exists()


def test_links_are_removed_and_their_targets_are_not(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    top = tmp_path / "top"
    top.mkdir()
    (top / "to a folder").symlink_to(kept)
    (top / "to itself").symlink_to("to itself")
    os.mkfifo(top / "fifo")
    assert sum(remove_tree(str(top), ROOT)) == 4
    assert (kept / "file").exists()


def test_folder_that_is_moved_meanwhile_stops_the_removal(tmp_path: Path) -> None:
    """The parent at the new place of the folder must not be touched."""
    (tmp_path / "top" / "one" / "two").mkdir(parents=True)
    for number in range(3 * STEP_ENTRIES):
        (tmp_path / "top" / "one" / "two" / f"{number}").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    removal = remove_tree(str(tmp_path / "top"), ROOT)
    next(removal)
    (tmp_path / "top" / "one" / "two").rename(tmp_path / "elsewhere" / "two")
    with pytest.raises(OSError, match="moved") as refused:
        list(removal)
    assert refused.value.errno == errno.EBUSY
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert (tmp_path / "top" / "one").exists()


def test_link_is_not_removed_as_a_tree(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"[Nn]ot a directory|symbolic"):
        list(remove_tree(str(tmp_path / "link"), ROOT))
