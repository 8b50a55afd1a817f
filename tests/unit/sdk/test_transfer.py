"""Copying: what is planned from a folder here, and what a sandbox's names may do."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, ForbiddenError, InternalError, InvalidRequestError, NotFoundError
from sandlot.protocol import tar
from sandlot.sdk.transfer import PartFile, Progress, Receiver, Tally, UploadFile, UploadPlan, packed, plan_upload
from tests.support.archives import archive, entry


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


def sent(plan: UploadPlan) -> list[dict[str, bytes | None]]:
    """What each part of a plan carries: names below the plan's root, and contents."""
    found = []
    for part in plan.parts():
        raw = b"".join(packed(part, plan.root, Tally(plan)))
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
    assert [part.folders for part in parts] == [("/g", "/g/sub"), (), ()]
    assert plan.size_bytes == 30 << 20


def test_what_is_packed_is_what_is_here(tmp_path: Path) -> None:
    (tmp_path / "sub" / "empty").mkdir(parents=True)
    (tmp_path / "sub" / "ünï").write_bytes(os.urandom(600_000))
    (tmp_path / "a").write_text("a")
    assert sent(plan_upload(tmp_path, "/g/h")) == [
        {"sub": None, "sub/empty": None, "a": b"a", "sub/ünï": (tmp_path / "sub/ünï").read_bytes()},
    ]
    assert sent(plan_upload(tmp_path / "sub/empty", "/")) == [{}]


def test_a_file_that_becomes_shorter_while_it_is_packed_is_no_whole_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(700_000))
    pieces = packed(UploadPlan(("/g",), plan_upload(tmp_path, "/g").files), "/g", Tally(plan_upload(tmp_path, "/g")))
    next(pieces)
    os.truncate(tmp_path / "a", 0)
    with pytest.raises(ConflictError, match="shorter"):
        list(pieces)


def test_progress_counts_what_was_sent_and_forgets_what_is_sent_again(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(10))
    plan = plan_upload(tmp_path, "/g")
    tally = Tally(plan)
    for part in plan.parts():
        list(packed(part, plan.root, tally.begin()))
    assert tally.progress == Progress("/g/b", 20, 20, 2, 2)
    tally.again()
    assert tally.progress == Progress("/g/b", 0, 20, 0, 2)


def receive(raw: bytes, target: Path) -> Receiver:
    receiver = Receiver(target)
    try:
        for at in range(0, len(raw), 777):
            receiver.feed(raw[at : at + 777])
        receiver.finish()
    finally:
        receiver.discard()
    return receiver


def test_what_comes_is_made_here_without_links(tmp_path: Path) -> None:
    raw = archive(
        entry("d/", tarfile.DIRTYPE, mode=0o755),
        entry("d/a", content=b"a" * 2000),
        entry("run", content=b"", mode=0o755),
        entry("link", tarfile.SYMTYPE, target="/etc"),
        entry("hard", tarfile.LNKTYPE, target="d/a"),
        entry("deep/er/b", content=b"b"),
    )
    got = receive(raw, tmp_path / "here")
    assert (got.files, got.size_bytes) == (3, 2001)
    names = sorted(str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*"))
    assert names == ["d", "d/a", "deep", "deep/er", "deep/er/b", "run"]
    assert os.access(tmp_path / "here/run", os.X_OK)
    assert not os.access(tmp_path / "here/d/a", os.X_OK)


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/etc/passwd", "x" * 256, "/".join(["d"] * 201)])
def test_what_would_lie_outside_or_too_deep_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"outside|deeper"):
        receive(archive(entry("first", content=b"x"), entry(name, content=b"x")), tmp_path / "here")
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "first"]


def test_what_breaks_off_leaves_no_half_file_and_says_why_where_it_was_told(tmp_path: Path) -> None:
    raw = archive(entry("a", content=b"a"), entry("b", content=b"b" * 3000))
    with pytest.raises(InternalError, match="not whole"):
        receive(raw[:2500], tmp_path / "here")
    told = raw[:1024] + tar.message("SANDLOT.code", "permission_denied") + tar.message("SANDLOT.error", "not that one")
    with pytest.raises(ForbiddenError, match="not that one"):
        receive(told, tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["a"]


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
