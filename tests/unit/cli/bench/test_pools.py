"""Pools as a run needs them: looked at anew each time, and set back to what they were, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandlot.cli.bench import pools
from sandlot.cli.bench.rig import CannotError, Rig
from sandlot.model.specs import Limits
from sandlot.sdk import PoolInfo

if TYPE_CHECKING:
    from sandlot.cli.bench.natives import Natives
    from sandlot.sdk import AsyncClient

OWN = PoolInfo(id="pool-own", template="base", isolation="gvisor", limits=Limits(), warm=1, max=4, blank=2)


class Service:
    """Keeps pools as a service does; each look finds one more in them, up to what they are to have, and a claim takes all."""

    def __init__(self, *there: PoolInfo) -> None:
        self.there = {info.id: info for info in there}
        self.looks = 0

    @property
    def pools(self) -> Service:
        return self

    async def list(self) -> list[PoolInfo]:
        return [*self.there.values()]

    async def get(self, pool: str) -> PoolInfo:
        self.looks += 1
        now = self.there[pool]
        self.there[pool] = now = replace(now, ready=min(now.warm, now.ready + 1))
        return now

    async def create(self, template: str, **sizes: Any) -> PoolInfo:  # noqa: ANN401 - numbers and words
        limits = Limits(disk_bytes=sizes.pop("disk"), pids=sizes.pop("pids"))
        self.there["pool-new"] = PoolInfo(id="pool-new", template=template, limits=limits, **sizes)
        return self.there["pool-new"]

    async def set(self, pool: str, **sizes: int) -> PoolInfo:
        self.there[pool] = replace(self.there[pool], **sizes)  # type: ignore[arg-type] # sizes are numbers
        return self.there[pool]

    async def remove(self, pool: str) -> None:
        del self.there[pool]

    def claim(self) -> None:
        self.there = {id_: replace(info, ready=0) for id_, info in self.there.items()}


def rig(service: Service) -> Rig:
    return Rig(cast("AsyncClient", service), cast("Natives", None), label="test", isolation="gvisor")


async def test_before_each_claim_it_is_looked_whether_it_is_full_again() -> None:
    service = Service()
    async with pools.filled(rig(service), "base", 3) as pool:
        assert service.there["pool-new"].ready == 3
        service.claim()
        await pool.ready(3)
        assert service.there["pool-new"].ready == 3
    assert service.there == {}


async def test_a_pool_that_was_there_is_what_it_was_also_where_the_body_fails() -> None:
    service = Service(OWN)
    used = rig(service)

    async def fails() -> None:
        async with pools.filled(used, "base", 3):
            assert (service.there[OWN.id].warm, service.there[OWN.id].max, service.there[OWN.id].blank) == (3, 3, 0)
            raise CannotError("a cell failed")

    with pytest.raises(CannotError):
        await fails()
    assert replace(service.there[OWN.id], ready=0) == OWN
    assert used.pools == {}


async def test_what_an_interrupt_left_is_set_back_in_the_end() -> None:
    service = Service(OWN)
    used = rig(service)
    used.pools = {OWN.id: OWN, "pool-gone": None}
    await service.set(OWN.id, warm=20, max=20)

    await pools.restored(used, OWN.id)
    assert service.there[OWN.id] == OWN
    assert used.pools == {"pool-gone": None}


async def test_one_that_is_not_filled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(replace(OWN, error="the disk is full"))
    monkeypatch.setattr(pools, "PATIENCE_S", 0.01)
    with pytest.raises(CannotError, match=r"had not 9 sandboxes within .* the disk is full"):
        async with pools.filled(rig(service), "base", 2) as pool:
            await pool.ready(9)
