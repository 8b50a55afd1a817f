"""Promise: what was written and synced in a sandbox is not lost or changed when other software fills the disk of the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.filling import MIB, changed, filled, refusal, service_on_small_disk, write, write_while_full
from tests.support.localservice import ISOLATIONS, TEMPLATE, LocalService
from tests.support.saving import fill_up
from tests.support.traces import settle

FILES = 240
LIMITS = {"memory": "256M", "disk": f"{FILES + 80}M"}


@pytest.fixture(scope="module")
def small() -> Iterator[LocalService]:
    with service_on_small_disk(1536 * MIB, {}) as service:
        yield service


def test_confirmed_writes_survive_a_full_disk_of_the_host(small: LocalService) -> None:
    sandboxes = [small.create(TEMPLATE, isolation=isolation, **LIMITS) for isolation in ISOLATIONS]
    confirmed = write_while_full(small, sandboxes, FILES)
    assert [len(files) for files in confirmed] == [FILES, FILES], "a full disk of the host is no error inside"
    assert [changed(sandbox, files) for sandbox, files in zip(sandboxes, confirmed, strict=True)] == [set(), set()]
    for sandbox in sandboxes:
        sandbox.kill()


def test_volume_can_be_written_on_a_full_disk_of_the_host(small: LocalService) -> None:
    volume = small.client.volumes.create("kept", size="128M")
    with small.create(TEMPLATE, volumes={"/data": volume.id}, **LIMITS) as sandbox:
        with filled(small.data_dir):
            confirmed = write(sandbox, 100, folder="/data")
        assert len(confirmed) == 100
        assert changed(sandbox, confirmed, "/data") == set()
    small.client.volumes.delete(volume.id)


async def test_sparse_sandboxes_wait_for_room_on_the_hosts_disk() -> None:
    with service_on_small_disk(1536 * MIB, {"SANDLOT_DISK_RATIO": "4", "SANDLOT_DISK_RESERVE_BYTES": "512M"}) as service:
        sandbox, paused = [service.create(TEMPLATE, **LIMITS) for _ in range(2)]
        paused.pause()
        file = fill_up(service.data_dir, but_bytes=256 * MIB)
        settle(lambda: sandbox.info().state, "paused")
        assert await refusal(service, f"/v1/sandboxes/{sandbox.id}/resume", {}) == (503, "busy")
        file.unlink()
        settle(lambda: sandbox.info().state, "running")
        assert paused.info().state == "paused"
        assert len(write(sandbox, 4)) == 4
