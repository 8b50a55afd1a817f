"""EROFS images: what is written is read again, and the files of an image below stay where they are. Kernels read such images in tests/service."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.builds import merge_sandbox
from sandlot.builds.merge_program import main as program
from sandlot.builds.merge_program.erofs import BLOCK_BYTES
from sandlot.builds.merge_program.files import Node
from sandlot.images.erofs_image import read_uuid
from tests.support.image_layers import FOLDER, HARDLINK, PIPE, SYMLINK, TIME_S, StoredLayer, entry, job_of, layer_of, read_made

Made = tuple[dict[str, Node], Callable[[str], bytes]]
LOW = layer_of(
    entry("data", kind=FOLDER, mode=0o711, owner=70_000, mtime="1700000000.000000007"),
    entry("data/kept", b"kept" * 5000, mode=0o6755, owner=3_000_000_000),
    entry("data/replaced", b"low"),
    entry("data/hidden", b"low"),
    entry("data/linked", b"linked"),
    entry("data/again", kind=HARDLINK, target="data/linked"),
    entry("data/empty"),
    entry("data/link", kind=SYMLINK, target="../elsewhere"),
    entry("data/pipe", kind=PIPE),
    entry("data/opaque", kind=FOLDER),
    entry("data/opaque/hidden", b"low"),
    entry("data/folder", kind=FOLDER),
    entry("data/folder/inside", b"low"),
    entry("data/file", b"low"),
    entry("data/\udcff", b"odd"),
    entry("etc/passwd", b"root:x:0:0::/:/bin/sh\nfirst:x:7:7::/:/bin/sh\n"),
    entry("etc/skel/.profile", b"skeleton"),
)
HIGH = layer_of(
    entry("data/.wh.hidden"),
    entry("data/replaced", b"high"),
    entry("data/new", b"new" * 3000),
    entry("data/linked-too", kind=HARDLINK, target="data/linked"),
    entry("data/.wh.again"),
    entry("data/opaque/.wh..wh..opq"),
    entry("data/opaque/shown", b"high"),
    entry("data/folder", b"a file now"),
    entry("data/file", kind=FOLDER),
    entry("data/file/inside", b"high"),
)


def on(folder: Path, base: Path, *layers: StoredLayer) -> Path:
    """Merge layers on an image, as the sandbox and the host do it together. Return the new image."""
    folder.mkdir()
    job = job_of(folder, *layers, base=str(base), base_uuid=str(read_uuid(base)), uuid=str(uuid.uuid4()), guest=str(base.parent / "guest"))
    program.run(job, lambda _line: None)
    whole = folder / "whole.erofs"
    below = merge_sandbox.BaseImage("", base, read_uuid(base))
    assert merge_sandbox._copy_base(below, whole, lambda: None) == base.stat().st_size  # noqa: SLF001 - what the host does
    with whole.open("ab") as file:
        file.write((folder / "root.erofs").read_bytes())
    merge_sandbox._replace_superblock(whole, base.stat().st_size)  # noqa: SLF001 - the same
    assert read_uuid(whole) == uuid.UUID(job["uuid"])
    return whole


def alone(folder: Path, *layers: StoredLayer) -> Path:
    folder.mkdir()
    program.run(job_of(folder, *layers), lambda _line: None)
    return folder / "root.erofs"


def contents(image: Path, guest: str) -> dict[str, object]:
    """Return the properties and content of all entries outside of the guest, with the first name of each file."""
    entries, read = read_made(image)
    first: dict[int, str] = {}
    return {
        path: (
            *(node.kind, node.mode, node.uid, node.gid, node.mtime_ns, node.target, first.setdefault(id(node), path)),
            read(path) if node.kind == "file" else None,
        )
        for path, node in entries.items()
        if not path.startswith(guest.strip("/"))
    }


def test_layer_on_an_image_gives_the_same_as_all_layers_together(tmp_path: Path) -> None:
    base = alone(tmp_path / "base", LOW)
    image = on(tmp_path / "on", base, HIGH)
    guest = str(tmp_path / "base/guest")
    found, wanted = contents(image, guest), contents(alone(tmp_path / "whole", LOW, HIGH), str(tmp_path / "whole/guest"))
    top = guest.strip("/").partition("/")[0]
    assert {path: each for path, each in found.items() if not path.startswith(top)} == {
        path: each for path, each in wanted.items() if not path.startswith(top)
    }
    entries, read = read_made(image)
    assert read(f"{guest.strip('/')}/guest.zip") == b"guest"
    assert entries["data/linked-too"] is entries["data/linked"]


def test_files_of_the_image_below_are_not_written_again(tmp_path: Path) -> None:
    large = layer_of(*(entry(f"data/{number}", os.urandom(100_000)) for number in range(20)))
    base = alone(tmp_path / "base", large)
    image = on(tmp_path / "on", base, layer_of(entry("data/new", b"x")))
    assert image.stat().st_size - base.stat().st_size < 20 * BLOCK_BYTES
    below, above = read_made(base), read_made(image)
    assert all(above[0][f"data/{number}"].block == below[0][f"data/{number}"].block for number in range(20))
    assert [above[1](f"data/{number}") for number in range(20)] == [below[1](f"data/{number}") for number in range(20)]


def test_guest_of_the_image_below_stays_whatever_a_layer_has_in_its_place(tmp_path: Path) -> None:
    base = alone(tmp_path / "base")
    guest = str(tmp_path / "base/guest").strip("/")
    image = on(tmp_path / "on", base, layer_of(entry(guest.partition("/")[0], b"a file")))
    assert read_made(image)[1](f"{guest}/guest.zip") == b"guest"


def test_image_that_was_made_again_is_refused(tmp_path: Path) -> None:
    base = alone(tmp_path / "base")
    job = job_of(tmp_path, base=str(base), base_uuid=str(uuid.uuid4()))
    with pytest.raises(ValueError, match="made again"):
        program.merge(job, lambda _line: None)


@pytest.mark.parametrize("size", [0, 1, 200, 4031, 4032, 4033, 4095])
def test_folder_and_link_of_any_size_are_read_again(tmp_path: Path, size: int) -> None:
    names = [f"{number:03}" + "n" * (size // 16 % 250) for number in range(size % 900)]
    layer = layer_of(
        entry("data", kind=FOLDER),
        *(entry(f"data/{name}") for name in names),
        entry("link", kind=SYMLINK, target="t" * max(size, 1)),
        entry("tail", b"x"),
    )
    folder = tmp_path / "made"
    folder.mkdir()
    program.run(job_of(folder, layer, max_entries=5000), lambda _line: None)
    entries, read = read_made(folder / "root.erofs")
    assert sorted(path.removeprefix("data/") for path in entries if path.startswith("data/")) == sorted(names)
    assert (entries["link"].target, read("tail"), entries["data"].mtime_ns) == ("t" * max(size, 1), b"x", TIME_S * 10**9)


def test_image_of_a_base_depends_on_its_inputs_only(tmp_path: Path) -> None:
    base = alone(tmp_path / "base", LOW)
    images = []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        job = job_of(folder, HIGH, base=str(base), base_uuid=str(read_uuid(base)), guest=str(tmp_path / "base/guest"))
        program.run(job, lambda _line: None)
        images.append((folder / "root.erofs").read_bytes())
    assert images[0] == images[1]
