"""The helper that unpacks an archive, run as a process of this machine."""

from __future__ import annotations

import gzip
import os
import signal
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandlot.guest.helpers.unpack import Inflater
from sandlot.protocol import values
from tests.support.archives import Hostile, archive, entry, hostile, outgoing_links, raw_head
from tests.support.programs import begin, decoded, run

OUTSIDE = "/nowhere/escaped"
HOSTILE = list(hostile(OUTSIDE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "in"


def asked(folder: Path, entries: int = 100_000) -> dict[str, Any]:
    return {"path": str(folder), "entries": entries}


def there(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("compressed", [False, True])
def test_archive_of_tarfile_is_unpacked_unchanged(folder: Path, form: int, *, compressed: bool) -> None:
    deep = "/".join(["folder"] * 20)
    long = f"{deep}/long" if form != tarfile.USTAR_FORMAT else "p" * 90 + "/" + "q" * 90
    entries = [
        entry("./", tarfile.DIRTYPE, mode=0o700),
        entry("a", content=b"x" * 100_000, mode=0o4755),
        entry("b", content=b""),
        entry("dir/", tarfile.DIRTYPE, mode=0o500),
        entry("dir/c", content=b"c"),
        entry("dir/up", tarfile.SYMTYPE, target="../a"),
        entry("hard", tarfile.LNKTYPE, target="./dir/c"),
        entry(long, content=b"long"),
        entry("ünï", content=b"name"),
    ]
    raw = archive(*entries, form=form)
    said = run("unpack", asked(folder), gzip.compress(raw) if compressed else raw)
    assert said.result == {"files": 5, "folders": 1, "links": 2, "bytes": 100_009, "skipped": []}, said
    assert (folder / "a").read_bytes() == b"x" * 100_000
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o755, "no set-uid bit"
    assert (folder / "a").stat().st_mtime == 1_700_000_000
    assert stat.S_IMODE((folder / "dir").stat().st_mode) == 0o500
    assert str((folder / "dir/up").readlink()) == "../a"
    assert (folder / "hard").samefile(folder / "dir/c")
    assert (folder / long).read_bytes() == b"long"
    assert (folder / "ünï").read_bytes() == b"name"
    assert not [name for name in there(folder) if name.endswith(".part")]


@pytest.mark.parametrize("bad", HOSTILE, ids=[bad.name for bad in HOSTILE])
def test_hostile_archive_is_refused_and_writes_nothing_outside(tmp_path: Path, folder: Path, bad: Hostile) -> None:
    said = run("unpack", asked(folder), bad.data)
    assert said.result is None
    assert said.error in {"invalid_request", "path_not_directory"}, said
    assert bad.named in said.message
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert not Path(OUTSIDE).exists()
    assert not [name for name in there(folder) if name.endswith(".part")]
    for link in folder.rglob("*"):
        assert link.resolve().is_relative_to(folder)


def test_links_that_lead_out_are_skipped_and_named(folder: Path) -> None:
    said = run("unpack", asked(folder), outgoing_links(OUTSIDE))
    assert said.result is not None, said
    assert said.result["skipped"] == ["'absolute-out'", "'up-out'", "'d/later-out'", "'two-links-out'"]
    assert there(folder) == ["d", "d/e", "d/e/up", "file"]
    inside = archive(*(entry(name, tarfile.SYMTYPE, target=str(folder / "file")) for name in ("here", "d/below")))
    assert run("unpack", asked(folder), inside).result is not None
    assert [str((folder / name).readlink()) for name in ("here", "d/below")] == ["file", "../file"]
    many = archive(*(entry(f"{number}", tarfile.SYMTYPE, target="/") for number in range(200)))
    assert (run("unpack", asked(folder), many).result or {})["skipped"] == [f"'{number}'" for number in range(100)]


def test_existing_links_are_replaced_and_not_followed(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("as it was")
    (folder / "way").symlink_to(outside)
    (folder / "file").symlink_to(outside / "file")
    said = run("unpack", asked(folder), archive(entry("file", content=b"new"), entry("way/file", content=b"out")))
    assert said.error == "path_not_directory"
    assert "'way/file'" in said.message
    assert (outside / "file").read_text() == "as it was"
    assert (folder / "file").read_bytes() == b"new"
    assert not (folder / "file").is_symlink()


def test_existing_files_are_replaced_and_folders_are_not(folder: Path) -> None:
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "d").mkdir()
    assert run("unpack", asked(folder), archive(entry("a", content=b"new"), entry("d", tarfile.DIRTYPE))).error == ""
    assert (folder / "a").read_text() == "new"
    said = run("unpack", asked(folder), archive(entry("d", content=b"file")))
    assert (said.error, "/d" in said.message) == ("path_is_directory", True)


def test_archive_with_too_many_entries_is_refused(folder: Path) -> None:
    many = gzip.compress(raw_head(b"./", b"00000000000", b"5") * 500 + archive(entry("last", content=b"x")), 1)
    said = run("unpack", asked(folder, 500), many)
    assert (said.error, "'last'" in said.message) == ("too_large", True)
    assert there(folder) == []


def test_names_that_are_not_utf_8_are_kept(folder: Path) -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    raw = archive(entry(name, content=b"odd"), form=tarfile.GNU_FORMAT)
    assert run("unpack", asked(folder), raw).result is not None
    assert [os.fsencode(path.name) for path in folder.iterdir()] == [b"\xff\xfe"]


@pytest.mark.parametrize("ending", ["input", "signal"])
def test_aborted_unpacking_leaves_the_old_file_and_no_temporary_file(folder: Path, ending: str) -> None:
    folder.mkdir()
    (folder / "big").write_text("old")
    raw = archive(entry("big", content=bytes(3_000_000)))
    with begin("unpack") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(values.encode_message(asked(folder)) + raw[:1_000_000])
        process.stdin.flush()
        while len(there(folder)) == 1:
            assert process.poll() is None
        if ending == "input":
            process.stdin.close()
            (said,) = decoded(process.stderr.read())
            assert "'big'" in said["message"]
        else:
            process.send_signal(signal.SIGTERM)
        process.wait()
    assert there(folder) == ["big"]
    assert (folder / "big").read_text() == "old"


@pytest.mark.parametrize("padding", [b"", b"\0" * 600, b"\0\x1f\x8b"])
def test_gzip_members_are_found_at_any_read_boundary(padding: bytes) -> None:
    raw = gzip.compress(b"first") + gzip.compress(b"second") + padding
    for size in (1, 2, 3, 7, len(gzip.compress(b"first")) + 1, len(raw)):
        inflater = Inflater()
        assert b"".join(piece for at in range(0, len(raw), size) for piece in inflater.feed(raw[at : at + size])) == b"firstsecond"
