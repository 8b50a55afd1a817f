"""Copying into a sandbox: what is planned from a folder here, and what is sent of it."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, InvalidRequestError, NotFoundError
from sandlot.sdk.transfer.upload import TransferProgress, UploadPlan, UploadProgress, packed, plan_upload


def test_a_folder_is_planned_from_the_top_down_and_keeps_links_inside(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "deep").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "a").write_text("a")
    (tree / "sub" / "deep" / "b").write_text("b")
    (tree / "hard").hardlink_to(tree / "a")
    links = {
        "link-to-file": ("a", "a"),
        "link-to-folder": ("sub/", "sub"),
        "loop": (".", "."),
        "itself": ("itself", "itself"),
        "dangling": ("nowhere", "nowhere"),
        "absolute": (str(tree / "a"), "a"),
        "sub/up": ("../a", "../a"),
        "sub/absolute": (str(tree / "sub" / "deep"), "../sub/deep"),
        "sub/around": ("deep/../../a", "../a"),
        "through": ("link-to-folder/deep", "link-to-folder/deep"),
    }
    for name, (target, _) in links.items():
        (tree / name).symlink_to(target)
    plan = plan_upload(tree, "/g/")
    assert plan.directories == ("/g", "/g/empty", "/g/sub", "/g/sub/deep")
    assert [file.guest for file in plan.files] == ["/g/a", "/g/hard", "/g/sub/deep/b"]
    assert dict(plan.links) == {f"/g/{name}": copied for name, (_, copied) in links.items()}
    assert plan.skipped == ()


def test_what_leads_out_or_is_no_file_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tmp_path / "tree-outside").write_text("outside")
    for name, target in {
        "absolute": "/etc/passwd",
        "up": "../tree-outside",
        "chained": "sub/out",
        "sub/out": "../../tree-outside",
        "sub/parent": "../..",
        "dangling": "../nothing",
    }.items():
        (tree / name).symlink_to(target)
    (tree / "inside").symlink_to("sub")
    os.mkfifo(tree / "pipe")
    (tmp_path / "asked").symlink_to("tree")
    plan = plan_upload(tmp_path / "asked", "/g")
    assert plan.links == (("/g/inside", "sub"),)
    assert plan.files == ()
    names = [name for sentence in plan.skipped for name in [sentence.split("'")[1].removeprefix(f"{tree}/")]]
    assert names == ["absolute", "chained", "dangling", "pipe", "up", "sub/out", "sub/parent"]


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        plan_upload(tmp_path / "nothing", "/g")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="pipe"):
        plan_upload(tmp_path / "pipe", "/g")


def sent(plan: UploadPlan) -> list[dict[str, bytes | None]]:
    """What each part of a plan carries: names below the plan's root, and contents."""
    found = []
    for part in plan.parts():
        raw = b"".join(packed(part, plan.root, UploadProgress(plan)))
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            members = {member.name: archive.extractfile(member) for member in archive}
            found.append({name: None if content is None else content.read() for name, content in members.items()})
    return found


def test_a_tree_travels_in_parts_and_a_large_file_by_itself(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    sizes = {"a": 7, "b": 7, "c": 7, "sub/d": 9, "sub/e": 0}
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size << 20)
    plan = plan_upload(tmp_path, "/g")
    parts = list(plan.parts())
    assert [[file.guest for file in part.files] for part in parts] == [["/g/a", "/g/b"], ["/g/c", "/g/sub/e"], ["/g/sub/d"]]
    assert [part.directories for part in parts] == [("/g", "/g/sub"), (), ()]
    assert plan.size_bytes == 30 << 20


def test_what_is_packed_is_what_is_here(tmp_path: Path) -> None:
    (tmp_path / "sub" / "empty").mkdir(parents=True)
    (tmp_path / "sub" / "ünï").write_bytes(os.urandom(600_000))
    (tmp_path / "a").write_text("a")
    assert sent(plan_upload(tmp_path, "/g/h")) == [
        {"sub": None, "sub/empty": None, "a": b"a", "sub/ünï": (tmp_path / "sub/ünï").read_bytes()},
    ]
    assert sent(plan_upload(tmp_path / "sub/empty", "/")) == [{}]


def test_links_are_packed_once_and_files_in_place_travel_one_by_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a")
    plan = plan_upload(tmp_path, "/g")
    assert sent(plan) == [{"a": b"a", "b": b"b", "link": b"a"}]
    parts = list(plan.parts(alone_bytes=0))
    assert [(len(part.directories), [file.guest for file in part.files], len(part.links)) for part in parts] == [
        (1, [], 1),
        (0, ["/g/a"], 0),
        (0, ["/g/b"], 0),
    ]


def test_a_file_that_becomes_shorter_while_it_is_packed_is_no_whole_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(700_000))
    pieces = packed(UploadPlan(("/g",), plan_upload(tmp_path, "/g").files), "/g", UploadProgress(plan_upload(tmp_path, "/g")))
    next(pieces)
    os.truncate(tmp_path / "a", 0)
    with pytest.raises(ConflictError, match="shorter"):
        list(pieces)


def test_progress_counts_what_was_sent_and_forgets_what_is_sent_again(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(10))
    plan = plan_upload(tmp_path, "/g")
    tally = UploadProgress(plan)
    for part in plan.parts():
        list(packed(part, plan.root, tally.begin()))
    assert tally.progress == TransferProgress("/g/b", 20, 20, 2, 2)
    tally.again()
    assert tally.progress == TransferProgress("/g/b", 0, 20, 0, 2)
