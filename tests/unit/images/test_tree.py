"""Trees: their digest, their copies by hard link, and shared files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.images import tree


def make(root: Path) -> Path:
    (root / "a/b").mkdir(parents=True)
    (root / "a/file").write_text("text", encoding="utf-8")
    (root / "a/b/empty").touch()
    (root / "link").symlink_to("/nowhere")
    (root / "a-z").write_text("between a and a/b", encoding="utf-8")
    (root / "a/file").chmod(0o640)
    (root / "a/b").chmod(0o1777)
    for path in [root, *root.rglob("*")]:
        os.utime(path, (1_000_000, 1_000_000), follow_symlinks=False)
    return root


def rewrite(root: Path) -> None:
    (root / "a/file").write_text("tex!", encoding="utf-8")
    os.utime(root / "a/file", (1_000_000, 1_000_000))


def point_elsewhere(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("/elsewhere")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": rewrite,
    "time": lambda root: os.utime(root / "a/file", (1_000_001, 1_000_001)),
    "mode": lambda root: (root / "a/file").chmod(0o600),
    "mode of a folder": lambda root: (root / "a/b").chmod(0o777),
    "owner": lambda root: os.chown(root / "a/file", 1000, 1000),
    "owner of a link": lambda root: os.chown(root / "link", 1000, 1000, follow_symlinks=False),
    "name": lambda root: (root / "a/b/empty").rename(root / "a/b/empti"),
    "less": lambda root: (root / "a/b/empty").unlink(),
    "more": lambda root: (root / "new").mkdir(),
    "target of a link": point_elsewhere,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_changes_the_digest(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = make(tmp_path)
    before = tree.summarize(root)
    change(root)
    assert tree.summarize(root).digest != before.digest


def test_summary_counts_a_file_with_two_names_once(tmp_path: Path) -> None:
    root = make(tmp_path)
    os.link(root / "a/file", root / "again")
    summary = tree.summarize(root)
    assert summary.files == 7
    assert summary.size_bytes == 4 + len("between a and a/b")


def test_linked_copy_is_equal_and_shares_the_files(tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    assert tree.link_tree(source, tmp_path / "copy") == 6
    assert tree.summarize(tmp_path / "copy") == tree.summarize(source)
    for path, status in tree.walk(source):
        copied = (tmp_path / "copy" / path).lstat()
        assert (copied.st_ino == status.st_ino) == (not (source / path).is_dir() or (source / path).is_symlink())
        assert copied.st_mtime_ns == status.st_mtime_ns


def test_unchanged_files_of_a_copy_are_shared_again(tmp_path: Path) -> None:
    original = make(tmp_path / "original")
    copied = tmp_path / "copy"
    shutil.copytree(original, copied, symlinks=True)
    for path in ("a/file", "a-z", "a/b/empty"):
        shutil.copystat(original / path, copied / path)
    (copied / "a-z").write_text("between a and a/c", encoding="utf-8")
    shutil.copystat(original / "a-z", copied / "a-z")
    before = tree.summarize(copied).digest
    assert tree.share_unchanged(original, copied) == 4
    assert tree.summarize(copied).digest == before
    assert (copied / "a/file").samefile(original / "a/file")
    assert not (copied / "a-z").samefile(original / "a-z")
