"""Decisions of the memory watch: what counts as full, and when to measure again."""

from __future__ import annotations

import os

import pytest

from sandlot.guest.kernels.oom import (
    FILL_RATE_BYTES,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    explained,
    own_bytes,
    pause_s,
    read_meminfo,
    reserve_bytes,
    resident_bytes,
)

MIB = 1 << 20


@pytest.mark.parametrize("text", [b"", b"MemTotal: 1 kB\n", b"MemTotal: x kB\nMemFree: 1 kB\n", b"Else: 1 kB\nMemFree: 1 kB\n"])
def test_text_that_is_not_meminfo_has_no_values(text: bytes) -> None:
    assert read_meminfo(text) is None


@pytest.mark.parametrize("limit, most", [(128, 0.3), (512, 0.15), (1024, 0.12), (8192, 0.04)])
def test_reserve_is_a_small_part_of_the_limit(limit: int, most: float) -> None:
    assert 24 * MIB < reserve_bytes(limit * MIB) < most * limit * MIB


@pytest.mark.parametrize("room", [1, 16, 50, 64, 100, 500, 5000])
@pytest.mark.parametrize("rate", [0.0, FILL_RATE_BYTES / 2, FILL_RATE_BYTES])
def test_next_measurement_comes_before_the_room_is_used_up(room: int, rate: float) -> None:
    pause = pause_s(room * MIB, rate)
    assert MIN_PAUSE_S <= pause <= MAX_PAUSE_S
    if pause > MIN_PAUSE_S:
        assert pause * max(rate, FILL_RATE_BYTES / 2) <= room * MIB / 2


def test_memory_of_a_process_is_measured() -> None:
    assert resident_bytes(1 << 30) == 0
    assert resident_bytes(1) > 0
    assert own_bytes(1 << 30) == 0
    assert 0 < own_bytes(os.getpid()) < resident_bytes(os.getpid())


@pytest.mark.parametrize(
    "limit, peak, others, expected",
    [
        (1024, 512, 0, True),
        (1024, 340, 680, True),  # three processes of a third each
        (1024, 340, 100, False),  # memory was free, so the reason is another one
        (1024, 100, 924, False),  # the OOM killer would have killed a larger process
        (0, 500, 500, False),
    ],
)
def test_memory_explains_the_end_of_large_processes_only(limit: int, peak: int, others: int, *, expected: bool) -> None:
    assert explained(limit * MIB, peak * MIB, others * MIB) == expected
