"""Copying from a sandbox: what its names, and what is here already, may do."""

from __future__ import annotations

import os
import resource
import signal
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, ForbiddenError, InternalError, InvalidRequestError, SandlotError
from sandlot.protocol import tar
from sandlot.sdk.transfer.download import ArchiveExtractor, PartialFile
from tests.support.archives import archive, entry


def receive(raw: bytes, target: Path) -> ArchiveExtractor:
    receiver = ArchiveExtractor(target, "/workspace/tree")
    try:
        for at in range(0, len(raw), 777):
            receiver.feed(raw[at : at + 777])
        receiver.finish()
    finally:
        receiver.discard()
    return receiver


def test_what_comes_is_made_here_without_links_that_lead_out(tmp_path: Path) -> None:
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


def test_links_inside_are_kept_and_others_are_skipped_with_a_sentence(tmp_path: Path) -> None:
    kept = {
        "a": ("d/file", "d/file"),
        "dir": ("d", "d"),
        "loop": ("loop", "loop"),
        "dangling": ("nowhere", "nowhere"),
        "absolute": ("/workspace/tree/d/file", "d/file"),
        "d/up": ("../a", "../a"),
        "d/absolute": ("/workspace/tree", "../"),
    }
    outside = ["/etc/passwd", "../..", "../../x", "d/../../x", "/workspace/tree2/x", "/workspace/tree/../x", "/workspace"]
    raw = archive(
        entry("d/file", content=b"x"),
        *(entry(name, tarfile.SYMTYPE, target=target) for name, (target, _) in kept.items()),
        *(entry(f"d/out{number}", tarfile.SYMTYPE, target=target) for number, target in enumerate(outside)),
    )
    got = receive(raw, tmp_path)
    assert everything(tmp_path) == {"d/file": "x", **{name: f"-> {Path(target)}" for name, (_, target) in kept.items()}}
    skipped = got.take_skipped()
    assert [f"'/workspace/tree/d/out{number}'" in sentence for number, sentence in enumerate(skipped)] == [True] * len(outside)
    assert got.take_skipped() == []


def test_links_of_a_download_replace_files_and_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "file").write_text("old")
    receive(archive(entry("file", tarfile.SYMTYPE, target="d")), tmp_path)
    assert everything(tmp_path) == {"file": "-> d"}
    for member in (entry("file/planted", content=b"x"), entry("d", tarfile.SYMTYPE, target="file")):
        with pytest.raises(ConflictError):
            receive(archive(member), tmp_path)
        assert everything(tmp_path) == {"file": "-> d"}


def test_what_would_lie_outside_or_too_deep_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, name in enumerate(("..", "../x", "a/../../x", "/etc/passwd", "x" * 256, "/".join(["d"] * 201))):
        with subtests.test(name=name):
            folder = tmp_path / str(number)
            folder.mkdir()
            with pytest.raises(InvalidRequestError, match=r"outside|deep"):
                receive(archive(entry("first", content=b"x"), entry(name, content=b"x")), folder / "here")
            assert [path.name for path in folder.rglob("*")] == ["here", "first"]


def test_what_breaks_off_leaves_no_half_file_and_says_why_where_it_was_told(tmp_path: Path) -> None:
    raw = archive(entry("a", content=b"a"), entry("b", content=b"b" * 3000))
    with pytest.raises(InternalError):
        receive(raw[:2500], tmp_path / "here")
    told = raw[:1024] + tar.message_header("SANDLOT.code", "permission_denied") + tar.message_header("SANDLOT.error", "not that one")
    with pytest.raises(ForbiddenError, match="not that one"):
        receive(told, tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["a"]


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    part = PartialFile.create(target, True)
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
    part = PartialFile.create(target, False)
    part.write(b"new")
    part.discard()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_is_no_more_open_than_the_umask_has_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        part = PartialFile.create(tmp_path / "file", False)
        part.finish()
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def names_in(folder: Path) -> list[str]:
    """Names in a folder."""
    return [path.name for path in folder.iterdir()]


def everything(folder: Path) -> dict[str, str]:
    """What is below a folder: what each file holds, and where each link leads."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def test_download_does_not_write_through_local_links(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, members in enumerate(
        (
            [entry("link/planted", content=b"evil")],
            [entry("link/sub/planted", content=b"evil")],
            [entry("d/up/planted", content=b"evil")],
            [entry("link/made/", tarfile.DIRTYPE)],
            [entry("link/", tarfile.DIRTYPE), entry("link/planted", content=b"evil")],
        )
    ):
        with subtests.test(members=members):
            folder = tmp_path / str(number)
            folder.mkdir()
            outside, here = folder / "outside", folder / "here"
            (here / "d").mkdir(parents=True)
            outside.mkdir()
            (here / "link").symlink_to("../outside")
            (here / "d" / "up").symlink_to(outside)
            before = everything(folder)
            with pytest.raises(ConflictError, match=r"link|up"):
                receive(archive(*members), here)
            assert everything(folder) == before
            assert list(outside.iterdir()) == []


def test_a_link_under_a_files_name_is_replaced_and_the_path_that_was_asked_for_may_lead_through_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "asked").symlink_to("real")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "real" / "a").symlink_to("../precious")
    receive(archive(entry("a", content=b"new"), entry("b/c", content=b"c")), tmp_path / "asked")
    assert everything(tmp_path) == {"asked": "-> real", "precious": "precious", "real/a": "new", "real/b/c": "c"}


def test_a_file_and_a_folder_of_one_name_are_told_by_it_and_leave_nothing_half(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, members in enumerate(
        (
            [entry("first", content=b"x"), entry("odd", content=b"x"), entry("odd/b", content=b"x")],
            [entry("first", content=b"x"), entry("odd/", tarfile.DIRTYPE), entry("odd", content=b"x")],
            [entry("first", content=b"x"), entry("odd", content=b"x"), entry("odd/", tarfile.DIRTYPE)],
        )
    ):
        with subtests.test(members=members):
            folder = tmp_path / str(number)
            folder.mkdir()
            before = len(names_in(Path("/proc/self/fd")))
            with pytest.raises(ConflictError, match="'odd") as caught:
                receive(archive(*members), folder)
            assert caught.value.hint
            assert {path.name for path in folder.rglob("*")} == {"first", "odd"}
            assert len(names_in(Path("/proc/self/fd"))) == before


def test_every_name_that_a_file_may_have_is_made(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, name in enumerate(("あ" * 85, "x" * 255, "é" * 127 + "x", "あ" * 33 + "\udcff" * 150)):
        with subtests.test(name=name):
            folder = tmp_path / str(number)
            folder.mkdir()
            raw = tar.header(tar.Member(name, tar.FILE, size=1)) + b"x" + tar.padding(1) + tar.END
            receive(raw, folder)
            assert names_in(folder) == [name]
            part = PartialFile.create(folder / "alone" / name, False)
            part.finish()
            assert names_in(folder / "alone") == [name]


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file of this process becomes larger than that meanwhile."""
    before, old = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)


def test_what_this_machine_does_not_take_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with full(1000), pytest.raises(SandlotError, match="'large'"):
        receive(archive(entry("a", content=b"a"), entry("large", content=b"x" * 5000)), tmp_path)
    assert names_in(tmp_path) == ["a"]
    part = PartialFile.create(tmp_path / "alone", False)
    with full(1000), pytest.raises(SandlotError, match="alone"):
        part.write(b"x" * 5000)
    part.discard()
    assert names_in(tmp_path) == ["a"]


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    part = PartialFile.create(tmp_path / "there", False)
    with pytest.raises(ConflictError, match="there"):
        part.finish()
    part.discard()
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    for path in (tmp_path / "..", Path()):
        with pytest.raises(InvalidRequestError):
            PartialFile.create(path, False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConflictError, match="file"):
        ArchiveExtractor(tmp_path / "file", "/workspace")


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(names_in(Path("/proc/self/fd")))
    receive(archive(*(entry(f"{folder}/{name}", content=b"x") for folder in ("a", "a/b", "c") for name in ("x", "y"))), tmp_path)
    assert len(names_in(Path("/proc/self/fd"))) == before
