"""Build contexts: what a source of a copy names, and archives that are refused."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from sandlot.builds.context import MAX_DEPTH, MAX_IGNORE_BYTES, Context, read_context, unpack
from sandlot.builds.limits import BuildLimits
from sandlot.builds.patterns import ComparisonBudget
from sandlot.model.errors import InvalidRequestError, LimitError, SandlotError

LIMITS = BuildLimits(context_bytes=1_000_000, context_entries=100)


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, len(content), mode
    return info, content


def archive(*entries: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as made:  # type: ignore[call-overload]
        for info, content in entries:
            made.addfile(info, io.BytesIO(content))
    return out.getvalue()


def read(data: bytes, folder: Path, limits: BuildLimits = LIMITS) -> Context:
    path = folder / "context"
    path.write_bytes(data)
    return read_context(path, folder, limits, ComparisonBudget())


FILES = (
    entry("app/main.py", b"main", mode=0o755),
    entry("app/b.py", b"b"),
    entry("README", b"readme"),
    entry("app/link", kind=tarfile.SYMTYPE, target="main.py"),
    entry("app/out", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    entry("app/dangling", kind=tarfile.SYMTYPE, target="no/where"),
    entry("app/loop", kind=tarfile.SYMTYPE, target="loop"),
    entry("folder", kind=tarfile.SYMTYPE, target="app"),
    entry("hard", kind=tarfile.LNKTYPE, target="README"),
)


@pytest.mark.parametrize("compression", ["w", "w:gz"])
@pytest.mark.parametrize(
    "source, names",
    [
        (".", [""]),
        ("/", [""]),
        ("../../README", ["README"]),
        ("app", ["app"]),
        ("./app/", ["app"]),
        ("app/*.py", ["app/b.py", "app/main.py"]),
        ("*/main.py", ["app/main.py"]),
        ("app/link", ["app/main.py"]),
        ("folder/b.py", ["app/b.py"]),
        ("R[A-F]*", ["README"]),
    ],
)
def test_source_names_entries(tmp_path: Path, compression: str, source: str, names: list[str]) -> None:
    context = read(archive(*FILES, mode=compression), tmp_path)
    assert [item.name for item in context.find(source, follow=True)] == names
    context.close()


@pytest.mark.parametrize("source", ["none", "app/none", "*.none", "app/out", "app/dangling", "app/loop", "README/x"])
def test_source_that_names_nothing_is_refused(tmp_path: Path, source: str) -> None:
    context = read(archive(*FILES), tmp_path)
    with pytest.raises(InvalidRequestError, match=r"build context"):
        context.find(source, follow=True)
    context.close()


def test_links_stay_links_if_they_are_not_followed(tmp_path: Path) -> None:
    context = read(archive(*FILES), tmp_path)
    assert [item.target for item in context.find("app/*", follow=False) if item.target] == ["no/where", "main.py", "loop", "/etc/passwd"]
    assert b"".join(context.read(context.items["hard"])) == b"readme"
    context.close()


def test_ignored_files_are_left_out(tmp_path: Path) -> None:
    context = read(archive(*FILES, entry(".dockerignore", b"app\n!app/b.py\n")), tmp_path)
    assert sorted(context.items) == ["", ".dockerignore", "README", "app", "app/b.py", "folder", "hard"]
    context.close()


def test_large_ignore_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_IGNORE_BYTES}"):
        read(archive(*FILES, entry(".dockerignore", b"#" * MAX_IGNORE_BYTES + b"\napp")), tmp_path)


def test_link_that_leads_nowhere_is_no_folder_that_a_wildcard_names(tmp_path: Path) -> None:
    links = (entry("gone", kind=tarfile.SYMTYPE, target="nowhere"), entry("loop", kind=tarfile.SYMTYPE, target="loop"))
    context = read(archive(*FILES, *links), tmp_path)
    assert [item.name for item in context.find("*/b.py", follow=True)] == ["app/b.py"]
    with pytest.raises(InvalidRequestError, match="leads to no file"):
        context.find("gone/b.py", follow=True)
    context.close()


def test_digest_depends_on_names_modes_targets_and_contents_but_not_on_times(tmp_path: Path) -> None:
    def digest(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
        context = read(archive(*entries), tmp_path)
        try:
            return context.digest(context.find(".", follow=True))
        finally:
            context.close()

    first = digest(entry("a", b"1"))
    later, content = entry("a", b"1")
    later.mtime = 1_000_000_000
    assert digest((later, content)) == first
    others = [entry("a", b"2"), entry("b", b"1"), entry("a", b"1", mode=0o600), entry("a", kind=tarfile.SYMTYPE, target="1")]
    assert len({first, *(digest(each) for each in others)}) == 5


@pytest.mark.parametrize(
    "entries",
    [
        (entry("../a", b"x"),),
        (entry("/etc/a", b"x"),),
        (entry("a/../../b", b"x"),),
        (entry("a", kind=tarfile.SYMTYPE, target="/etc"), entry("a/b", b"x")),
        (entry("a", b"x"), entry("a/b", b"x")),
        (entry("a/b", b"x"), entry("a", b"x")),
        (entry("a", kind=tarfile.LNKTYPE, target="../../etc/passwd"),),
        (entry("a", kind=tarfile.LNKTYPE, target="none"),),
        (entry("a", kind=tarfile.BLKTYPE),),
        (entry("a", kind=tarfile.SYMTYPE, target=""),),
        (entry("a", bytes(1_000_001)),),
        tuple(entry(str(number)) for number in range(101)),
    ],
)
def test_hostile_archive_is_refused(tmp_path: Path, entries: tuple[tuple[tarfile.TarInfo, bytes], ...]) -> None:
    with pytest.raises(SandlotError):
        read(archive(*entries), tmp_path)


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x1f\x8bnothing", archive(*FILES)[:700], gzip.compress(archive(*FILES), mtime=0)[:50]])
def test_damaged_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"archive cannot be read"):
        read(data, tmp_path)


def test_folders_in_folders_are_limited(tmp_path: Path) -> None:
    context = read(archive(entry("a/" * (MAX_DEPTH - 1) + "b", b"x")), tmp_path, BuildLimits())
    assert len(context.items) == MAX_DEPTH + 1
    context.close()
    with pytest.raises(InvalidRequestError, match="names in its path"):
        read(archive(entry("a/" * MAX_DEPTH + "b", b"x")), tmp_path, BuildLimits())


def test_links_to_folders_above_do_not_multiply_what_a_pattern_names(tmp_path: Path) -> None:
    context = read(archive(*(entry(f"link{number}", kind=tarfile.SYMTYPE, target=".") for number in range(80))), tmp_path)
    assert len(context.find("/".join("*" * 100), follow=False)) == 80
    assert [item.name for item in context.find("*", follow=True)] == [""]
    context.close()


def test_comparisons_of_a_context_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [entry(str(number)) for number in range(50)]
    monkeypatch.setattr(ComparisonBudget.__init__, "__defaults__", (120,))
    context = read(archive(*files, entry(".dockerignore", b"**/none")), tmp_path)
    with pytest.raises(LimitError, match="too many files for the wildcards"):
        context.find("*", follow=True)
    context.close()
    with pytest.raises(LimitError, match="too many files for the wildcards"):
        read(archive(*files, entry(".dockerignore", b"**/a\n**/b\n**/c")), tmp_path)
    with pytest.raises(InvalidRequestError, match="characters"):
        context.find("a/" * 3_000, follow=True)


def test_expansion_of_a_small_archive_is_limited(tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        read(gzip.compress(archive(entry("a", bytes(50_000_000)))), tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archive_in_a_context_is_unpacked(tmp_path: Path, mode: str) -> None:
    info, content = entry("x/y", b"z")
    info.uid, info.gid = 12, 34
    context = read(archive(entry("a.tar", archive((info, content), mode=mode))), tmp_path)
    inner = unpack(context, context.items["a.tar"], tmp_path, LIMITS)
    assert inner is not None
    assert [(item.uid, item.gid, b"".join(inner.read(item))) for item in inner.find("x/y", follow=True)] == [(12, 34, b"z")]
    inner.close()
    context.close()


@pytest.mark.parametrize("content", [b"", b"text", gzip.compress(b"text", mtime=0), bytes(600)])
def test_file_that_is_no_archive_is_not_unpacked(tmp_path: Path, content: bytes) -> None:
    context = read(archive(entry("a", content)), tmp_path)
    assert unpack(context, context.items["a"], tmp_path, LIMITS) is None
    context.close()
