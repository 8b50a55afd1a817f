"""Volumes on disks in memory: failures leave nothing, and a volume stays mounted while a sandbox sees it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from sandlot.core.ports import SystemClock
from sandlot.core.records.events import EventFeed
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.reservations import OvercommitConfig, Purpose, Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes.manager import VolumeManager
from sandlot.core.volumes.mounter import VolumeMounter
from sandlot.core.volumes.registry import VolumeRegistry
from sandlot.model.access import LOCAL, OwnerId, Principal
from sandlot.model.buffer_budget import BufferBudget, BufferShares
from sandlot.model.errors import ConflictError, HostError, InvalidRequestError, LimitError, UnavailableError
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.ports import HostReading, Resources, VolumeView
from sandlot.model.specs import GIB, MIB, SandboxSpec, TemplateRef, VolumeMount
from sandlot.model.volumes import MIN_SIZE_BYTES
from sandlot.store.store import SqlStore, open_store
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.node import settled
from tests.support.until import until

NODE = NodeId("node")
ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))
SANDBOX, OTHER = (SandboxId(f"sb-node-{letter * 16}") for letter in "ab")
HOST = Resources(memory_bytes=8 * GIB, disk_bytes=16 * GIB, pids=10_000)


class Disks:
    """Disks in memory, which fail on request."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.mounted: list[str] = []
        self.fails: str | None = None
        """Method that raises an error."""

    def _do(self, method: str) -> None:
        if self.fails == method:
            raise OSError(errno.EIO, "the disk broke")

    def max_disk_bytes(self, size_bytes: int) -> int:
        return size_bytes

    def make(self, volume: str, size_bytes: int) -> None:
        assert size_bytes >= MIN_SIZE_BYTES
        self.made.add(volume)
        self._do("make")

    def mount(self, volume: str) -> Path:
        self._do("mount")
        if volume not in self.mounted:
            self.mounted.append(volume)
        return Path("/mounted") / volume

    def image(self, volume: str) -> Path:
        return Path("/images") / volume

    def unmount(self, volume: str) -> None:
        if volume in self.mounted:
            self.mounted.remove(volume)

    def used_bytes(self, volume: str) -> int | None:
        return 77 if volume in self.mounted else None

    def remove(self, volume: str) -> None:
        self._do("remove")
        self.made.discard(volume)

    def ids(self) -> frozenset[str]:
        return frozenset(self.made)


class Rig:
    """A volume manager and the objects that it uses."""

    def __init__(self, store: SqlStore, disks: Disks) -> None:
        self.store, self.disks = store, disks
        self.events = EventFeed(store.events)
        self.registry = SandboxRegistry(SandboxRecorder(store, NODE, SystemClock(), self.events, Metrics()), BufferShares(MIB), SystemClock())
        self.reservations = Reservations(
            lambda: HostReading(total=HOST, free=HOST, sandbox_disk_bytes=0), OvercommitConfig(disk_reserve_bytes=0), SystemClock()
        )
        self.restart()

    def restart(self) -> None:
        """Replace the volume manager by that of another service on the same disks."""
        volumes = VolumeRegistry(self.store.volumes)
        self.mounter = VolumeMounter(volumes, self.disks)
        self.volumes = VolumeManager(
            self.store.volumes,
            self.disks,
            volumes,
            self.mounter,
            NODE,
            SystemClock(),
            self.events,
            reservations=self.reservations,
            registry=self.registry,
        )

    def allocation(self, id_: SandboxId, view: VolumeView = VolumeView.TREE) -> Allocation:
        """Return an allocation of a sandbox that was not started, of a driver that takes volumes in the given form."""
        driver = MemoryDriver()
        driver.volume_view = view
        nothing = Resources(memory_bytes=0, disk_bytes=0, pids=0)
        return Allocation(driver, self.reservations.record(Purpose.SANDBOX, nothing), SystemClock(), id_)

    def add_sandbox(self, id_: SandboxId, mounts: Sequence[VolumeMount]) -> Sandbox:
        """Add a sandbox that has volumes to the registry."""
        spec = SandboxSpec(id=id_, template=TemplateRef(LOCAL, "base"), volumes=tuple(mounts))
        clock = SystemClock()
        sandbox = Sandbox(spec, owner=ALICE.owner, name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)
        self.registry.add(sandbox, asyncio.create_task(asyncio.sleep(0)))
        return sandbox

    async def reserved(self) -> int:
        return (await self.reservations.capacity()).reserved.disk_bytes

    async def event_types(self) -> list[str]:
        return [each.event.type for each in await self.store.events.page(owner=ALICE.owner, sandbox=None, after=0, limit=100)]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_store(tmp_path / "db") as store:
        yield Rig(store, Disks())


async def test_failed_create_leaves_nothing_and_its_name_is_free(rig: Rig) -> None:
    rig.disks.fails = "make"
    with pytest.raises(HostError, match="disk broke"):
        await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    assert (rig.disks.made, list(await rig.store.volumes.list_by_node(NODE)), await rig.reserved(), await rig.event_types()) == (set(), [], 0, [])
    rig.disks.fails = None
    made = await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    assert (await rig.reserved(), await rig.event_types()) == (MIN_SIZE_BYTES, ["volume.created"])
    assert (await rig.volumes.get(ALICE, "data")) == made


async def test_cancelled_create_leaves_a_complete_volume_or_none(rig: Rig) -> None:
    work = asyncio.ensure_future(rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    async def is_listed() -> bool:
        return bool(await rig.volumes.list(ALICE))

    await until(is_listed)
    assert len(rig.disks.made) == 1


async def test_restart_removes_unfinished_volumes(rig: Rig) -> None:
    made = await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    (record,) = await rig.store.volumes.list_by_node(NODE)
    half, stray = "vol-node-bbbbbbbbbbbbbbbb", "vol-node-cccccccccccccccc"
    await rig.store.volumes.save(type(record)(half, NODE, ALICE.owner, "half", MIN_SIZE_BYTES, record.created_at))  # type: ignore[arg-type] # an id
    rig.disks.made |= {half, stray}
    rig.disks.mounted = [made.id]
    rig.restart()
    await rig.volumes.open()
    rig.mounter.unmount_unused()
    await rig.mounter.tasks.wait()
    assert (rig.disks.made, rig.disks.mounted) == ({made.id}, [])
    assert [each.name for each in await rig.volumes.list(ALICE)] == ["data"]
    assert (await rig.volumes.get(ALICE, "data")).used_bytes == 77  # measured by the unmount


async def test_driver_that_takes_images_gets_the_image_of_a_volume_that_is_not_mounted(rig: Rig) -> None:
    made = await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    mounts = rig.volumes.resolve(ALICE, [VolumeMount("data", "/data")])
    before, machine = rig.allocation(SANDBOX), rig.allocation(OTHER, VolumeView.IMAGE)
    await rig.mounter.attach(before, mounts)
    rig.mounter.release(before)

    (attached,) = await rig.mounter.attach(machine, mounts)  # before the unmount has run

    assert (attached.tree, attached.image, rig.disks.mounted) == (None, Path("/images") / made.id, [])


@pytest.mark.parametrize("first,second", [(VolumeView.TREE, VolumeView.IMAGE), (VolumeView.IMAGE, VolumeView.TREE), (VolumeView.IMAGE,) * 2])
async def test_image_of_a_volume_has_one_user(rig: Rig, first: VolumeView, second: VolumeView) -> None:
    await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    mounts = rig.volumes.resolve(ALICE, [VolumeMount("data", "/data")])
    await rig.mounter.attach(rig.allocation(SANDBOX, first), mounts)

    with pytest.raises(ConflictError, match="another sandbox"):
        await rig.mounter.attach(rig.allocation(OTHER, second), mounts)


async def test_volume_stays_mounted_until_the_last_sandbox_releases_it(rig: Rig) -> None:
    made = await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    mounts = rig.volumes.resolve(ALICE, [VolumeMount("data", "/data")])
    assert [mount.volume for mount in mounts] == [made.id]
    sandboxes = [rig.add_sandbox(id_, mounts) for id_ in (SANDBOX, OTHER)]
    one, other = rig.allocation(SANDBOX), rig.allocation(OTHER)
    (first,), (second,) = [await rig.mounter.attach(allocation, mounts) for allocation in (one, other)]
    assert first == second
    assert (first.slot, first.tree, first.path, first.read_only) == (0, Path("/mounted") / made.id, "/data", False)
    await one.release()
    rig.mounter.release(one)
    await rig.mounter.tasks.wait()
    assert rig.disks.mounted == [made.id]
    with pytest.raises(ConflictError, match="2 sandboxes"):
        await rig.volumes.delete(ALICE, "data")
    rig.mounter.release(other)
    woken = rig.allocation(SANDBOX)
    await rig.mounter.attach(woken, mounts)  # before the unmount has run
    await rig.mounter.tasks.wait()
    assert rig.disks.mounted == [made.id]
    await woken.release()
    await rig.mounter.tasks.wait()
    assert rig.disks.mounted == []
    for sandbox in sandboxes:
        sandbox.ended.set()
    await rig.volumes.delete(ALICE, made.id)
    assert (rig.disks.made, await rig.reserved()) == (set(), 0)


async def test_volume_is_attached_while_the_shared_threads_are_busy(rig: Rig) -> None:
    await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    mounts = rig.volumes.resolve(ALICE, [VolumeMount("data", "/data")])
    loop, release = asyncio.get_running_loop(), threading.Event()
    busy = [loop.run_in_executor(None, release.wait) for _ in range(64)]  # twice as many as there are threads at most

    attaching = asyncio.create_task(rig.mounter.attach(allocation := rig.allocation(SANDBOX), mounts))
    try:
        await settled(attaching.done)
    finally:
        release.set()
        await asyncio.gather(attaching, *busy)
    await allocation.release()
    await rig.mounter.tasks.wait()


async def test_failed_mount_names_the_volume(rig: Rig) -> None:
    await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    rig.disks.fails = "mount"
    allocation = rig.allocation(SANDBOX)
    with pytest.raises(HostError, match="'data' cannot be mounted"):
        await rig.mounter.attach(allocation, rig.volumes.resolve(ALICE, [VolumeMount("data", "/data")]))
    await allocation.release()
    await rig.mounter.tasks.wait()


async def test_volume_that_cannot_be_removed_is_not_found_and_stays_reserved(rig: Rig) -> None:
    await rig.volumes.create(ALICE, name="data", size_bytes=MIN_SIZE_BYTES)
    rig.disks.fails = "remove"
    await rig.volumes.delete(ALICE, "data")
    assert (await rig.volumes.list(ALICE), await rig.reserved()) == ([], MIN_SIZE_BYTES)
    rig.disks.fails = None
    rig.restart()
    await rig.volumes.open()
    assert rig.disks.made == set()


async def test_volumes_together_fit_on_the_disk(rig: Rig) -> None:
    with pytest.raises(InvalidRequestError):
        await rig.volumes.create(ALICE, name="huge", size_bytes=HOST.disk_bytes + 1)
    await rig.volumes.create(ALICE, name="large", size_bytes=HOST.disk_bytes - 64 * MIB)
    with pytest.raises((UnavailableError, LimitError)):
        await rig.volumes.create(ALICE, name="more", size_bytes=65 * MIB)
    assert [each.name for each in await rig.volumes.list(ALICE)] == ["large"]
