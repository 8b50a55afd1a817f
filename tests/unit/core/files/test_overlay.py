"""Messages about the folders of an image, and the file of an overlay: complete, or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.core.files import overlay
from sandlot.core.files.overlay import OverlayDraft, describe_folder
from sandlot.host.image_index import write_index
from sandlot.model.errors import HostError, LimitError
from sandlot.model.specs import RootFs

MISSING = [{"missing": True}]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "etc/deep").mkdir(parents=True)
    (made / "etc/file").write_text("1")
    (made / "etc/link").symlink_to("deep")
    (made / "up").symlink_to("..")
    (tmp_path / "secret").mkdir()
    return made


@pytest.fixture
def root(tree: Path) -> RootFs:
    return RootFs("0", tree)


@pytest.fixture
def image(tmp_path: Path) -> RootFs:
    """The root file system of an image, whose index alone exists."""
    folders = {b"/": {b"etc": 1, b"up": 2}, b"/etc": {b"deep": 3, b"file": 4, b"link": 5}, b"/etc/deep": {}}
    with (tmp_path / "index").open("xb") as file:
        write_index(file, folders)
    return RootFs("0", image=tmp_path / "no-image", index=tmp_path / "index")


def test_folder_is_described_by_names_and_change_times(root: RootFs, tree: Path) -> None:
    (message,) = describe_folder(root, b"/etc")
    found, ctimes = message["names"], message["ctimes"]
    assert isinstance(found, list)
    assert isinstance(ctimes, list)
    assert dict(zip(found, ctimes, strict=True)) == {name.encode(): os.lstat(tree / "etc" / name).st_ctime_ns for name in ("deep", "file", "link")}
    assert message["more"] is False
    assert describe_folder(root, b"/etc/deep/") == [{"names": [], "ctimes": [], "more": False}]
    assert describe_folder(root, b"/")[0]["names"]


def test_folder_of_an_image_is_described_from_the_index(image: RootFs) -> None:
    assert describe_folder(image, b"/etc") == [{"names": [b"deep", b"file", b"link"], "ctimes": [3, 4, 5], "more": False}]
    assert describe_folder(image, b"//etc/deep/") == [{"names": [], "ctimes": [], "more": False}]
    assert describe_folder(image, b"/") == [{"names": [b"etc", b"up"], "ctimes": [1, 2], "more": False}]


def test_damaged_index_is_an_error_of_the_host(image: RootFs) -> None:
    assert image.index is not None
    image.index.write_bytes(b"SLINDEX")
    with pytest.raises(HostError, match="cut off"):
        describe_folder(image, b"/etc")
    image.index.unlink()
    with pytest.raises(HostError, match="No such file"):
        describe_folder(image, b"/etc")


@pytest.mark.parametrize(
    "folder",
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
def test_anything_but_a_folder_of_the_image_counts_as_missing(root: RootFs, image: RootFs, folder: object) -> None:
    assert describe_folder(root, folder) == MISSING
    assert describe_folder(image, folder) == MISSING


def test_large_folder_is_described_in_parts(root: RootFs, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "MAX_NAMES", 10)
    many = tree / "many"
    many.mkdir()
    for number in range(11):
        (many / str(number)).touch()
    messages = describe_folder(root, b"/many")
    assert [(len(part["names"]), part["more"]) for part in messages] == [(10, True), (1, False)]  # type: ignore[arg-type]


async def test_unfinished_draft_leaves_nothing(tmp_path: Path) -> None:
    draft = OverlayDraft(tmp_path / "part", 100)
    await draft.open()
    await draft.write(b"x" * 100)
    with pytest.raises(LimitError):
        await draft.write(b"x")
    await draft.close()
    await draft.close()
    assert names(tmp_path) == []


async def test_finished_draft_has_only_its_final_name(tmp_path: Path) -> None:
    draft = OverlayDraft(tmp_path / "part", 1 << 30)
    await draft.open()
    for _ in range(10):
        await draft.write(b"x" * 1_000_000)
    assert await draft.finish(tmp_path / "whole") >= 10_000_000
    await draft.close()
    assert names(tmp_path) == ["whole"]
    assert (tmp_path / "whole").read_bytes() == b"x" * 10_000_000


async def test_failing_disk_raises_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError):
        await OverlayDraft(tmp_path / "none/part", 100).open()
    draft = OverlayDraft(tmp_path / "part", 1 << 60)
    await draft.open()
    full = os.open("/dev/full", os.O_WRONLY)  # full(4)
    os.dup2(full, draft._fd)  # noqa: SLF001 - a full disk
    os.close(full)
    with pytest.raises(LimitError):
        await draft.write(b"x" * (5 << 20))
    await draft.close()
    assert names(tmp_path) == []
