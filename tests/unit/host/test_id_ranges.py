"""Ranges of ids: each is taken by one sandbox, stale ones are taken over, and all services share them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from sandlot.host import id_ranges
from sandlot.host.id_ranges import FIRST_ID, IDS, RANGES, IdRanges
from sandlot.model.errors import ErrorCode, UnavailableError


def alive(*names: str) -> set[str]:
    return set(names)


def test_owners_never_share_a_range_and_keep_theirs(tmp_path: Path) -> None:
    ranges, live = IdRanges(tmp_path), alive("/a", "/b")
    first = ranges.take("/a", live.__contains__, start=7)
    assert first == FIRST_ID + 7 * IDS
    assert ranges.take("/b", live.__contains__, start=7) == FIRST_ID + 8 * IDS
    assert ranges.take("/a", live.__contains__, start=100) == first
    assert ranges.owners() == {"/a", "/b"}


def test_every_range_is_between_systemds_and_the_sign_bit() -> None:
    assert FIRST_ID > 0x6FFFFFFF
    assert FIRST_ID + RANGES * IDS - 1 == 0x7FFDFFFF


def test_every_version_of_the_service_writes_ranges_to_the_same_folder() -> None:
    assert str(id_ranges.FOLDER) == "/run/sandlot/ids"


def test_released_range_is_free_and_release_is_idempotent(tmp_path: Path) -> None:
    ranges = IdRanges(tmp_path)
    ranges.take("/a", lambda _: True)
    ranges.release("/a")
    ranges.release("/a")
    assert ranges.owners() == set()
    assert ranges.take("/b", lambda _: True) == FIRST_ID


def test_range_of_a_dead_owner_is_taken_over(tmp_path: Path) -> None:
    ranges = IdRanges(tmp_path)
    ranges.take("/dead", lambda _: True)
    assert ranges.take("/b", lambda name: name != "/dead") == FIRST_ID
    assert ranges.owners() == {"/b"}


def test_busy_is_raised_when_all_ranges_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_ranges, "RANGES", 3)
    ranges = IdRanges(tmp_path)
    assert [ranges.take(f"/{name}", lambda _: True, start=2) for name in "abc"] == [FIRST_ID + number * IDS for number in (2, 0, 1)]
    with pytest.raises(UnavailableError) as refused:
        ranges.take("/d", lambda _: True)
    assert refused.value.code is ErrorCode.BUSY
    assert refused.value.retryable
    assert "retry_after_s" in refused.value.fields


def take_many(folder: Path, name: str, count: int) -> list[int]:
    ranges = IdRanges(folder)
    return [ranges.take(f"/{name}-{number}", lambda _: True) for number in range(count)]


def test_concurrent_allocations_get_different_ids(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        taken = pool.starmap(take_many, [(tmp_path, name, 25) for name in "abcd"])
    assert len({first for each in taken for first in each}) == 100
