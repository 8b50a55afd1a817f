"""Reservation of what the service's own files may still take."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.core.records.space import BoundedFiles, RecordSpace
from sandlot.core.resources.reservations import Reservations
from sandlot.model.specs import MIB
from sandlot.server.composition import open_service
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.clock import ManualClock
from tests.support.service import BOUNDLESS
from tests.unit.core.resources.test_reservations import SHARES


@pytest.fixture
def reservations(clock: ManualClock) -> Reservations:
    return Reservations(lambda: BOUNDLESS, SHARES, clock)


async def reserved(reservations: Reservations) -> int:
    return (await reservations.capacity()).reserved.disk_bytes


async def test_rest_of_the_maximum_is_reserved(reservations: Reservations, clock: ManualClock, tmp_path: Path) -> None:
    first, second, missing = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    first.write_bytes(bytes(MIB))
    space = RecordSpace([BoundedFiles((first, second), 4 * MIB), BoundedFiles((missing,), MIB)], reservations, clock)
    await space.update()
    assert await reserved(reservations) == 3 * MIB
    second.write_bytes(bytes(2 * MIB))
    await space.update()
    assert await reserved(reservations) == MIB
    second.write_bytes(bytes(9 * MIB))
    await space.update()
    assert await reserved(reservations) == 0


async def test_service_reserves_its_database(tmp_path: Path, clock: ManualClock) -> None:
    settings = Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", pools=())
    async with open_service(settings, drivers={"gvisor": MemoryDriver()}, clock=clock, read_host=lambda: BOUNDLESS) as service:
        most, before = settings.retention.database_bytes, await reserved(service.internals.reservations)
        assert most - MIB < before < most
