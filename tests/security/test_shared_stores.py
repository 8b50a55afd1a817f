"""Promise: what one tenant stores takes nothing from another: no log entry, no event, no disk space that is reserved, and no room for files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Retention
from sandlot.model.access import Quota
from sandlot.model.ports import HostReading
from sandlot.model.records import KeyChange
from sandlot.server.composition import RunningService, open_service, own_host
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.node import MemoryTemplates, NoPackages
from tests.support.service import BOUNDLESS, serving
from tests.support.tenants import tenants

NEW = {"template": "base", "limits": {"disk_bytes": 100 << 20}, "timeout": 600}
DISK_BYTES = 512 << 20
RESERVE_BYTES = 64 << 20


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of ``DISK_BYTES``."""
    image, folder = tmp_path / "image", tmp_path / "small"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


async def create(http: httpx.AsyncClient) -> str:
    response = await http.post("/v1/sandboxes", json=NEW)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def upload(http: httpx.AsyncClient, size: int) -> httpx.Response:
    return await http.post("/v1/files", params={"filename": "x"}, content=b"x" * size)


async def test_flood_of_executions_removes_no_record_of_another_tenant(tmp_path: Path) -> None:
    driver, settings = MemoryDriver(), Settings(executions_keep=100, events_keep=100, sandboxes_keep=100)
    async with serving(tmp_path, driver, settings) as service, tenants(service) as two:
        owner, stranger = await create(two.owner), await create(two.stranger)
        for number in range(30):
            assert (await two.owner.post(f"/v1/sandboxes/{owner}/processes", json={"command": f"echo {number}"})).status_code == 200
        before = (await two.owner.get("/v1/executions", params={"limit": 200})).json()["executions"]
        for _ in range(150):
            assert (await two.stranger.post(f"/v1/sandboxes/{stranger}/processes", json={"command": "echo flood"})).status_code == 200
            await two.stranger.post(f"/v1/sandboxes/{stranger}/pause")
            await two.stranger.post(f"/v1/sandboxes/{stranger}/resume")
        events = (await two.owner.get("/v1/events")).json()["events"]
        await service.internals.execution_log.writer.flush()
        await Retention(service.store, settings.retention, service.api_keys.quota_of, service.internals.clock, Metrics()).remove_old()

        assert len(before) == 30
        assert (await two.owner.get("/v1/executions", params={"limit": 200})).json()["executions"] == before
        assert (await two.owner.get("/v1/events")).json()["events"] == events
        assert len((await two.stranger.get("/v1/executions", params={"limit": 200})).json()["executions"]) == 70


async def test_uploads_of_a_tenant_end_at_its_quota(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryDriver()) as service, tenants(service) as two:
        await _restrict(service, "stranger", Quota(stored_files=3, stored_file_bytes=5 << 20))
        for size in (2 << 20, 2 << 20):
            assert (await upload(two.stranger, size)).status_code == 201
        for size, quota in ((2 << 20, "stored_file_bytes"), (1 << 20, None), (0, "stored_files")):
            response = await upload(two.stranger, size)
            assert (response.status_code, response.json().get("fields", {}).get("quota")) == (429 if quota else 201, quota), response.text
        assert (await upload(two.owner, 6 << 20)).status_code == 201


async def test_uploads_that_fill_the_disk_take_no_space_that_another_tenant_has_reserved(small_folder: Path) -> None:
    """The attacker has no quota. The disk is real, and its free space is what the service measures."""
    few = Settings(events_keep=100, sandboxes_keep=100, executions_max_bytes=16 << 20, disk_reserve_bytes=RESERVE_BYTES, pools=())
    settings = replace(few, data_dir=small_folder / "data", cache_dir=small_folder / "cache")
    host, drivers = own_host(settings), {"gvisor": MemoryDriver()}

    def read_host() -> HostReading:
        return replace(BOUNDLESS, total=replace(BOUNDLESS.total, disk_bytes=DISK_BYTES), free=replace(BOUNDLESS.free, disk_bytes=free_bytes()))

    def free_bytes() -> int:
        return host.read().free.disk_bytes

    async with (
        open_service(settings, drivers=drivers, templates=MemoryTemplates(), packages=NoPackages(), read_host=read_host) as service,
        tenants(service) as two,
    ):
        await _restrict(service, "stranger", Quota(stored_files=None, stored_file_bytes=None))
        await create(two.owner)
        kept = await upload(two.owner, 10 << 20)
        statuses = [(await upload(two.stranger, 50 << 20)).status_code for _ in range(12)]
        assert set(statuses) == {201, 507}
        free = free_bytes()
        assert free >= RESERVE_BYTES + (100 << 20), "the disk of the owner's sandbox is still free"
        assert [path for path in (settings.files).iterdir() if "#" in path.name] == []

        (small_folder / "other software").write_bytes(bytes(free - (4 << 20)))
        service.internals.reservations._latest = None  # noqa: SLF001 - a second has passed
        response = await upload(two.owner, 1 << 20)
        assert (response.status_code, response.json()["code"]) == (507, "node_disk_full")
        content = await two.owner.get(f"/v1/files/{kept.json()['id']}/content")
        assert content.content == b"x" * (10 << 20)


async def _restrict(service: RunningService, name: str, quota: Quota) -> None:
    await service.api_keys.update(name, KeyChange(quota=quota))
