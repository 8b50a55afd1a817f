"""When somebody must be killed for memory, and how soon it must be looked again."""

from __future__ import annotations

import os

import pytest

from sandlot.guest.kernels.memory import LEAST_S, MOST_S, RATE_BYTES, explained, figures, floor_bytes, own_bytes, pause_s, resident_bytes

MIB = 1 << 20


@pytest.mark.parametrize("text", [b"", b"MemTotal: 1 kB\n", b"MemTotal: x kB\nMemFree: 1 kB\n", b"Else: 1 kB\nMemFree: 1 kB\n"])
def test_what_is_no_meminfo_says_nothing(text: bytes) -> None:
    assert figures(text) is None


@pytest.mark.parametrize("limit, most", [(128, 0.3), (512, 0.15), (1024, 0.12), (8192, 0.04)])
def test_what_must_be_left_is_a_small_part_of_the_limit(limit: int, most: float) -> None:
    assert 24 * MIB < floor_bytes(limit * MIB) < most * limit * MIB


@pytest.mark.parametrize("room", [1, 16, 50, 64, 100, 500, 5000])
@pytest.mark.parametrize("rate", [0.0, RATE_BYTES / 2, RATE_BYTES])
def test_the_next_look_comes_before_the_room_is_used_up(room: int, rate: float) -> None:
    pause = pause_s(room * MIB, rate)
    assert LEAST_S <= pause <= MOST_S
    if pause > LEAST_S:
        assert pause * max(rate, RATE_BYTES / 2) <= room * MIB / 2


def test_what_a_process_has() -> None:
    assert resident_bytes(1 << 30) == 0
    assert resident_bytes(1) > 0
    assert own_bytes(1 << 30) == 0
    assert 0 < own_bytes(os.getpid()) < resident_bytes(os.getpid())


@pytest.mark.parametrize(
    "limit, peak, others, expected",
    [
        (1024, 512, 0, True),
        (1024, 340, 680, True),  # three of a third
        (1024, 340, 100, False),  # there was room: somebody else's doing
        (1024, 100, 924, False),  # the greediest is killed, which had more
        (0, 500, 500, False),
    ],
)
def test_whom_memory_explains(limit: int, peak: int, others: int, *, expected: bool) -> None:
    assert explained(limit * MIB, peak * MIB, others * MIB) == expected
