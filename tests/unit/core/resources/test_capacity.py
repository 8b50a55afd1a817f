"""Capacity of a node: reservations never exceed it, and a refusal says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.core.resources.reservations import (
    BUSY_RETRY_AFTER_S,
    MAX_RESERVE,
    MIN_RESERVE,
    OvercommitConfig,
    allocatable,
    check_available,
    check_feasible,
    check_pressure,
    combine,
    host_reserve,
    max_allocatable,
)
from sandlot.model.errors import InvalidRequestError, UnavailableError
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import GIB, MIB

NOTHING = Resources(0, 0, 0)
BARE = OvercommitConfig(memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
"""Everything may be promised."""
HOST = HostReading(total=Resources(8 * GIB, 100 * GIB, 30_000), free=Resources(6 * GIB, 40 * GIB, 29_000), sandbox_disk_bytes=10 * GIB)
ONE = Resources(1 * GIB, 5 * GIB, 1000)

amounts = st.builds(Resources, *[st.integers(0, 50)] * 3)


@given(asked=amounts, others=st.lists(amounts, max_size=5), has=amounts, free=amounts, held=st.integers(0, 50))
def test_reservations_never_exceed_the_allocatable_amount(
    asked: Resources, others: list[Resources], has: Resources, free: Resources, held: int
) -> None:
    reading = HostReading(total=has, free=free, sandbox_disk_bytes=held)
    fits = all(
        getattr(combine(sum, *others, asked), name) <= most or getattr(asked, name) == 0
        for name, most in (("memory_bytes", has.memory_bytes), ("disk_bytes", free.disk_bytes + held), ("pids", has.pids))
    )
    try:
        check_available(asked, others, reading, BARE)
    except InvalidRequestError:
        with pytest.raises(InvalidRequestError):  # whatever else ends, it would not fit
            check_available(asked, [], reading, BARE)
        assert not fits
    except UnavailableError:
        empty = replace(reading, free=replace(free, disk_bytes=max(has.disk_bytes, free.disk_bytes)))
        check_available(asked, [], empty, BARE)  # once others have ended, and nobody else has anything on the disk, it does
        assert not fits
    else:
        assert fits


def test_allocatable_disk_is_free_space_plus_the_disks_of_sandboxes() -> None:
    assert allocatable(HOST, BARE) == Resources(8 * GIB, 50 * GIB, 30_000)


def test_default_reserve_is_a_clamped_twentieth() -> None:
    usual = host_reserve(HOST, OvercommitConfig())
    assert usual == Resources(MIN_RESERVE.memory_bytes, MAX_RESERVE.disk_bytes, 1500)
    assert host_reserve(HOST, OvercommitConfig(memory_reserve_bytes=0, disk_reserve_bytes=1, pids_reserve=2)) == Resources(0, 1, 2)
    huge = replace(HOST, total=Resources(1024 * GIB, 1, 4_194_304))
    assert host_reserve(huge, OvercommitConfig()) == Resources(MAX_RESERVE.memory_bytes, MIN_RESERVE.disk_bytes, MAX_RESERVE.pids)


def test_ratios_apply_after_the_reserve() -> None:
    shares = OvercommitConfig(memory_ratio=0.5, disk_ratio=4, pids_ratio=2, memory_reserve_bytes=GIB, disk_reserve_bytes=10 * GIB, pids_reserve=1000)
    assert allocatable(HOST, shares) == Resources(7 * GIB // 2, 160 * GIB, 58_000)


def test_host_smaller_than_its_reserve_has_no_capacity() -> None:
    tiny = HostReading(total=Resources(256 * MIB, GIB, 100), free=NOTHING, sandbox_disk_bytes=0)
    assert allocatable(tiny, OvercommitConfig()) == NOTHING
    with pytest.raises(InvalidRequestError):
        check_available(ONE, [], tiny, OvercommitConfig())


@pytest.mark.parametrize(
    "name, asked, said",
    [
        ("memory_bytes", replace(ONE, memory_bytes=9 * GIB), "needs 9.0 GiB of memory; all sandboxes of this node together can have 8.0 GiB"),
        ("disk_bytes", replace(ONE, disk_bytes=101 * GIB), "needs 101.0 GiB of disk space; all sandboxes of this node together can have 100.0 GiB"),
        ("pids", replace(ONE, pids=30_001), "needs 30001 tasks; all sandboxes of this node together can have 30000"),
    ],
)
def test_infeasible_amount_is_invalid(name: str, asked: Resources, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refused:
        check_available(asked, [ONE] * 8, HOST, BARE)  # also where the node is full besides
    assert not refused.value.retryable
    assert refused.value.fields["field"] == f"limits.{name}"
    assert refused.value.fields["capacity"] == getattr(max_allocatable(HOST, BARE), name)
    with pytest.raises(InvalidRequestError, match=said):
        check_feasible(asked, HOST, BARE)


def test_amount_that_does_not_fit_now_has_retry_after() -> None:
    check_available(ONE, [ONE] * 7, HOST, BARE)
    with pytest.raises(UnavailableError, match=r"needs 1.0 GiB of memory; 0 MiB of this node's 8.0 GiB are not reserved") as refused:
        check_available(ONE, [ONE] * 8, HOST, BARE)
    assert refused.value.retryable
    assert (refused.value.fields["resource"], refused.value.fields["retry_after_s"]) == ("memory_bytes", BUSY_RETRY_AFTER_S)


def test_disk_filled_by_other_software_is_busy_not_invalid() -> None:
    asked = replace(ONE, disk_bytes=51 * GIB)
    check_feasible(asked, HOST, BARE)
    with pytest.raises(UnavailableError, match=r"needs 51.0 GiB of disk space; other software on the host leaves 50.0 GiB for sandboxes") as refused:
        check_available(asked, [], HOST, BARE)
    assert refused.value.retryable
    check_available(asked, [], replace(HOST, free=replace(HOST.free, disk_bytes=41 * GIB)), BARE)


@pytest.mark.parametrize("name", ["memory_bytes", "disk_bytes", "pids"])
def test_host_under_pressure_refuses_every_request(name: str) -> None:
    floor = getattr(host_reserve(HOST, OvercommitConfig()), name) // 2
    check_pressure(ONE, replace(HOST, free=replace(HOST.free, **{name: floor})), OvercommitConfig())
    with pytest.raises(UnavailableError, match="short of") as refused:
        check_pressure(ONE, replace(HOST, free=replace(HOST.free, **{name: floor - 1})), OvercommitConfig())
    assert refused.value.retryable
    assert refused.value.fields["retry_after_s"] > 0
    check_pressure(ONE, replace(HOST, free=NOTHING), BARE)  # an operator who keeps nothing is not protected
