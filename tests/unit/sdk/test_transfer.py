"""Copying: what is planned from a folder here, and what a sandbox's names may do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.sdk.transfer import PartFile, UploadFile, child_of, plan_upload


def test_a_file_is_one_file(tmp_path: Path) -> None:
    source = tmp_path / "run.sh"
    source.write_text("x")
    source.chmod(0o755)
    assert plan_upload(source, "/workspace/go.sh").files == (UploadFile(source, "/workspace/go.sh", executable=True),)


def test_a_folder_is_planned_from_the_top_down_without_links_to_folders(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "deep").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "a").write_text("a")
    (tree / "sub" / "deep" / "b").write_text("b")
    (tree / "link-to-file").symlink_to("a")
    (tree / "link-to-folder").symlink_to("sub")
    (tree / "loop").symlink_to(".")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    plan = plan_upload(tree, "/g/")
    assert plan.folders == ("/g", "/g/empty", "/g/sub", "/g/sub/deep")
    assert [file.guest for file in plan.files] == ["/g/a", "/g/link-to-file", "/g/sub/deep/b"]


def test_a_link_to_the_folder_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("a")
    (tmp_path / "link").symlink_to("tree")
    assert [file.guest for file in plan_upload(tmp_path / "link", "/").files] == ["/a"]


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        plan_upload(tmp_path / "nothing", "/g")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="pipe"):
        plan_upload(tmp_path / "pipe", "/g")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"])
def test_a_name_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        child_of("/workspace", name)


@pytest.mark.parametrize("name", ["a", "...", ".hidden", "with space", "ü", "-rf", "a\\b", "C:"])
def test_every_other_name_is_a_name(name: str) -> None:
    assert child_of("/workspace/", name) == f"/workspace/{name}"
    assert child_of("/", name) == f"/{name}"


def test_a_path_has_an_end() -> None:
    with pytest.raises(InvalidRequestError, match="longer"):
        child_of("/x" * 2047, "y")


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    part = PartFile.create(target, True)
    part.write(b"con")
    assert not target.exists()
    part.write(b"tent")
    part.finish()
    part.discard()
    assert target.read_bytes() == b"content"
    assert os.access(target, os.X_OK)
    assert list(target.parent.iterdir()) == [target]


def test_a_file_that_is_given_up_leaves_nothing_and_the_old_one_stays(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    part = PartFile.create(target, False)
    part.write(b"new")
    part.discard()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_is_no_more_open_than_the_umask_has_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        part = PartFile.create(tmp_path / "file", False)
        part.finish()
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
