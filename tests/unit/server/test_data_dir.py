"""A data directory: private, locked, and with one name for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, HostError
from sandlot.model.ids import NODE_ID
from sandlot.server import data_dir


def test_it_is_made_private_with_all_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    data_dir.prepare_data_dir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    data_dir.prepare_data_dir(folder)


def test_an_empty_one_and_our_own_are_narrowed(tmp_path: Path) -> None:
    empty, own = tmp_path / "empty", tmp_path / "own"
    for folder in (empty, own):
        folder.mkdir()
    data_dir.node(own)
    for folder in (empty, own):
        folder.chmod(0o755)
        data_dir.prepare_data_dir(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_directory_named_by_mistake_is_not_changed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "somebody's").touch()
    with pytest.raises(HostError) as refused:
        data_dir.prepare_data_dir(tmp_path)
    assert refused.value.hint
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 1000, 1000)
    with pytest.raises(HostError, match="1000"):
        data_dir.prepare_data_dir(folder)


def test_one_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError) as refused:
        data_dir.prepare_data_dir(tmp_path / "file" / "x")
    assert "Not a directory" in refused.value.message


def test_a_second_service_is_told_who_is_first(tmp_path: Path) -> None:
    with data_dir.locked(tmp_path):
        with pytest.raises(ConflictError, match=str(os.getpid())) as refused, data_dir.locked(tmp_path):
            pass
        assert refused.value.fields["pid"] == str(os.getpid())
    with data_dir.locked(tmp_path):
        pass


def test_the_node_keeps_its_name(tmp_path: Path) -> None:
    first = data_dir.node(tmp_path)
    assert NODE_ID.fullmatch(first)
    assert data_dir.node(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


@pytest.mark.parametrize("content", [b"", b"abc", b"abcde", b"AAAA", b"\xff\xff\xff\xff", b"a/../"])
def test_a_broken_name_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node").write_bytes(content)
    with pytest.raises(HostError):
        data_dir.node(tmp_path)
    assert (tmp_path / "node").read_bytes() == content


def test_new_directory_gets_the_format_number_and_is_accepted_again(tmp_path: Path) -> None:
    (tmp_path / "service.log").touch()  # exists before the service opens the directory
    data_dir.check_format(tmp_path)
    assert (tmp_path / "format").read_text() == f"{data_dir.DATA_FORMAT}\n"
    data_dir.node(tmp_path)
    data_dir.check_format(tmp_path)


@pytest.mark.parametrize("found", [str(data_dir.DATA_FORMAT + 1), "0", None])
def test_directory_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, found: str | None) -> None:
    data_dir.node(tmp_path)
    if found is not None:
        (tmp_path / "format").write_text(f"{found}\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(HostError, match="no format number" if found is None else f"has format {found}") as refused:
        data_dir.check_format(tmp_path)
    assert "empty directory" in refused.value.hint
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_directory_with_only_the_database_of_an_earlier_build_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandlot.db").touch()
    with pytest.raises(HostError, match="no format number"):
        data_dir.check_format(tmp_path)


@pytest.mark.parametrize("content", [b"", b"one\n", b"-1\n", b"\xff", b"1 2"])
def test_unreadable_format_number_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "format").write_bytes(content)
    with pytest.raises(HostError, match="instead of a format number"):
        data_dir.check_format(tmp_path)
    assert (tmp_path / "format").read_bytes() == content


def test_format_number_that_cannot_be_written_or_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "format").mkdir()
    with pytest.raises(HostError, match="Is a directory"):
        data_dir.check_format(tmp_path)
