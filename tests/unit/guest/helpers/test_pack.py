"""The helper that packs a folder, run as a process of this machine."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from tests.support.programs import Said, run


def pack(path: Path, *, compress: bool = False) -> Said:
    return run("pack", {"path": str(path), "gzip": compress})


@pytest.mark.parametrize("compress", [False, True])
def test_packed_archive_is_unpacked_by_tarfile(tmp_path: Path, *, compress: bool) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    deep = tree / "/".join(["folder"] * 30)
    deep.mkdir(parents=True)
    (deep / "ünï").write_bytes(os.urandom(700_000))
    (tree / ".hidden").write_text("hidden")
    (tree / "empty").mkdir()
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o750)
    (tree / "link").symlink_to("../" * 40 + "etc")
    said = pack(tree, compress=compress)
    assert said.result == {"files": 3, "folders": 31, "links": 1, "bytes": 700_016, "left_out": 0}
    with tarfile.open(fileobj=io.BytesIO(said.data), mode="r:gz" if compress else "r:") as archive:
        assert archive.getmember("link").linkname == "../" * 40 + "etc"
        vars(archive)["extraction_filter"] = lambda member, _: None if member.issym() else member  # Python 3.12 and backports
        for member in archive:
            if not member.issym():
                archive.extract(member, out)
    for path in tree.rglob("*"):
        copy = out / path.relative_to(tree)
        if not path.is_symlink():
            assert copy.stat().st_mode == path.stat().st_mode
            assert int(copy.stat().st_mtime) == int(path.stat().st_mtime) or path.is_dir()
            assert path.is_dir() or copy.read_bytes() == path.read_bytes()


def test_special_files_are_left_out_and_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "file").write_text("x")
    said = pack(tmp_path)
    assert said.result is not None
    assert said.result["left_out"] == 2
    with tarfile.open(fileobj=io.BytesIO(said.data)) as archive:
        assert archive.getnames() == ["file"]


def test_incomplete_archive_contains_the_error(tmp_path: Path) -> None:
    """The packing fails at a path that is too long to be opened (PATH_MAX)."""
    (tmp_path / "a").write_text("first")
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    said = pack(tmp_path)
    assert (said.result, said.error) == (None, "path_invalid")
    assert b"SANDLOT.code=path_invalid\n" in said.data
    assert not said.data.endswith(bytes(1024))


@pytest.mark.parametrize("name, code", [("none", "path_not_found"), ("file/below", "path_not_directory"), ("pipe", "path_not_regular")])
def test_invalid_path_is_refused_before_bytes_are_sent(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    said = pack(tmp_path / name)
    assert (said.error, said.data, said.told) == (code, b"", [])
