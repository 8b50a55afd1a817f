"""Images of root file systems: the temporary copy of the tree, the index, and the UUID. mkfs.erofs itself runs in tests/conformance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host.free_space import FreeSpace
from sandlot.host.image_index import read_folder
from sandlot.images.command import CommandRunner
from sandlot.images.command_lines import BUILD_TIME_S
from sandlot.images.erofs_image import BASE, IMAGE, INDEX, build_erofs_image, image_digest, list_folders, read_uuid
from sandlot.model.errors import HostError

DIGEST = "a" * 64


class Mkfs(CommandRunner):
    """Runs no mkfs.erofs, but looks at its source and creates its image."""

    def __init__(self, folder: Path, *, fails: bool = False) -> None:
        super().__init__(folder / "log", FreeSpace(folder))
        self.uuid = ""
        self.tmp: list[str] = []
        self.names: list[str] = []
        self.base = ""
        self._fails = fails

    def run(self, what: str, argv: tuple[str, ...], **_options: object) -> None:
        *_, image, source = argv
        self.names = sorted(os.listdir(source))  # noqa: PTH208 - names
        if BASE in self.names:
            self.base = (Path(source) / BASE).read_text()
        self.uuid = argv[argv.index("-U") + 1]
        self.tmp = sorted(os.listdir(Path(source) / "tmp"))  # noqa: PTH208 - names
        Path(image).write_text("image")
        if self._fails:
            raise HostError(f"{what} failed.")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "tmp").mkdir(parents=True)
    (made / "etc").mkdir()
    (made / "etc/file").write_text("1")
    (made / "etc/link").symlink_to("/nowhere")
    os.utime(made / "etc/file", ns=(5, 5))
    os.utime(made / "etc/link", ns=(7, 7), follow_symlinks=False)
    os.utime(made / "etc", (BUILD_TIME_S, BUILD_TIME_S))
    return made


@pytest.fixture
def make(tmp_path: Path, root: Path) -> Callable[..., Mkfs]:
    loader = tmp_path / "builder/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.touch()

    def build(name: str, *, digest: str = DIGEST, fails: bool = False, base: Path | None = None) -> Mkfs:
        (tmp_path / name).mkdir()
        mkfs = Mkfs(tmp_path, fails=fails)
        build_erofs_image(root, digest, tmp_path / name, tmp_path / "builder", mkfs, base)
        return mkfs

    return build


def test_index_lists_every_folder_with_the_times_of_its_entries(root: Path) -> None:
    os.mkdir(os.fsencode(root) + b"/\xff")  # noqa: PTH102 - a name that is no text
    listed = list_folders(root)
    assert sorted(listed) == [b"/", b"/etc", b"/tmp", b"/\xff"]
    assert listed[b"/etc"] == {b"file": 5, b"link": 7}
    assert listed[b"/"][b"etc"] == BUILD_TIME_S * 10**9
    assert listed[b"/tmp"] == listed[b"/\xff"] == {}


def test_image_has_an_entry_in_tmp_and_the_tree_stays_unchanged(tmp_path: Path, root: Path, make: Callable[..., Mkfs]) -> None:
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    assert make("image").tmp == [".X11-unix"]
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    assert read_folder(tmp_path / "image" / INDEX, b"/tmp") == [(b".X11-unix", BUILD_TIME_S * 10**9)]
    assert sorted(file.name for file in (tmp_path / "image").iterdir()) == sorted([IMAGE, INDEX])
    assert not (tmp_path / "image.tree").exists()


def test_image_can_have_another_image_as_a_file(tmp_path: Path, root: Path, make: Callable[..., Mkfs]) -> None:
    make("below")
    made = make("image", base=tmp_path / "below" / IMAGE)
    assert (made.names, made.base) == (["base.erofs", "etc", "tmp"], "image")
    assert (b"base.erofs", BUILD_TIME_S * 10**9) in (read_folder(tmp_path / "image" / INDEX, b"/") or [])
    assert sorted(os.listdir(root)) == ["etc", "tmp"]  # noqa: PTH208 - names
    assert make("plain").names == ["etc", "tmp"]
    assert (tmp_path / "below" / IMAGE).stat().st_nlink == 1


def test_uuid_is_read_from_the_superblock(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(1024 + 48) + bytes(range(16)) + bytes(100))
    assert read_uuid(tmp_path / "image").bytes == bytes(range(16))


def test_tmp_with_an_entry_stays_as_it_is(root: Path, make: Callable[..., Mkfs]) -> None:
    (root / "tmp/own").touch()
    assert make("image").tmp == ["own"]


def test_uuid_depends_on_all_that_decides_the_layout(root: Path, make: Callable[..., Mkfs]) -> None:
    first, again, other = make("first").uuid, make("again").uuid, make("other", digest="b" * 64).uuid
    os.utime(root / "etc", (1, 1))  # the digest of a tree does not contain the times of folders
    assert (first == again, len({first, other, make("time").uuid})) == (True, 3)


def test_digest_depends_on_the_tree_and_on_the_builder() -> None:
    assert len({image_digest("a", "b"), image_digest("a", "c"), image_digest("b", "b"), image_digest("ab", "")}) == 4


def test_failure_leaves_no_copy_of_the_tree(tmp_path: Path, make: Callable[..., Mkfs]) -> None:
    with pytest.raises(HostError):
        make("image", fails=True)
    assert not (tmp_path / "image.tree").exists()
