"""The merge program as a whole: layers become one file system, and hostile layers are refused with the layer and the entry."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot.builds.merge_program import layers
from sandlot.builds.merge_program import main as program
from sandlot.builds.merge_program.files import Node
from sandlot.builds.merge_program.layers import RefusedError
from sandlot.builds.merge_program.output import list_folders
from tests.support.archives import END, raw_head
from tests.support.image_layers import DEVICE, FOLDER, HARDLINK, PIPE, SYMLINK, StoredLayer, entry, job_of, layer_of, read_made

Merged = dict[str, Node]


def merge(folder: Path, *layers: StoredLayer, **changes: Any) -> tuple[Merged, Callable[[str], bytes], list[str]]:  # noqa: ANN401
    """Merge layers. Return the entries by path, a function that reads a file, and the lines of the program."""
    lines: list[str] = []
    program.run(job_of(folder, *layers, **changes), lines.append)
    return *read_made(folder / "root.erofs"), lines


def own(entries: Merged) -> set[str]:
    """Return the paths below ``/data``, where the layout adds nothing."""
    return {path for path in entries if path.startswith("data/")}


def test_upper_layers_replace_and_hide_what_lower_layers_have(tmp_path: Path) -> None:
    low = layer_of(
        entry("data", kind=FOLDER, mode=0o700),
        *(entry(f"data/{name}", b"low") for name in ("kept", "replaced", "hidden")),
        entry("data/opaque", kind=FOLDER),
        entry("data/opaque/hidden", b"low"),
        entry("data/folder", kind=FOLDER),
        entry("data/folder/inside", b"low"),
        entry("data/file", b"low"),
    )
    high = layer_of(
        entry("./data/opaque/shown", b"high"),  # before the whiteout of its folder, which hides lower layers only
        entry("data/.wh.hidden"),
        entry("data/.wh.nothing"),
        entry("data/opaque/.wh..wh..opq"),
        entry("data/.wh..wh.plnk", kind=FOLDER),
        entry("data/replaced", b"higher"),
        entry("data/folder", b"a file now"),
        entry("data/file", kind=FOLDER),
        entry("data/file/inside", b"high"),
    )
    entries, read, _ = merge(tmp_path, low, high)
    assert own(entries) == {f"data/{path}" for path in ("kept", "replaced", "opaque", "opaque/shown", "folder", "file", "file/inside")}
    assert (read("data/kept"), read("data/replaced"), read("data/folder")) == (b"low", b"higher", b"a file now")
    assert entries["data"].mode == 0o700


def test_properties_of_entries_are_kept_exactly(tmp_path: Path) -> None:
    long = "/".join(["d" * 200] * 3)
    layer = layer_of(
        entry("data/setuid", b"x", mode=0o6755, owner=70_000, mtime="1700000000.123456789"),
        entry("data/sticky", kind=FOLDER, mode=0o1777, owner=3_000_000_000),
        entry("data/link", kind=SYMLINK, target="../../outside"),
        entry("data/pipe", kind=PIPE),
        entry("data/again", kind=HARDLINK, target="./data/setuid"),
        entry(f"data/{long}", b"y" * 600),
        entry("data/\udcff"),
    )
    entries, read, _ = merge(tmp_path, layer)
    first = entries["data/setuid"]
    assert (first.mode, first.uid, first.gid) == (0o6755, 70_000, 70_000)
    assert first.mtime_ns == 1_700_000_000_123_456_789
    assert entries["data/again"] is first
    assert (entries["data/sticky"].mode, entries["data/sticky"].uid) == (0o1777, 3_000_000_000)
    assert entries["data/link"].target == "../../outside"
    assert entries["data/pipe"].kind == layers.PIPE
    assert read(f"data/{long}") == b"y" * 600
    assert "data/\udcff" in entries


def test_extended_attributes_are_listed_for_the_guest(tmp_path: Path) -> None:
    layer = layer_of(
        entry("data", kind=FOLDER, xattrs={"user.folder": "1"}),
        entry("data/a", b"x", xattrs={"user.note": "h\u00e9llo", "trusted.overlay.opaque": "y", "system.posix_acl_access": "z"}),
        entry("data/capable", b"x", xattrs={"security.capability": "\1\2"}),
        entry("data/linked", b"x", xattrs={"user.note": "x"}),
        entry("data/again", kind=HARDLINK, target="data/linked"),
        entry("data/large", bytes((1 << 20) + 1), xattrs={"user.note": "x"}),
    )
    entries, read, lines = merge(tmp_path, layer)
    assert json.loads(read(next(path for path in entries if path.endswith("/attributes.json")))) == [
        ["/data", "user.folder", b"1".hex()],
        ["/data/a", "user.note", "h\u00e9llo".encode().hex()],
    ]
    assert "warning: left out 4 extended attributes that sandboxes do not support, such as file capabilities" in lines


def test_hard_link_keeps_the_file_to_which_it_was_made(tmp_path: Path) -> None:
    low = layer_of(entry("data/a", b"low"))
    high = layer_of(entry("data/b", kind=HARDLINK, target="data/a"), entry("data/a", b"high"), entry("data/c", kind=HARDLINK, target="data/a"))
    entries, read, _ = merge(tmp_path, low, high)
    assert (read("data/a"), read("data/b"), read("data/c")) == (b"high", b"low", b"high")
    assert entries["data/a"] is entries["data/c"] is not entries["data/b"]


def test_files_of_any_size_arrive_whole(tmp_path: Path) -> None:
    sizes = [0, 1, 511, 512, 513, (1 << 20) - 512, 1 << 20, (1 << 20) + 1, 3_000_000]
    content = {f"data/{size}": bytes([size % 251]) * size for size in sizes}
    compressed = layer_of(*(entry(name, data) for name, data in content.items()))
    plain = layer_of(archive=compressed.archive, stored=compressed.archive)
    several = layer_of(
        archive=compressed.archive, stored=gzip.compress(compressed.archive[:1000]) + gzip.compress(compressed.archive[1000:]) + bytes(100)
    )
    for number, layer in enumerate((compressed, plain, several)):
        (folder := tmp_path / str(number)).mkdir()
        entries, read, _ = merge(folder, layer)
        assert {name: read(name) for name in own(entries)} == content


def test_index_lists_every_folder_and_time(tmp_path: Path) -> None:
    layer = layer_of(entry("data/a", mtime="1700000000.5"), entry("data/empty", kind=FOLDER), entry("data/b", kind=HARDLINK, target="data/a"))
    folders = list_folders(program.merge(job_of(tmp_path, layer), lambda _line: None)[0])
    assert folders[b"/data"] == {b"a": 1_700_000_000_500_000_000, b"b": 1_700_000_000_500_000_000, b"empty": 1_700_000_000_000_000_000}
    assert folders[b"/data/empty"] == {}
    assert b"data" in folders[b"/"]
    assert folders[b"/tmp"].keys() == {b".X11-unix"}  # gVisor mounts a file system in memory over an empty /tmp


def test_equal_layers_give_equal_images(tmp_path: Path) -> None:
    layer = layer_of(*(entry(f"data/{number}", b"x" * number) for number in range(50)))
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        program.run(job_of(folder, layer, guest=str(tmp_path / "one" / "guest")), lambda _line: None)
    assert (tmp_path / "one/root.erofs").read_bytes() == (tmp_path / "two/root.erofs").read_bytes()


def test_hundred_layers_of_one_file_are_merged(tmp_path: Path) -> None:
    layers = [layer_of(entry(f"data/{number}", b"x"), entry("data/same", b"%d" % number)) for number in range(100)]
    entries, read, _ = merge(tmp_path, *layers)
    assert len(own(entries)) == 101
    assert read("data/same") == b"99"


def test_layer_may_occur_several_times(tmp_path: Path) -> None:
    layer = layer_of(entry("data/a", b"x"))
    assert own(merge(tmp_path, layer, layer_of(entry("data/.wh.a")), layer)[0]) == {"data/a"}


def test_devices_are_left_out_and_named(tmp_path: Path) -> None:
    low, high = layer_of(entry("data/disk", b"x")), layer_of(entry("data/disk", kind=DEVICE), entry("dev/null", kind=DEVICE))
    entries, _, lines = merge(tmp_path, low, high)
    assert not own(entries)
    assert "dev/null" not in entries
    assert [line for line in lines if "warning" in line] == [
        f"warning: left out the device {name!r} of the layer {high.layer.digest}" for name in ("data/disk", "dev/null")
    ]


def test_folder_with_names_that_are_too_long_for_gvisor_is_named(tmp_path: Path) -> None:
    long, short = ([f"{number:04}" + "n" * length for number in range(100)] for length in (200, 96))
    _, _, lines = merge(tmp_path, layer_of(*(entry(f"data/long/{name}") for name in long), *(entry(f"data/short/{name}") for name in short)))
    (warning,) = [line for line in lines if "warning" in line]
    assert warning == "warning: programs may not be able to list the folder 'data/long': its names are too long for some versions of gVisor"


def test_warnings_are_few(tmp_path: Path) -> None:
    _, _, lines = merge(tmp_path, layer_of(*(entry(f"data/{number}", kind=DEVICE) for number in range(200))))
    warnings = [line for line in lines if "warning" in line]
    assert len(warnings) == 51
    assert warnings[-1] == "warning: 150 more warnings"


HOSTILE = {
    "parent": ([entry("data/../../x")], "contains '..'", "data/../../x"),
    "absolute": ([entry("/etc/x")], "absolute", "/etc/x"),
    "long name": ([entry("data/" + "x" * 256)], "invalid name", "data/" + "x" * 256),
    "through a symbolic link": ([entry("data/l", kind=SYMLINK, target="/"), entry("data/l/x")], "through the symbolic link 'l'", "data/l/x"),
    "through a file": ([entry("data/f"), entry("data/f/x")], "through the file 'f'", "data/f/x"),
    "whiteout through a symbolic link": (
        [entry("data/l", kind=SYMLINK, target="/"), entry("other/.wh.x"), entry("data/l/y")],
        "symbolic link",
        "data/l/y",
    ),
    "hard link to a parent": ([entry("data/h", kind=HARDLINK, target="../etc/shadow")], "leads out of the image", "data/h"),
    "absolute hard link": ([entry("data/h", kind=HARDLINK, target="/etc/shadow")], "leads out of the image", "data/h"),
    "hard link to nothing": ([entry("data/h", kind=HARDLINK, target="data/missing")], "does not exist", "data/h"),
    "hard link to a folder": ([entry("data", kind=FOLDER), entry("data/h", kind=HARDLINK, target="data")], "is a folder", "data/h"),
    "hard link through a symbolic link": (
        [entry("data/l", kind=SYMLINK, target="/"), entry("data/h", kind=HARDLINK, target="data/l/etc")],
        "symbolic link",
        "data/h",
    ),
    "root as a file": ([entry(".", b"x")], "replace the root", "."),
    "whiteout of nothing": ([entry("data/.wh.")], "hides no file", "data/.wh."),
    "whiteout of the parent": ([entry("data/.wh...")], "hides no file", "data/.wh..."),
    "symbolic link to nothing": ([entry("data/l", kind=SYMLINK)], "invalid target", "data/l"),
    "large attributes": ([entry("data/a", xattrs={"user.a": "x" * 40_000})], "attributes", "data/a"),
}


@pytest.mark.parametrize("entries, reason, name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_entry_is_refused_with_its_layer_and_name(tmp_path: Path, entries: list[Any], reason: str, name: str) -> None:
    good, bad = layer_of(entry("etc/motd", b"hello")), layer_of(*entries)
    with pytest.raises(RefusedError, match=reason) as error:
        merge(tmp_path, good, bad)
    assert (error.value.layer, error.value.entry, error.value.is_limit) == (bad.layer.digest, name, False)


def sparse(keyword: str) -> bytes:
    info = tarfile.TarInfo("data/sparse")
    info.pax_headers = {keyword: "1"}
    return info.tobuf(tarfile.PAX_FORMAT) + END


def pax(records: bytes) -> bytes:
    """Return an archive of an empty file with a pax header."""
    return raw_head(b"x", b"%o" % len(records), b"x") + records.ljust(512, b"\0") + raw_head(b"data/s", b"0") + END


DAMAGED = {
    "sparse file of GNU tar": (raw_head(b"data/s", b"0", b"S") + END, "sparse"),
    "sparse file of pax": (sparse("GNU.sparse.major"), "sparse"),
    "unknown type": (raw_head(b"data/s", b"0", b"Q") + END, "unknown type"),
    "part of an archive": (raw_head(b"data/s", b"0", b"M") + END, "part of a larger archive"),
    "no archive": (b"hello" * 1000, "not a tar archive"),
    "nothing": (b"", "not a tar archive"),
    "no end": (raw_head(b"data/s", b"0"), "incomplete"),
    "content that is not there": (raw_head(b"data/s", b"77777777777") + bytes(512), "incomplete"),
    "damaged header": (raw_head(b"data/s", b"0") + b"x" * 512, "damaged"),
    "endless pax header": (raw_head(b"x", b"77777777777", b"x") + bytes(512), "too large"),
    "broken pax header": (pax(b"99 a="), "damaged"),
    "NUL in a name": (pax(b"12 path=a\0b\n"), "invalid name"),
    "negative owner": (pax(b"9 uid=-1\n"), "invalid owner"),
    "huge owner": (pax(b"18 uid=9999999999\n"), "invalid owner"),
    "negative size": (pax(b"11 size=-5\n"), "size"),
}


@pytest.mark.parametrize("archive, reason", DAMAGED.values(), ids=DAMAGED)
def test_odd_archive_is_refused_with_its_layer(tmp_path: Path, archive: bytes, reason: str) -> None:
    bad = layer_of(archive=archive)
    with pytest.raises(RefusedError, match=reason) as error:
        merge(tmp_path, bad)
    assert error.value.layer == bad.layer.digest


def changed(layer: StoredLayer, stored: bytes) -> StoredLayer:
    return StoredLayer(layer.archive, stored, layer.layer)


GOOD = layer_of(entry("data/a", b"x" * 10_000))
FALSE = {
    "wrong digest": (changed(GOOD, GOOD.stored[:-1] + b"\1"), "its digest is sha256:"),
    "short": (changed(GOOD, GOOD.stored[:-1]), "fewer than the"),
    "long": (changed(GOOD, GOOD.stored + b"x"), "more than the"),
    "wrong diff_id": (layer_of(archive=GOOD.archive, diff_id="sha256:" + "0" * 64), "not its diff_id"),
    "cut off": (layer_of(archive=GOOD.archive, stored=GOOD.stored[:-20]), "cut off"),
    "damaged compression": (layer_of(archive=GOOD.archive, stored=GOOD.stored[:10] + b"\xff" * 40), "compression is damaged"),
    "something behind the compressed data": (layer_of(archive=GOOD.archive, stored=GOOD.stored + b"junk"), "compression is damaged"),
}


@pytest.mark.parametrize("layer, reason", FALSE.values(), ids=FALSE)
def test_false_layer_is_refused(tmp_path: Path, layer: StoredLayer, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as error:
        merge(tmp_path, layer_of(entry("etc/motd")), layer)
    assert error.value.layer == layer.layer.digest


def test_layer_with_a_wrong_digest_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "read_entries", lambda *_: pytest.fail("read"))
    with pytest.raises(RefusedError):
        merge(tmp_path, FALSE["wrong digest"][0])


@pytest.mark.parametrize("limits, reason", [({"max_bytes": 20_000}, "more than 20000 bytes"), ({"max_entries": 3}, "more than 3 entries")])
def test_limits_count_all_layers_together(tmp_path: Path, limits: dict[str, int], reason: str) -> None:
    layers = [layer_of(entry(f"data/{number}"), entry(f"data/{number}b")) for number in range(2)]
    merge(tmp_path, layers[0], **limits)
    with pytest.raises(RefusedError, match=reason) as error:
        merge(tmp_path, *layers, **limits)
    assert error.value.is_limit
    assert error.value.layer == layers[1].layer.digest


def test_bomb_is_stopped_at_the_limit_and_not_read_further(tmp_path: Path) -> None:
    bomb = layer_of(entry("data/zeros", bytes(1 << 25)))
    with pytest.raises(RefusedError, match="without compression"):
        merge(tmp_path, bomb)


def test_program_reports_a_refusal_as_a_line_and_leaves_no_image(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(job_of(tmp_path, layer_of(entry("/x\n")))))
    argv = [sys.executable, "-c", "import sys; from sandlot.builds.merge_program.main import main; main(sys.argv[1])", str(job)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["entry"] == "/x\\n"
    assert last["layer"].startswith("sha256:")
    assert not (tmp_path / "root.erofs").exists()
