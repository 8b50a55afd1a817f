"""What forks and snapshots are refused for before anything is touched: numbers, names, room. On a driver that cannot write memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.saved.forks import NewFork
from sandlot.core.saved.snapshots import check_name
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, UnavailableError
from sandlot.model.ports import Reading, Resources
from sandlot.model.specs import GIB, Limits
from tests.support.service import BASE, Bench, bench

HAS = Resources(memory_bytes=16 * GIB, disk_bytes=1000 * GIB, pids=1 << 20)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Bench]:
    """A service on a host of 16 GiB."""
    async with bench(tmp_path, read_host=lambda: Reading(has=HAS, free=HAS, held_disk_bytes=0)) as made:
        yield made


@pytest.mark.parametrize("count", [0, -1, 101])
def test_a_number_of_children_that_is_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match="from 1 to 100") as error:
        NewFork(count)
    assert error.value.fields["field"] == "count"


def test_children_are_told_apart_by_their_names() -> None:
    assert NewFork(1, name="child").name_of(1) == "child"
    assert [NewFork(3, name="child").name_of(number) for number in (1, 2, 3)] == ["child-1", "child-2", "child-3"]
    assert NewFork(3).name_of(1) is None


@pytest.mark.parametrize("name", ["", " ", "-a", "a b", "a/b", "x" * 64, "snap-aaaa-aaaaaaaaaaaaaaaa", "snap-mine"])
def test_what_is_no_name_for_a_snapshot_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check_name(name)
    assert error.value.fields["field"] == "name"


@pytest.mark.parametrize("name", ["a", "set-up", "2026.11_22", "x" * 63])
def test_what_is_one_is_taken(name: str) -> None:
    assert check_name(name) == name


async def test_children_that_the_node_cannot_take_are_refused_with_numbers(place: Bench) -> None:
    limits, forks = Limits(memory_bytes=1 * GIB, pids=512), place.service.core.forks
    box = await place.sandboxes.create(replace(BASE, limits=limits), OPERATOR)
    before = (await place.sandboxes.figures()).promised
    with pytest.raises(InvalidRequestError, match="20 of these at once are more than this node can ever hold") as never:
        await forks.fork(box.id, OPERATOR, NewFork(20))
    assert never.value.fields["field"] == "count"
    assert never.value.fields["needed"] > never.value.fields["capacity"]
    count = (HAS.memory_bytes - GIB) // place.driver.takes(limits).memory_bytes  # they would fit, if their parent were not there
    with pytest.raises(UnavailableError) as busy:
        await forks.fork(box.id, OPERATOR, NewFork(count))
    assert busy.value.code is ErrorCode.BUSY
    assert busy.value.fields["needed"] > busy.value.fields["free"]
    assert (await place.sandboxes.figures()).promised == before, "nothing is promised for what was refused"


async def test_a_snapshot_is_no_field_that_is_taken_and_ignored(place: Bench) -> None:
    with pytest.raises(SandlotError):
        await place.sandboxes.create(replace(BASE, snapshot="nothing"), OPERATOR)
