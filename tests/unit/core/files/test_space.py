"""Quota and disk space of stored files: reserved before the first byte, never exceeded together, given back at every end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from sandlot.core.files.space import FORM_BYTES, READ_INTERVAL_S, STEP_BYTES
from sandlot.core.files.store import FileStore
from sandlot.core.records.events import EventFeed
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import READING_MAX_AGE_S, OvercommitConfig, Purpose, Reservations
from sandlot.model.access import OwnerId, Principal, Quota
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import HostReading, Resources
from sandlot.model.specs import GIB, MIB
from sandlot.testing.memory.store import MemoryBlobs, MemoryDatabase, MemoryStore
from tests.support.clock import ManualClock
from tests.support.service import pieces

ALICE, BOB = (Principal(OwnerId(name * 12), name) for name in "ab")
DISK = Resources(memory_bytes=0, disk_bytes=100 * MIB, pids=0)


@dataclass
class Place:
    """A file store on a host with 100 MiB of disk space, all of which can be reserved.

    Args:
        disk: Reads the free disk space of the host.
    """

    database: MemoryDatabase
    reservations: Reservations
    files: FileStore
    clock: ManualClock
    disk: Callable[[], int]

    async def reserve(self, disk_bytes: int) -> None:
        """Reserve disk space as a sandbox does."""
        self.reservations.reserve(Purpose.SANDBOX, replace(DISK, disk_bytes=disk_bytes), await self.reservations.read_host())

    async def reserved(self) -> int:
        return (await self.reservations.capacity()).reserved.disk_bytes

    async def upload(self, size: int, by: Principal = ALICE, *, is_announced: bool = True) -> None:
        await self.files.upload(by, chunks(size), filename="x", announced_bytes=size if is_announced else None)


async def chunks(size: int) -> AsyncIterator[bytes]:
    for begin in range(0, size, MIB):
        yield b"x" * min(MIB, size - begin)


@pytest.fixture
def place(clock: ManualClock) -> Place:
    database = MemoryDatabase()
    store = MemoryStore(database)

    def free() -> int:
        return 100 * MIB - sum(len(blob) for blob in database.blobs.values())

    none = replace(OvercommitConfig(), memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
    reservations = Reservations(lambda: HostReading(DISK, replace(DISK, disk_bytes=free()), 0), none, clock)
    registry = SandboxRegistry(SandboxRecorder(store, new_node_id(), clock, EventFeed(store.events), Metrics()), BufferShares(MIB), clock)
    return Place(database, reservations, FileStore(store.files, MemoryBlobs(database), registry, clock, reservations, max_bytes=GIB), clock, free)


def with_quota(stored_files: int | None = None, stored_file_bytes: int | None = None) -> Principal:
    return replace(ALICE, quota=Quota(stored_files=stored_files, stored_file_bytes=stored_file_bytes))


async def refused(upload: Awaitable[object]) -> LimitError:
    with pytest.raises(LimitError) as error:
        await upload
    return error.value


class unread:  # noqa: N801 - called like `pieces`
    """Content of which no byte may be read."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("the content was read")


async def test_upload_that_would_break_a_reservation_is_refused_before_its_first_byte(place: Place) -> None:
    await place.reserve(60 * MIB)
    error = await refused(place.files.upload(ALICE, unread(), filename="x", announced_bytes=41 * MIB))
    assert (error.code, error.fields["free"]) == (ErrorCode.NODE_DISK_FULL, 40 * MIB)
    await place.upload(40 * MIB)
    assert (await refused(place.files.upload(ALICE, unread(), filename="x", announced_bytes=1))).code is ErrorCode.NODE_DISK_FULL
    assert await place.reserved() == 100 * MIB  # of which 40 MiB are the file, which the host does not show yet
    place.clock.advance(READING_MAX_AGE_S)
    await place.reservations.read_host()
    assert await place.reserved() == 60 * MIB
    assert place.disk() == 60 * MIB


async def test_upload_that_the_node_can_never_store_is_refused(place: Place) -> None:
    assert (await refused(place.files.upload(ALICE, unread(), filename="x", announced_bytes=GIB))).code is ErrorCode.NODE_DISK_FULL


async def test_upload_of_unknown_size_is_refused_before_the_byte_that_would_break_a_reservation(place: Place) -> None:
    await place.reserve(70 * MIB)
    taken = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(60):
            taken += MIB
            yield bytes(MIB)

    error = await refused(place.files.upload(ALICE, content(), filename="x"))
    assert error.code is ErrorCode.NODE_DISK_FULL
    assert taken <= 30 * MIB + MIB
    assert place.database.blobs == {}
    assert await place.reserved() == 70 * MIB + place.reservations.unread_disk_bytes
    place.clock.advance(READING_MAX_AGE_S)
    await place.upload(20 * MIB)


async def test_upload_of_unknown_size_can_use_all_of_the_disk_that_is_not_reserved(place: Place) -> None:
    """What was written is not reserved as well: the file would otherwise count twice."""
    await place.reserve(10 * MIB)
    written = bytearray()
    place.reservations._read_host = lambda: HostReading(DISK, replace(DISK, disk_bytes=100 * MIB - len(written)), 0)  # noqa: SLF001

    async def content() -> AsyncIterator[bytes]:
        for _ in range(80):
            place.clock.advance(READING_MAX_AGE_S)
            yield bytes(MIB)
            written.extend(bytes(MIB))

    await place.files.upload(ALICE, content(), filename="x")


@pytest.mark.parametrize("fault", ["disk", "client", "cancel", "commit"])
async def test_failed_upload_gives_everything_back(place: Place, fault: str) -> None:
    by, started = with_quota(stored_files=1, stored_file_bytes=50 * MIB), asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        started.set()
        if fault == "client":
            raise ConnectionError
        if fault == "cancel":
            await asyncio.Event().wait()

    if fault == "disk":
        place.database.faults.fail_next("blobs.write", LimitError("full", code=ErrorCode.NODE_DISK_FULL))
    if fault == "commit":
        place.database.faults.fail_next("files.add", RuntimeError())
    upload = asyncio.create_task(place.files.upload(by, content(), filename="x", announced_bytes=50 * MIB))
    if fault == "cancel":
        await started.wait()
        assert await place.reserved() == 50 * MIB
        upload.cancel()
    with pytest.raises((LimitError, ConnectionError, asyncio.CancelledError, RuntimeError)):
        await upload
    await place.files.commits.wait()
    assert await place.reserved() == 0
    assert place.database.blobs == {}
    await place.upload(50 * MIB, by)


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("first", [0, 1])
async def test_concurrent_uploads_cannot_exceed_a_quota_together(place: Place, is_announced: bool, first: int) -> None:  # noqa: FBT001
    """With an upload before, the service knows what is in use and does not read it from the store for each of the others."""
    by = with_quota(stored_files=5, stored_file_bytes=20 * MIB)
    for _ in range(first):
        await place.upload(3 * MIB, by, is_announced=is_announced)
    results = await asyncio.gather(*(place.upload(3 * MIB, by, is_announced=is_announced) for _ in range(9)), return_exceptions=True)
    assert {type(result) for result in results} == {type(None), LimitError}
    assert {result.code for result in results if isinstance(result, LimitError)} == {ErrorCode.QUOTA_EXCEEDED}
    files, size_bytes = len(place.database.files), sum(record.size_bytes for record in place.database.files.values())
    assert 1 <= files <= 5
    assert size_bytes <= 20 * MIB
    for _ in range(5 - files):
        await place.upload(3 * MIB, by, is_announced=is_announced)
    error = await refused(place.files.upload(by, unread(), filename="x", announced_bytes=1))
    assert (error.code, error.fields["quota"], error.fields["used"]) == (ErrorCode.QUOTA_EXCEEDED, "stored_files", 5)
    await place.upload(3 * MIB, BOB)


async def test_upload_beyond_the_total_size_is_refused_before_its_first_byte(place: Place) -> None:
    by = with_quota(stored_file_bytes=10 * MIB)
    await place.upload(8 * MIB, by)
    error = await refused(place.files.upload(by, unread(), filename="x", announced_bytes=3 * MIB))
    assert (error.code, error.fields["quota"], error.fields["limit"], error.fields["used"]) == (
        ErrorCode.QUOTA_EXCEEDED,
        "stored_file_bytes",
        10 * MIB,
        8 * MIB,
    )
    await place.upload(2 * MIB, by)
    assert (await refused(place.files.upload(by, unread(), filename="x"))).fields["quota"] == "stored_file_bytes"
    await place.files.delete(by, next(iter(place.database.files)))
    await place.upload(2 * MIB, by)


async def test_store_is_read_only_if_the_quota_could_be_exceeded(place: Place) -> None:
    by = with_quota(stored_files=100, stored_file_bytes=50 * MIB)
    for _ in range(10):
        await place.upload(MIB, by)
    assert place.database.faults.operations["files.totals"] == 1
    place.clock.advance(READ_INTERVAL_S + 1)
    await place.upload(MIB, by)
    assert place.database.faults.operations["files.totals"] == 2
    for id_ in list(place.database.files):
        await place.files.delete(by, id_)
    await place.upload(40 * MIB, by)
    assert place.database.faults.operations["files.totals"] == 3


async def test_only_the_file_in_a_form_counts_in_the_quota(place: Place) -> None:
    by = with_quota(stored_file_bytes=10)
    await place.files.upload(by, pieces(b"x" * 10), filename="x", announced_bytes=FORM_BYTES)
    by = with_quota(stored_file_bytes=20)
    assert (await refused(place.files.upload(by, pieces(b"x" * 11), filename="x", announced_bytes=FORM_BYTES))).code is ErrorCode.QUOTA_EXCEEDED
    await place.files.upload(by, pieces(b"x" * 10), filename="x", announced_bytes=FORM_BYTES)


async def test_file_of_a_false_announcement_is_reserved_as_it_grows(place: Place) -> None:
    await place.reserve(80 * MIB)
    await place.files.upload(ALICE, chunks(12 * MIB), filename="x", announced_bytes=1)
    place.clock.advance(READING_MAX_AGE_S)
    assert (await refused(place.files.upload(ALICE, chunks(2 * STEP_BYTES), filename="x", announced_bytes=1))).code is ErrorCode.NODE_DISK_FULL
    assert len(place.database.blobs) == 1
