"""Every store that Sandlot has, through the suite that it ships; and from every revision to the newest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

pytest.register_assert_rewrite("sandlot.testing")

from sandlot.model.errors import HostError  # noqa: E402 - rewritten first
from sandlot.store import engine, migrations, schema  # noqa: E402
from sandlot.store.blobs import FolderBlobs, open_blobs  # noqa: E402
from sandlot.store.keys import Keys  # noqa: E402
from sandlot.store.sandboxes import Sandboxes  # noqa: E402
from sandlot.testing.stores.bench import OURS, StoreBench, event, key, sandbox, snapshot  # noqa: E402
from sandlot.testing.stores.suite import BlobsSuite, StoreSuite  # noqa: E402
from tests.support.postgres import Cluster, cluster  # noqa: E402

NEXT = f"{int(schema.HEAD) + 1:04}"
"""A revision that a later version may have."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


class MigrationsSuite:
    """From what an earlier version left to what this one expects."""

    @pytest.mark.parametrize("revision", [f"{number:04}" for number in range(1, int(schema.HEAD))])
    async def test_every_revision_is_brought_to_the_newest_with_what_is_in_it(self, bench: StoreBench, revision: str) -> None:
        record, made = sandbox(name="old"), key("old")
        async with engine.opened(_place(bench)) as database:
            await migrations.migrate(database, head=revision)
            await Sandboxes(database).save(record, event())
            await Keys(database).add(made)
        async with bench.open() as store:
            assert await store.sandboxes.get(record.id) == record
            assert list(await store.keys.all()) == [made]
            taken = snapshot()
            await store.snapshots.save(taken)
            assert await store.snapshots.get(taken.id) == taken

    async def test_the_steps_lead_to_the_tables_that_the_code_has(self, bench: StoreBench) -> None:
        from alembic.autogenerate import compare_metadata  # noqa: PLC0415 - a third of a second
        from alembic.migration import MigrationContext  # noqa: PLC0415

        def differences(connection: Connection) -> list[object]:
            return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": False}), schema.metadata))

        async with engine.opened(_place(bench)) as database:
            await migrations.migrate(database)
            assert await database.read(differences) == []

    async def test_a_step_that_fails_leaves_nothing_of_itself_and_can_be_tried_again(self, bench: StoreBench, tmp_path: Path) -> None:
        steps = _steps(tmp_path, 'op.create_table("more", sa.Column("id", sa.Integer))\n    op.execute("DELETE FROM keys")\n    op.execute("no SQL")')
        async with bench.open() as store:
            await store.keys.add(key("kept"))
        async with engine.opened(_place(bench)) as database:
            with pytest.raises(Exception, match="refused a statement"):
                await migrations.migrate(database, steps, NEXT)
            assert not await database.read(lambda connection: inspect(connection).has_table("more"))
        async with bench.open() as store:  # this version still opens it: nothing was changed
            assert [record.name for record in await store.keys.all()] == ["kept"]
        steps = _steps(tmp_path, 'op.create_table("more", sa.Column("id", sa.Integer))')
        async with engine.opened(_place(bench)) as database:
            await migrations.migrate(database, steps, NEXT)
            assert await database.read(lambda connection: inspect(connection).has_table("more"))

    async def test_what_a_newer_version_wrote_is_refused_and_left_alone(self, bench: StoreBench, tmp_path: Path) -> None:
        async with bench.open() as store:
            await store.keys.add(key("kept"))
        async with engine.opened(_place(bench)) as database:
            await migrations.migrate(database, _steps(tmp_path, 'op.execute("ALTER TABLE keys RENAME COLUMN name TO word")'), NEXT)
        with pytest.raises(HostError, match=rf"newer version of Sandlot \(its revision is {NEXT}, this version's {schema.HEAD}\)"):
            async with bench.open():
                pass
        async with engine.opened(_place(bench)) as database:
            assert [row.word for row in await database.rows(text("SELECT word FROM keys"))] == ["kept"]


def _place(bench: StoreBench) -> Path | str:
    return Path(bench.where) if bench.where.startswith("/") else bench.where


def _steps(folder: Path, second: str) -> Path:
    """A folder of steps with one more than there are."""
    steps = folder / "steps"
    shutil.rmtree(steps, ignore_errors=True)
    shutil.copytree(migrations.STEPS, steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / f"{NEXT}_more.py").write_text(
        f'import sqlalchemy as sa\n\nrevision = "{NEXT}"\ndown_revision = "{schema.HEAD}"\n\n\ndef upgrade(op):\n    {second}\n', encoding="utf-8"
    )
    return steps


class TestSqlite(StoreSuite, MigrationsSuite):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> StoreBench:
        return StoreBench(OURS, str(tmp_path / "rows.db"))


class TestPostgresql(StoreSuite, MigrationsSuite):
    @pytest.fixture
    def bench(self, postgres: Cluster) -> StoreBench:
        return StoreBench(OURS, postgres.database())


class TestFolder(BlobsSuite):
    @pytest.fixture
    async def blobs(self, tmp_path: Path) -> FolderBlobs:
        return await open_blobs(tmp_path / "files")
