"""Every store and all blobs of Sandlot, and those in memory, pass the suites that it ships; databases are migrated.

Databases that the suites only read and write are made once: a copy for each test of SQLite, emptied before each test of PostgreSQL.
They are in memory where the machine has room there; what must be synced is tested in tests/unit/store.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Connection, inspect, text

from sandlot.model.errors import HostError, LimitError
from sandlot.model.ids import new_file_id
from sandlot.model.repositories import Store
from sandlot.store import engine, migrations, schema
from sandlot.store.blobs import FolderBlobs, open_blobs
from sandlot.store.keys import SqlKeyRepository
from sandlot.store.sandboxes import SqlSandboxRepository
from sandlot.testing.memory.store import MemoryBlobs, MemoryDatabase, MemoryStore
from sandlot.testing.stores.blobs import chunks_of
from sandlot.testing.stores.harness import SANDLOT_STORE, StoreHarness, StoreOpener, event, every_event, execution, key, sandbox, snapshot
from sandlot.testing.stores.suite import BlobsSuite, DurabilitySuite, StoreSuite, StreamedBlobsSuite
from tests.support.postgres import Cluster, cluster

NEXT = f"{int(schema.HEAD) + 1:04}"
"""A revision that a later version may have."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sandlot-stores-") as name:
        yield Path(name)


async def _migrated(harness: StoreHarness) -> StoreHarness:
    async with harness.open():
        return harness


@pytest.fixture(scope="module")
async def sqlite_template() -> AsyncIterator[Path]:
    """A database file of this version, empty."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sandlot-stores-") as name:
        await _migrated(StoreHarness(SANDLOT_STORE, f"{name}/rows.db"))
        yield Path(name) / "rows.db"


@pytest.fixture(scope="module")
async def postgres_shared(postgres: Cluster) -> StoreHarness:
    """A database of this version; tests share it one after another."""
    return await _migrated(StoreHarness(SANDLOT_STORE, postgres.database()))


class MigrationsSuite:
    """Behaviours of migrations. Needs a fixture ``harness`` whose store was never opened."""

    async def test_the_oldest_revision_is_brought_to_the_newest_with_what_is_in_it(self, harness: StoreHarness) -> None:
        record, made = sandbox(name="old"), key("old")
        async with engine.open_database(_place(harness)) as database:
            await migrations.migrate(database, head="0001")
            await SqlSandboxRepository(database).save(record, event())
            await SqlKeyRepository(database).add(made)
        async with harness.open() as store:
            assert await store.sandboxes.get(record.id) == record
            assert list(await store.keys.list()) == [made]
            taken = snapshot()
            await store.snapshots.save(taken)
            assert await store.snapshots.get(taken.id) == taken

    async def test_the_steps_lead_to_the_tables_that_the_code_has(self, harness: StoreHarness) -> None:
        from alembic.autogenerate import compare_metadata  # noqa: PLC0415 - a third of a second
        from alembic.migration import MigrationContext  # noqa: PLC0415

        def differences(connection: Connection) -> list[object]:
            return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": False}), schema.metadata))

        async with engine.open_database(_place(harness)) as database:
            await migrations.migrate(database)
            assert await database.read(differences) == []

    async def test_failed_migration_changes_nothing_and_can_be_repeated(self, harness: StoreHarness, tmp_path: Path) -> None:
        steps = _steps(tmp_path, 'op.create_table("more", sa.Column("id", sa.Integer))\n    op.execute("DELETE FROM keys")\n    op.execute("no SQL")')
        async with harness.open() as store:
            await store.keys.add(key("kept"))
        async with engine.open_database(_place(harness)) as database:
            with pytest.raises(Exception, match="refused a statement"):
                await migrations.migrate(database, steps, NEXT)
            assert not await database.read(lambda connection: inspect(connection).has_table("more"))
        async with harness.open() as store:  # this version still opens it: nothing was changed
            assert [record.name for record in await store.keys.list()] == ["kept"]
        steps = _steps(tmp_path, 'op.create_table("more", sa.Column("id", sa.Integer))')
        async with engine.open_database(_place(harness)) as database:
            await migrations.migrate(database, steps, NEXT)
            assert await database.read(lambda connection: inspect(connection).has_table("more"))

    async def test_database_of_a_newer_version_is_refused_and_left_unchanged(self, harness: StoreHarness, tmp_path: Path) -> None:
        async with harness.open() as store:
            await store.keys.add(key("kept"))
        async with engine.open_database(_place(harness)) as database:
            await migrations.migrate(database, _steps(tmp_path, 'op.execute("ALTER TABLE keys RENAME COLUMN name TO word")'), NEXT)
        with pytest.raises(HostError, match=rf"newer version of Sandlot \(the database has revision {NEXT}, this version has {schema.HEAD}\)"):
            async with harness.open():
                pass
        async with engine.open_database(_place(harness)) as database:
            assert [row.word for row in await database.rows(text("SELECT word FROM keys"))] == ["kept"]


def _place(harness: StoreHarness) -> Path | str:
    return Path(harness.location) if harness.location.startswith("/") else harness.location


def _steps(folder: Path, second: str) -> Path:
    """A folder of steps with one more than there are."""
    steps = folder / "steps"
    shutil.rmtree(steps, ignore_errors=True)
    shutil.copytree(migrations.STEPS, steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / f"{NEXT}_more.py").write_text(
        f'import sqlalchemy as sa\n\nrevision = "{NEXT}"\ndown_revision = "{schema.HEAD}"\n\n\ndef upgrade(op):\n    {second}\n', encoding="utf-8"
    )
    return steps


EMPTY_ALL_TABLES = "; ".join(f"DELETE FROM {table.name}" for table in reversed(schema.metadata.sorted_tables) if table is not schema.counters)  # noqa: S608
RESET_EVENTS = f"UPDATE counters SET value = 0 WHERE name = '{schema.EVENTS}'"  # noqa: S608 - a constant


class TestSqlite(StoreSuite):
    @pytest.fixture
    def harness(self, sqlite_template: Path, folder: Path) -> StoreHarness:
        return StoreHarness(SANDLOT_STORE, str(shutil.copy(sqlite_template, folder)))


class TestNewSqlite(DurabilitySuite, MigrationsSuite):
    @pytest.fixture
    def harness(self, folder: Path) -> StoreHarness:
        return StoreHarness(SANDLOT_STORE, str(folder / "rows.db"))


class TestPostgresql(StoreSuite):
    @pytest.fixture
    def harness(self, postgres: Cluster, postgres_shared: StoreHarness) -> StoreHarness:
        postgres.query(f"{EMPTY_ALL_TABLES}; {RESET_EVENTS}", urlsplit(postgres_shared.location).path[1:])
        return postgres_shared


class TestNewPostgresql(DurabilitySuite, MigrationsSuite):
    @pytest.fixture
    def harness(self, postgres: Cluster) -> StoreHarness:
        return StoreHarness(SANDLOT_STORE, postgres.database())


class TestMemory(StoreSuite):
    @pytest.fixture
    def harness(self) -> StoreOpener:
        return _MemoryOpener()


class _MemoryOpener:
    def __init__(self) -> None:
        self.database = MemoryDatabase()

    def open(self) -> AbstractAsyncContextManager[Store]:
        return MemoryStore(self.database)


class TestFolder(StreamedBlobsSuite):
    @pytest.fixture
    async def blobs(self, folder: Path) -> FolderBlobs:
        return await open_blobs(folder / "files")


class TestMemoryBlobs(BlobsSuite):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()


# Faults on demand ---------------------------------------------------------------------------------------------------------


async def test_memory_store_fails_on_demand_and_changes_nothing() -> None:
    async with MemoryStore() as store:
        faults = store.database.faults
        faults.fail_next("executions.save", HostError("broken"))
        with pytest.raises(HostError, match="broken"):
            await store.executions.save([execution()])
        assert await store.executions.page(owner=None, sandbox=None, before=None, limit=9) == []
        await store.executions.save([execution()])
        assert faults.operations["executions.save"] == 2


async def test_full_disk_of_a_memory_store_refuses_writes_only() -> None:
    database = MemoryDatabase()
    blobs, record = MemoryBlobs(database), key("name")
    async with MemoryStore(database) as store:
        await store.keys.add(record)
        database.faults.disk_full = True
        for write in (store.keys.revoke("name", record.created_at), store.events.add([event()]), store.sandboxes.save(sandbox(), event())):
            with pytest.raises(LimitError, match="disk is full"):
                await write
        with pytest.raises(LimitError, match="full"):
            await blobs.write(new_file_id(), chunks_of([b"x"]))
        assert list(await store.keys.list()) == [record]
        assert await every_event(store) == []
        assert await blobs.ids() == frozenset()


async def test_held_operation_waits_and_is_complete_when_its_caller_is_cancelled() -> None:
    async with MemoryStore() as store:
        hold, record = store.database.faults.hold("sandboxes.save"), sandbox()
        task = asyncio.create_task(store.sandboxes.save(record))
        await hold.reached()
        assert await store.sandboxes.get(record.id) is None
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        hold.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.sandboxes.get(record.id) == record


async def test_closed_memory_store_refuses_operations() -> None:
    async with MemoryStore() as store:
        pass
    with pytest.raises(RuntimeError, match=r"events\.last_sequence was called after the store was closed"):
        await store.events.last_sequence()
