"""What the host tells of an image, and the file that a layer becomes: whole, or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.core.files import overlay
from sandlot.core.files.overlay import Writing, answers
from sandlot.model.errors import HostError, LimitError

MISSING = [{"missing": True}]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "etc/deep").mkdir(parents=True)
    (made / "etc/file").write_text("1")
    (made / "etc/link").symlink_to("deep")
    (made / "up").symlink_to("..")
    (tmp_path / "secret").mkdir()
    return made


def test_it_tells_names_and_when_they_changed(root: Path) -> None:
    (told,) = answers(root, b"/etc")
    there, ctimes = told["names"], told["ctimes"]
    assert isinstance(there, list)
    assert isinstance(ctimes, list)
    assert dict(zip(there, ctimes, strict=True)) == {name.encode(): os.lstat(root / "etc" / name).st_ctime_ns for name in ("deep", "file", "link")}
    assert told["more"] is False
    assert answers(root, b"/etc/deep/") == [{"names": [], "ctimes": [], "more": False}]
    assert answers(root, b"/")[0]["names"]


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"etc",
        b"/..",
        b"/etc/../../secret",
        b"/up",
        b"/up/secret",
        b"/etc/link",
        b"/etc/file",
        b"/none",
        b"/etc/\0",
        b"/x" * 3000,
        "/etc",
        5,
        None,
    ],
)
def test_of_anything_that_is_no_folder_of_the_image_it_tells_nothing(root: Path, asked: object) -> None:
    assert answers(root, asked) == MISSING


def test_a_large_folder_is_told_in_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "ANSWER_NAMES", 10)
    many = root / "many"
    many.mkdir()
    for number in range(11):
        (many / str(number)).touch()
    told = answers(root, b"/many")
    assert [(len(part["names"]), part["more"]) for part in told] == [(10, True), (1, False)]  # type: ignore[arg-type]


async def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "part", 100)
    await writing.open()
    await writing.put(b"x" * 100)
    with pytest.raises(LimitError):
        await writing.put(b"x")
    await writing.close()
    await writing.close()
    assert names(tmp_path) == []


async def test_what_is_finished_is_there_under_its_name_alone(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "part", 1 << 30)
    await writing.open()
    for _ in range(10):
        await writing.put(b"x" * 1_000_000)
    assert await writing.finish(tmp_path / "whole") >= 10_000_000
    await writing.close()
    assert names(tmp_path) == ["whole"]
    assert (tmp_path / "whole").read_bytes() == b"x" * 10_000_000


async def test_a_disk_that_says_no_is_an_error_of_the_hosts(tmp_path: Path) -> None:
    with pytest.raises(HostError):
        await Writing(tmp_path / "none/part", 100).open()
    writing = Writing(tmp_path / "part", 1 << 60)
    await writing.open()
    full = os.open("/dev/full", os.O_WRONLY)  # full(4)
    os.dup2(full, writing._fd)  # noqa: SLF001 - a disk that is full
    os.close(full)
    with pytest.raises(LimitError):
        await writing.put(b"x" * (5 << 20))
    await writing.close()
    assert names(tmp_path) == []
