"""Tests of the repository of templates: saved values, names, tags, builds that end once, and numbered lines of logs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError
from sandlot.model.ids import NodeId, TemplateId, new_node_id, new_template_id
from sandlot.model.images import Layer
from sandlot.model.repositories import Position, Store
from sandlot.model.specs import GIB, Limits
from sandlot.model.templates import BuildLine, BuildRecord, BuildStatus, BuiltRoot, LogLevel, TemplateRecord, TemplateSettings
from sandlot.testing.stores.harness import ALICE, BOB, HOSTILE_TEXT, NODE, StoreOpener, moment

LAYER = Layer(f"sha256:{'a' * 64}", 1 << 40, "application/vnd.oci.image.layer.v1.tar+gzip", f"sha256:{'b' * 64}")
ROOT = BuiltRoot((LAYER, LAYER), 1 << 41, base="c" * 64, base_name="base")
SETTINGS = TemplateSettings({"K": HOSTILE_TEXT}, HOSTILE_TEXT, "/srv", HOSTILE_TEXT, "true")


def template(name: str = "web", at_s: float = 0, owner: OwnerId = ALICE) -> TemplateRecord:
    """Return the record of a template that was created ``at_s`` seconds after ``BEGINNING``."""
    return TemplateRecord(new_template_id(), owner, name, Limits(), moment(at_s), moment(at_s))


def build(of: TemplateRecord, at_s: float = 0, *, node: NodeId = NODE, status: BuildStatus = BuildStatus.WAITING) -> BuildRecord:
    """Return the record of a build that was requested ``at_s`` seconds after ``BEGINNING``."""
    return BuildRecord(str(uuid.uuid4()), of.id, of.owner, node, status, Limits(memory_bytes=2 * GIB), moment(at_s))


def ready(record: BuildRecord, at_s: float = 9) -> BuildRecord:
    """Return the record of a build as it is when the build has succeeded."""
    return replace(record, status=BuildStatus.READY, ended_at=moment(at_s), settings=SETTINGS, root=ROOT)


class TemplatesSuite:
    """Tests of the repository of templates. Needs a fixture ``harness``."""

    @pytest.fixture
    async def store(self, harness: StoreOpener) -> AsyncIterator[Store]:
        """Open the store for one test, and close the store after the test."""
        async with harness.open() as store:
            yield store

    async def test_template_is_read_as_it_was_added(self, store: Store) -> None:
        record = replace(template(), limits=Limits(0.5, GIB, 2 * GIB, 99), tags={"v1": str(uuid.uuid4())}, updated_at=moment(5))
        await store.templates.add(record)
        assert await store.templates.get(record.id) == record
        assert await store.templates.find(ALICE, "web") == record
        assert await store.templates.get(new_template_id()) is None
        assert await store.templates.find(BOB, "web") is None

    async def test_name_belongs_to_one_template_of_an_owner(self, store: Store) -> None:
        await store.templates.add(template())
        with pytest.raises(ConflictError):
            await store.templates.add(template())
        await store.templates.add(template(owner=BOB))

    async def test_templates_are_listed_newest_first_in_pages(self, store: Store) -> None:
        mine = [template(f"t{number}", at_s) for number, at_s in enumerate((1, 2, 2, 3))]
        theirs = template(at_s=5, owner=BOB)
        for record in (*mine, theirs):
            await store.templates.add(record)
        newest_first = sorted(mine, key=lambda record: (record.created_at, record.id), reverse=True)
        assert list(await store.templates.list(owner=None, before=None, limit=9)) == [theirs, *newest_first]
        first = await store.templates.list(owner=ALICE, before=None, limit=2)
        position = Position(first[-1].created_at, first[-1].id)
        assert [*first, *await store.templates.list(owner=ALICE, before=position, limit=9)] == newest_first

    async def test_tags_are_set_and_removed_one_by_one(self, store: Store) -> None:
        record = template()
        await store.templates.add(record)
        await asyncio.gather(*(store.templates.change_tags(record.id, {f"t{number}": "x"}, at=moment(1)) for number in range(8)))
        changed = await store.templates.change_tags(record.id, {"t0": None, "t1": "y", "none": None}, at=moment(7))
        assert changed == replace(record, tags={"t1": "y", **{f"t{number}": "x" for number in range(2, 8)}}, updated_at=moment(7))
        assert await store.templates.get(record.id) == changed
        assert await store.templates.change_tags(new_template_id(), {"a": "b"}, at=moment(1)) is None

    async def test_build_is_read_as_it_was_saved(self, store: Store) -> None:
        of = template()
        await store.templates.add(of)
        record = replace(build(of), tags=("v1", "prod"))
        assert await store.templates.add_build(record)
        assert await store.templates.get_build(record.id) == record
        running = replace(record, status=BuildStatus.BUILDING, started_at=moment(3), step="12", error=HOSTILE_TEXT)
        assert await store.templates.save_build(running)
        assert await store.templates.get_build(record.id) == running
        assert await store.templates.get_build(str(uuid.uuid4())) is None
        assert not await store.templates.add_build(replace(build(of), template=new_template_id()))

    async def test_ready_build_gives_its_template_limits_and_tags(self, store: Store) -> None:
        of = template()
        await store.templates.add(of)
        await store.templates.change_tags(of.id, {"default": "old", "other": "old"}, at=moment(1))
        record = replace(build(of), tags=("default", "v2"))
        await store.templates.add_build(record)
        assert await store.templates.save_build(ready(record))
        assert await store.templates.get_build(record.id) == ready(record)
        tags = {"default": record.id, "other": "old", "v2": record.id}
        assert await store.templates.get(of.id) == replace(of, limits=record.limits, tags=tags, updated_at=moment(9))

    async def test_failed_build_leaves_its_template_as_it_was(self, store: Store) -> None:
        of = template()
        await store.templates.add(of)
        await store.templates.add_build(record := build(of))
        assert await store.templates.save_build(replace(record, status=BuildStatus.FAILED, error="no", ended_at=moment(9)))
        assert await store.templates.get(of.id) == of

    async def test_build_ends_once(self, store: Store) -> None:
        of = template()
        await store.templates.add(of)
        await store.templates.add_build(record := build(of))
        ends = [ready(record), replace(record, status=BuildStatus.FAILED), replace(record, status=BuildStatus.CANCELLED)]
        done = await asyncio.gather(*(store.templates.save_build(end) for end in ends))
        assert sorted(done) == [False, False, True]
        assert await store.templates.get_build(record.id) == ends[done.index(True)]
        assert not await store.templates.save_build(replace(build(of), id=str(uuid.uuid4())))

    async def test_builds_are_listed_by_template_newest_first(self, store: Store) -> None:
        of, other, theirs = template(), template("other"), template(owner=BOB)
        for each in (of, other, theirs):
            await store.templates.add(each)
        mine = [build(of, at_s) for at_s in (1, 2, 3)]
        for record in (*mine, others := build(other, 4), foreign := build(theirs, 5)):
            await store.templates.add_build(record)
        assert list(await store.templates.list_builds(owner=None, limit=9)) == [foreign, others, *reversed(mine)]
        first = await store.templates.list_builds(owner=ALICE, template=of.id, limit=1)
        position = Position(first[-1].created_at, first[-1].id)
        assert [*first, *await store.templates.list_builds(owner=ALICE, template=of.id, before=position, limit=9)] == mine[::-1]

    async def test_open_and_ready_builds_of_a_node_are_listed_oldest_first(self, store: Store) -> None:
        await store.templates.add(of := template())
        waiting, running = build(of, 2), build(of, 1, status=BuildStatus.BUILDING)
        old, new, failed = ready(build(of, 3)), ready(build(of, 4)), build(of, 5, status=BuildStatus.FAILED)
        for record in (waiting, running, new, old, failed, build(of, node=new_node_id()), ready(build(of, node=new_node_id()))):
            await store.templates.add_build(record)
        assert list(await store.templates.list_open_builds(NODE)) == [running, waiting]
        assert list(await store.templates.list_ready_builds(NODE)) == [old, new]

    async def test_sizes_of_builds_are_summed_by_owner(self, store: Store) -> None:
        for of in (template(), template(owner=BOB)):
            await store.templates.add(of)
            for record in (build(of), ready(build(of)), ready(build(of))):
                await store.templates.add_build(record)
        await store.templates.add(template("unbuilt"))
        assert await store.templates.totals(ALICE) == (2, 2 * ROOT.size_bytes)
        assert await store.templates.totals(OwnerId("0" * 12)) == (0, 0)

    async def test_lines_of_a_log_are_numbered_without_gaps(self, store: Store) -> None:
        await store.templates.add(of := template())
        await store.templates.add_build(record := build(of))
        pair = [BuildLine(moment(1), LogLevel.INFO, HOSTILE_TEXT, "1"), BuildLine(moment(2), LogLevel.ERROR, "", "base")]
        assert all(await asyncio.gather(*(store.templates.add_lines(record.id, pair) for _ in range(6))))
        lines = list(await store.templates.list_lines(record.id, after=0, limit=99))
        assert lines == [replace(line, number=number) for number, line in enumerate(pair * 6, 1)]
        assert list(await store.templates.list_lines(record.id, after=5, limit=2)) == lines[5:7]
        assert await store.templates.add_lines(record.id, [])
        assert not await store.templates.add_lines(str(uuid.uuid4()), pair)

    async def test_deleted_template_leaves_no_builds_and_lines(self, store: Store) -> None:
        of, kept = template(), template("kept")
        builds = [build(of), build(kept), build(kept)]
        for each in (of, kept):
            await store.templates.add(each)
        for record in builds:
            await store.templates.add_build(record)
            await store.templates.add_lines(record.id, [BuildLine(moment(1), LogLevel.WARNING, "w")])
        assert await store.templates.remove(of.id)
        assert not await store.templates.remove(of.id)
        assert not await store.templates.remove(TemplateId("tmpl-"))
        assert await store.templates.remove_build(builds[2].id)
        assert not await store.templates.remove_build(builds[2].id)
        assert list(await store.templates.list_builds(owner=None, limit=9)) == [builds[1]]
        assert [len(await store.templates.list_lines(record.id, after=0, limit=9)) for record in builds] == [0, 1, 0]
