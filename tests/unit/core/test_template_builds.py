"""Templates of users and their builds: who sees them, names, tags and quotas, builds that end once, and logs that are followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandlot.core import template_builds as module
from sandlot.core.template_builds import TemplateBuilds
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.ids import NodeId
from sandlot.model.repositories import Position
from sandlot.model.specs import GIB, Limits
from sandlot.model.templates import BuildLine, BuildRecord, BuildStatus, BuiltRoot, LogLevel, TemplateSettings
from sandlot.testing.memory.store import MemoryDatabase, MemoryStore
from tests.support.clock import ManualClock
from tests.support.until import until

ALICE = Principal(OwnerId("a11ce0a11ce0"), "alice", quota=Quota(templates=2, template_bytes=100))
BOB = Principal(OwnerId("b0bb0bb0bb0b"), "bob")
ROOT = BuiltRoot((), 60)
SETTINGS = TemplateSettings({"A": "b"}, start_command="serve")
LARGE = Limits(memory_bytes=4 * GIB)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def service(clock: ManualClock) -> AsyncIterator[TemplateBuilds]:
    async with MemoryStore(MemoryDatabase()) as store:
        yield TemplateBuilds(node=NodeId("node"), templates=store.templates, builtin=frozenset({"base"}), clock=clock)


def line(text: str) -> BuildLine:
    """Return a line of a log."""
    return BuildLine(ManualClock().now(), LogLevel.INFO, text, "1")


async def built(service: TemplateBuilds, name: str = "web", principal: Principal = ALICE, tags: tuple[str, ...] = ()) -> BuildRecord:
    """Request a build and let it succeed."""
    _, build = await service.request(principal, name, tags=tags)
    done = await service.finish(build, ROOT, SETTINGS)
    assert done is not None
    return done


async def test_number_of_builds_that_have_not_begun_is_limited(service: TemplateBuilds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    builds = await asyncio.gather(*(service.request(ALICE, "web") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(each, LimitError) for each in builds) == 2
    await service.request(BOB, "web")
    waiting = (await service.list_builds(ALICE)).items
    assert len(waiting) == 3
    await service.begin(waiting[0])
    await service.cancel(waiting[1])
    for _ in range(2):
        await service.request(ALICE, "web")
    with pytest.raises(LimitError, match="have not begun"):
        await service.request(ALICE, "web")


async def test_build_can_be_the_only_one_of_its_template(service: TemplateBuilds) -> None:
    requested = await asyncio.gather(*(service.request(ALICE, "web", alone=True) for _ in range(3)), return_exceptions=True)
    ((_, build),) = [each for each in requested if not isinstance(each, BaseException)]
    assert [each.fields["build"] for each in requested if isinstance(each, ConflictError)] == [build.id] * 2
    await service.request(ALICE, "other", alone=True)
    await service.cancel(build)
    await service.request(ALICE, "web", alone=True)


async def test_strangers_see_no_templates_and_builds(service: TemplateBuilds) -> None:
    record, build = await service.request(ALICE, "web")
    for work in (
        service.get(BOB, record.id),
        service.get(BOB, "web"),
        service.delete(BOB, record.id),
        service.set_tags(BOB, record.id, {}),
        service.list_builds(BOB, template=record.id),
        service.get(ALICE, "tmpl-aaaaaaaaaaaaaaaa"),
        service.get(ALICE, "../web"),
    ):
        with pytest.raises(NotFoundError) as missing:
            await work
        assert missing.value.code is ErrorCode.TEMPLATE_NOT_FOUND
    other, _ = await service.request(ALICE, "other")
    for no_build in (
        service.get_build(BOB, build.id),
        service.lines(BOB, build.id),
        service.follow_lines(BOB, build.id),
        service.get_build(ALICE, build.id, other.id),
        service.get_build(ALICE, "x" * 999),
    ):
        with pytest.raises(NotFoundError) as missing:
            await no_build
        assert missing.value.code is ErrorCode.BUILD_NOT_FOUND
    assert not (await service.list(BOB)).items
    assert not (await service.list_builds(BOB)).items
    assert (await service.list(OPERATOR)).items == (await service.list(ALICE)).items
    assert await service.get(OPERATOR, record.id) == await service.get(ALICE, "web") == record


async def test_request_makes_a_template_once_and_a_build_each_time(service: TemplateBuilds) -> None:
    first, one = await service.request(ALICE, "web", limits=LARGE)
    second, two = await service.request(ALICE, "web", tags=("v1", "v1", "prod"))
    assert first == second
    assert (one.status, one.tags, one.limits) == (BuildStatus.WAITING, ("default",), LARGE)
    assert (two.tags, two.limits) == (("v1", "prod"), LARGE)
    assert await service.open_builds() == sorted([one, two], key=lambda build: build.id)
    theirs, _ = await service.request(BOB, "web")
    assert theirs.id != first.id


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/b", "a:b", "../a", "é", "a" * 129, "tmpl-aaaaaaaaaaaaaaaa"])
async def test_invalid_name_is_refused(service: TemplateBuilds, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="not the name of a template"):
        await service.request(ALICE, name)


async def test_name_of_a_builtin_template_is_refused_to_the_operator_only(service: TemplateBuilds) -> None:
    with pytest.raises(ConflictError, match="part of Sandlot"):
        await service.request(OPERATOR, "base")
    await service.request(ALICE, "base")


async def test_quotas_of_templates_and_bytes(service: TemplateBuilds) -> None:
    await built(service)
    await service.request(ALICE, "second")
    with pytest.raises(LimitError, match="has 2 templates; its quota is 2") as refused:
        await service.request(ALICE, "third")
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    await built(service)  # a template that exists may be built again while bytes are left
    with pytest.raises(LimitError) as full:
        await service.request(ALICE, "web")
    assert full.value.fields["quota"] == "template_bytes"
    assert await service.request(BOB, "web")


async def test_snapshot_of_a_build_counts_against_the_quota(service: TemplateBuilds) -> None:
    _, build = await service.request(ALICE, "web")
    done = await service.finish(build, ROOT, SETTINGS, snapshot_bytes=40)
    assert done is not None
    assert done.size_bytes == 100
    with pytest.raises(LimitError) as full:
        await service.request(ALICE, "web")
    assert full.value.fields["quota"] == "template_bytes"


async def test_ready_build_gives_its_template_tags_and_limits(service: TemplateBuilds) -> None:
    record, build = await service.request(ALICE, "web", limits=LARGE, tags=("default", "v1"))
    running = await service.begin(build)
    assert running is not None
    assert running.status is BuildStatus.BUILDING
    stepped = await service.step(running, "3")
    assert stepped is not None
    done = await service.finish(stepped, ROOT, SETTINGS)
    assert done is not None
    assert (done.status, done.step, done.root, done.settings) == (BuildStatus.READY, "", ROOT, SETTINGS)
    assert await service.get_build(ALICE, build.id, "web") == done
    template = await service.get(ALICE, record.id)
    assert (template.limits, template.tags) == (LARGE, {"default": build.id, "v1": build.id})
    assert await service.ready_builds() == [done]
    assert await service.fail(running, HostError("no")) is None  # it has ended
    assert await service.get_build(ALICE, build.id) == done


async def test_failed_build_says_why_and_leaves_the_template(service: TemplateBuilds) -> None:
    ready = await built(service)
    _, build = await service.request(ALICE, "web")
    failed = await service.fail(build, HostError("exit code 1", hint="Look at the log."), "2")
    assert failed is not None
    assert (failed.status, failed.step, failed.error) == (BuildStatus.FAILED, "2", "exit code 1 Look at the log.")
    assert (await service.get(ALICE, "web")).tags == {"default": ready.id}
    assert await service.cancel(build) is None


async def test_tags_name_ready_builds_of_the_template(service: TemplateBuilds) -> None:
    one, two, other = await built(service), await built(service), await built(service, "other", BOB)
    tagged = await service.set_tags(ALICE, "web", {"old": one.id, "default": None})
    assert tagged.tags == {"old": one.id}
    assert (await service.set_tags(ALICE, "web", {"old": None, "new": two.id})).tags == {"new": two.id}
    _, waiting = await service.request(BOB, "web")
    for build in (other.id, waiting.id, "none"):
        with pytest.raises(NotFoundError, match="There is no build"):
            await service.set_tags(ALICE, "web", {"x": build})
    with pytest.raises(InvalidRequestError, match="is not a tag"):
        await service.set_tags(ALICE, "web", {"no tag": two.id})
    with pytest.raises(InvalidRequestError, match="can have 100 tags"):
        await service.set_tags(ALICE, "web", {f"t{number}": two.id for number in range(101)})


async def test_old_builds_without_a_tag_are_deleted(service: TemplateBuilds, clock: ManualClock) -> None:
    generous = replace(ALICE, quota=Quota())
    builds = []
    for number in range(6):
        builds.append(await built(service, principal=generous, tags=("first",) if number == 0 else ()))
        clock.advance(1)
    left = [build.id for build in (await service.list_builds(ALICE, template="web")).items]
    assert left == [builds[5].id, builds[4].id, builds[3].id, builds[2].id, builds[0].id]


async def test_old_failed_builds_are_deleted(service: TemplateBuilds, clock: ManualClock) -> None:
    builds = []
    for _ in range(7):
        _, build = await service.request(BOB, "web")
        builds.append(await service.fail(build, HostError("no")))
        clock.advance(1)
    _, waiting = await service.request(BOB, "web")
    left = [build.id for build in (await service.list_builds(BOB, template="web")).items]
    assert left == [waiting.id, *(build.id for build in reversed(builds[2:]) if build is not None)]


async def test_old_build_that_ends_is_kept_for_its_caller(service: TemplateBuilds, clock: ManualClock) -> None:
    builds = []
    for _ in range(7):
        builds.append((await service.request(BOB, "web"))[1])
        clock.advance(1)
    for build in reversed(builds):
        assert await service.cancel(build) is not None
        assert (await service.get_build(BOB, build.id)).status is BuildStatus.CANCELLED


async def test_template_is_deleted_once_its_builds_have_ended(service: TemplateBuilds) -> None:
    await built(service)
    _, build = await service.request(ALICE, "web")
    with pytest.raises(ConflictError, match="has not ended"):
        await service.delete(ALICE, "web")
    await service.cancel(build)
    await service.delete(ALICE, "web")
    assert not (await service.list(ALICE)).items
    assert not (await service.list_builds(ALICE)).items


async def test_lists_have_pages(service: TemplateBuilds, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        await service.request(BOB, name)
        clock.advance(1)
    first = await service.list(BOB, limit=2)
    assert ([record.name for record in first.items], first.more) == (["c", "b"], True)
    rest = await service.list(BOB, before=Position(first.items[-1].created_at, first.items[-1].id))
    assert ([record.name for record in rest.items], rest.more) == (["a"], False)
    builds = await service.list_builds(BOB, limit=2)
    assert builds.more
    assert len((await service.list_builds(BOB, before=Position(builds.items[-1].created_at, builds.items[-1].id))).items) == 1
    assert len((await service.list_builds(BOB, template="b")).items) == 1


async def test_follower_gets_every_line_and_ends_with_the_build(service: TemplateBuilds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES_PAGE", 2)
    _, build = await service.request(ALICE, "web")
    await service.log(build, [line("1"), line("2"), line("3")])
    stream = await service.follow_lines(ALICE, build.id, after=1)
    got: list[str] = []

    async def follow() -> None:
        got.extend([each.text async for each in stream])

    task = asyncio.create_task(follow())
    await service.log(build, [line("4")])
    await service.finish(build, ROOT, SETTINGS)
    await task
    assert got == ["2", "3", "4"]


async def test_follower_learns_that_the_service_stops(service: TemplateBuilds) -> None:
    _, build = await service.request(ALICE, "web")
    await service.log(build, [line("1")])
    stream = await service.follow_lines(ALICE, build.id)
    assert (await anext(stream)).text == "1"
    waiting = asyncio.ensure_future(anext(stream))
    await until(lambda: waiting.done() or bool(service._wakeups._waiting))  # noqa: SLF001 - no other sign that it waits
    service.close()
    with pytest.raises(UnavailableError) as stopped:
        await waiting
    assert stopped.value.fields["after"] == 1


async def test_log_is_bounded(service: TemplateBuilds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 3)
    monkeypatch.setattr(module, "MAX_LINE_CHARS", 5)
    _, build = await service.request(ALICE, "web")
    await service.log(build, [line("long line"), line("2")])
    await service.log(build, [line("3"), line("4")])
    await service.log(build, [line("5")])
    kept = (await service.lines(ALICE, build.id)).items
    assert [each.text for each in kept[:3]] == ["long ", "2", "3"]
    assert "Further lines are dropped" in kept[3].text
    assert [each.number for each in kept] == [1, 2, 3, 4]
    await service.log(replace(build, id="gone"), [line("x")])  # a build that was deleted meanwhile
