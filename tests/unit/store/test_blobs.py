"""Blobs in a folder: incomplete blobs of a killed process, permissions, and a full disk."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.model.errors import ErrorCode, HostError, LimitError
from sandlot.model.ids import new_file_id
from sandlot.store.blobs import open_blobs
from tests.support.until import until

MIB = 1024 * 1024


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(MIB)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_incomplete_blob_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    blobs = await open_blobs(folder)
    whole = new_file_id()
    await blobs.write(whole, pieces(1))
    (folder / f"{new_file_id()}#1").write_bytes(b"half")
    assert await blobs.ids() == {whole}
    assert await (await open_blobs(folder)).ids() == {whole}
    assert names(folder) == [whole]


async def test_folder_is_private_to_its_owner(tmp_path: Path) -> None:
    await open_blobs(tmp_path / "files")
    assert stat.S_IMODE(os.stat(tmp_path / "files").st_mode) == 0o700  # noqa: PTH116


async def test_full_disk_is_reported_and_leaves_no_part_of_the_upload(small_disk: Path) -> None:
    blobs = await open_blobs(small_disk / "files")
    first = new_file_id()
    await blobs.write(first, pieces(1))
    with pytest.raises(LimitError) as full:
        await blobs.write(new_file_id(), pieces(5))
    assert full.value.code is ErrorCode.NODE_DISK_FULL
    assert full.value.hint
    assert names(small_disk / "files") == [first]
    await blobs.remove(first)

    async def has_room() -> bool:
        try:
            await blobs.write(new_file_id(), pieces(1))
        except LimitError:  # the kernel frees the blocks of removed files a moment later
            return False
        return True

    await until(has_room)


async def test_path_that_is_not_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"")
    with pytest.raises(HostError) as refused:
        await open_blobs(tmp_path / "files")
    assert str(tmp_path / "files") in refused.value.message
