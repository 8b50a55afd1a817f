"""A service whose disk is full: what needs disk space is refused for want of capacity, leaves nothing, and works again when there is room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.filling import MIB, filled, refusal, service_on_small_disk
from tests.support.localservice import ISOLATIONS, TEMPLATE
from tests.support.saving import fill_up
from tests.support.traces import settle

BODY = {"template": TEMPLATE, "limits": {"memory_bytes": 256 * MIB, "disk_bytes": 256 * MIB}}
SMALL: Mapping[str, Any] = {"memory": "256M", "disk": "256M"}
"""The spec of the pools in ``test_pools.py``, whose template snapshot is used."""


@pytest.mark.slow
async def test_first_create_on_a_full_disk_is_busy_and_leaves_nothing() -> None:
    with service_on_small_disk(1536 * MIB, {}) as service:
        with filled(service.data_dir):
            for isolation in ISOLATIONS:
                assert await refusal(service, "/v1/sandboxes", {**BODY, "isolation": isolation}) == (503, "busy")
            assert service.refs() == frozenset()
            assert service.client.sandboxes.list() == []
        for isolation in ISOLATIONS:
            with service.create(TEMPLATE, isolation=isolation, **SMALL) as sandbox:
                assert sandbox.commands.run("echo ok").stdout == "ok\n"


def test_pool_on_a_full_disk_says_why_it_is_empty_and_refills_when_there_is_room() -> None:
    with service_on_small_disk(2048 * MIB, {}) as service:
        pools = service.client.pools
        pool = pools.create(TEMPLATE, warm=1, max=1, **SMALL)
        settle(lambda: pools.get(pool.id).ready, 1)
        file = fill_up(service.data_dir, but_bytes=16 * MIB)  # for the database
        with service.create(TEMPLATE, **SMALL):
            refs = service.refs()
            settle(lambda: "disk" in pools.get(pool.id).error, True)
            assert pools.get(pool.id).ready == 0
            assert service.refs() == refs
            file.unlink()
            settle(lambda: (pools.get(pool.id).ready, pools.get(pool.id).error), (1, ""))
        pools.delete(pool.id)
