"""The queue of builds: owners take turns, builds end once, and those from before a restart are failed. Builds run no step here."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from sandlot.builds.bases import BaseRoot
from sandlot.builds.executor import BUILD
from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import BuildLimits
from sandlot.builds.log import BuildLog, OutputLines
from sandlot.builds.operations import request_build
from sandlot.builds.plan import ArchiveBase, Base, BuildPlan, EmptyBase, FixedSteps, Stage
from sandlot.builds.runtime import MAINTENANCE_S, RESTARTED, RETRY_S, UNSTARTED_S, BuildRuntime
from sandlot.builds.step_cache import StepCache
from sandlot.builds.uploads import UNUSED_S, Uploads
from sandlot.core.template_builds import KEPT_FAILED, TemplateBuilds
from sandlot.images.progress import Progress
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.images import ImageConfig, Layer
from sandlot.model.sandboxes import CreateSandboxParams, SandboxFilter
from sandlot.model.specs import MIB
from sandlot.model.templates import MAX_LINE_CHARS, BuildRecord, BuildStatus, BuiltRoot, TemplateSettings
from tests.support.node import MemoryNode, NodeState, open_node
from tests.support.until import until

ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))
PLAN = BuildPlan((Stage(EmptyBase(), FixedSteps()),))


class StandIn:
    """Resolver whose bases are never found, so that each build waits until it is released, and then fails; and the results of builds.

    Attributes:
        begun: Owners of the builds, in their order.
        base: Base that is found for each build after all. None: none is found.
        saved: Builds whose snapshots were made.
        needed: Ids of the builds whose snapshots were kept last.
        archives: Contents of the archives with which builds began.
        not_saved: Error of the snapshot.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.free = asyncio.Semaphore(0)
        self.error: Exception = NotFoundError("There is no such image.")
        self.base: BaseRoot | None = None
        self.saved: list[BuildRecord] = []
        self.needed: set[str] = set()
        self.archives: list[bytes] = []
        self.not_saved: SandlotError | None = None

    async def resolve(self, principal: Principal, base: Base, report: Progress) -> BaseRoot:
        del report
        if isinstance(base, ArchiveBase):
            self.archives.append(base.path.read_bytes())
        if self.base is not None:
            return self.base
        self.begun.append(principal.name)
        await self.free.acquire()
        raise self.error

    async def make_root_image(self, root: BuiltRoot, report: Progress) -> None:
        """Make nothing."""

    async def save_snapshot(self, principal: Principal, build: BuildRecord, on_output: Callable[[int, bytes], None]) -> int:
        assert principal.sees(build.owner)
        self.saved.append(build)
        on_output(1, b"listening\n")
        if self.not_saved is not None:
            raise self.not_saved
        return 1000

    async def prune(self, builds: Collection[BuildRecord]) -> None:
        self.needed = {build.id for build in builds}


class Bench:
    def __init__(self, memory: MemoryNode, folder: Path, bases: StandIn, limits: BuildLimits) -> None:
        self.memory, self.bases, self.node = memory, bases, memory.service.node
        self.uploads = Uploads(folder / "uploads", memory.clock, max_bytes=MIB)
        self.runtime = BuildRuntime(self.node, bases, bases, LayerStore(folder / "layers"), self.uploads, folder, limits, memory.clock)

    async def request(self, principal: Principal) -> BuildRecord:
        _, build = await self.node.template_builds.request(principal, "app")
        return build

    async def start(self, principal: Principal) -> BuildRecord:
        build = await self.request(principal)
        await self.runtime.start(principal, build, PLAN)
        return build

    async def status(self, build: BuildRecord) -> BuildStatus:
        return (await self.node.template_builds.get_build(OPERATOR, build.id)).status


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_node(NodeState(tmp_path / "node")) as memory:
        bench = Bench(memory, tmp_path / "builds", StandIn(), BuildLimits(builds=2, builds_per_key=1, waiting_per_key=3))
        await bench.runtime.open()
        yield bench
        await bench.runtime.aclose()


async def test_owners_take_turns_and_have_limited_builds(bench: Bench) -> None:
    builds = [await bench.start(each) for each in (ALICE, ALICE, ALICE, BOB, BOB)]
    await until(lambda: len(bench.bases.begun) == 2)
    assert bench.bases.begun == ["alice", "bob"]
    for _ in builds:
        bench.bases.free.release()
    for build in builds:
        await bench.runtime.wait(build.id)
        assert await bench.status(build) is BuildStatus.FAILED
    assert sorted(bench.bases.begun[2:4]) == ["alice", "bob"]


async def test_number_of_waiting_builds_is_limited(bench: Bench) -> None:
    for _ in range(4):
        await bench.start(ALICE)
    with pytest.raises(LimitError):
        await bench.start(ALICE)
    await bench.start(BOB)


async def test_failure_is_recorded_with_its_step_and_in_the_log(bench: Bench) -> None:
    bench.bases.free.release()
    build = await bench.start(ALICE)
    await bench.runtime.wait(build.id)
    failed = await bench.node.template_builds.get_build(ALICE, build.id)
    assert (failed.status, failed.step, failed.error) == (BuildStatus.FAILED, "base", "There is no such image.")
    lines = await bench.node.template_builds.lines(ALICE, build.id)
    assert [line.text for line in lines.items] == ["Preparing the base", "There is no such image."]


async def test_defect_fails_the_build_without_its_details(bench: Bench) -> None:
    bench.bases.error = RuntimeError("secret")
    bench.bases.free.release()
    build = await bench.start(ALICE)
    await bench.runtime.wait(build.id)
    assert (await bench.node.template_builds.get_build(ALICE, build.id)).error.startswith("The service has a defect")


async def test_running_and_waiting_builds_are_cancelled(bench: Bench) -> None:
    running, waiting = await bench.start(ALICE), await bench.start(ALICE)
    await until(lambda: bool(bench.bases.begun))
    assert await bench.runtime.cancel(ALICE, waiting.id)
    assert await bench.runtime.cancel(ALICE, running.id)
    assert [await bench.status(each) for each in (running, waiting)] == [BuildStatus.CANCELLED] * 2
    assert not await bench.runtime.cancel(ALICE, running.id)
    with pytest.raises(NotFoundError):
        await bench.runtime.cancel(BOB, running.id)


async def test_build_is_started_once_and_not_after_the_end_of_the_service(bench: Bench) -> None:
    build = await bench.start(ALICE)
    with pytest.raises(ConflictError):
        await bench.runtime.start(ALICE, build, PLAN)
    await bench.runtime.aclose()
    with pytest.raises(UnavailableError):
        await bench.start(ALICE)


async def test_build_takes_limited_time(bench: Bench, tmp_path: Path) -> None:
    limited = Bench(bench.memory, tmp_path / "limited", bench.bases, BuildLimits(build_s=0.01))
    await limited.runtime.open()
    build = await limited.start(ALICE)
    await limited.runtime.wait(build.id)
    assert "0.01 seconds, the maximum" in (await bench.node.template_builds.get_build(ALICE, build.id)).error


@pytest.fixture
def server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> BuildPlan:
    """A plan whose files were made before, and which has a start command."""

    async def find_layer(*_: object) -> Layer:
        return Layer("sha256:1", 50, "application/vnd.oci.image.layer.v1.tar", "sha256:2")

    monkeypatch.setattr(StepCache, "find_layer", find_layer)
    bench.bases.base = BaseRoot("base", BuiltRoot((), 100), "key", ImageConfig(env={"A": "b"}, user="user"))
    return replace(PLAN, start_command="serve", ready_command="curl localhost")


async def test_start_command_runs_at_the_end_of_the_build(bench: Bench, server: BuildPlan) -> None:
    build = await bench.request(ALICE)
    await bench.runtime.start(ALICE, build, server)
    await bench.runtime.wait(build.id)
    done = await bench.node.template_builds.get_build(ALICE, build.id)
    assert (done.status, done.snapshot_bytes, done.size_bytes) == (BuildStatus.READY, 1000, 1150)
    (saved,) = bench.bases.saved
    assert (saved.root, saved.settings) == (done.root, TemplateSettings({"A": "b"}, "user", "/", "serve", "curl localhost"))
    lines = await bench.node.template_builds.lines(ALICE, build.id)
    assert [line.text for line in lines.items][-3:] == [
        "Start command: serve",
        "Ready command: curl localhost",
        "listening",
    ]
    await until(lambda: bench.bases.needed == {build.id})


@pytest.mark.parametrize("is_updated", [True, False])
async def test_sandbox_of_an_updated_template_is_not_used(bench: Bench, *, is_updated: bool) -> None:
    sandbox = await bench.node.sandboxes.create(ALICE, CreateSandboxParams(template="base"))
    digests = {"other" if is_updated else sandbox.spec.template.digest}
    bench.bases.base = BaseRoot("base", BuiltRoot((), 100), "key", digests=digests)
    build = await bench.start(ALICE)
    await bench.runtime.wait(build.id)
    failed = await bench.node.template_builds.get_build(ALICE, build.id)
    assert failed.error.startswith("The template base was updated during the build.") == is_updated, failed.error


async def test_failed_start_command_fails_the_build_with_its_output(bench: Bench, server: BuildPlan) -> None:
    bench.bases.not_saved = ConflictError("The start command of the template ended with exit code 3.", hint="Correct it.")
    build = await bench.request(ALICE)
    await bench.runtime.start(ALICE, build, server)
    await bench.runtime.wait(build.id)
    failed = await bench.node.template_builds.get_build(ALICE, build.id)
    assert (failed.status, failed.step) == (BuildStatus.FAILED, "finalize")
    assert failed.error.startswith("The start command of the template ended with exit code 3. The last lines of its output:\nlistening")
    assert bench.bases.needed == set()


def next_runtime(bench: Bench, folder: Path) -> BuildRuntime:
    """Return the runtime of the next service."""
    return BuildRuntime(bench.node, bench.bases, bench.bases, LayerStore(folder / "layers"), bench.uploads, folder, BuildLimits(), bench.memory.clock)


async def test_layers_that_no_ready_build_has_are_removed_while_none_runs(bench: Bench, tmp_path: Path) -> None:
    runtime, layers = next_runtime(bench, tmp_path / "next"), LayerStore(tmp_path / "next/layers")
    kept, dropped = [await stored(layers, content) for content in (b"kept", b"dropped")]
    build = await bench.request(ALICE)
    await bench.node.template_builds.finish(build, BuiltRoot((kept,), 1), TemplateSettings())
    await runtime.prune()
    assert (layers.has(kept.digest), layers.has(dropped.digest)) == (True, False)
    await bench.node.template_builds.delete(ALICE, build.template)
    await runtime.prune()
    assert not layers.has(kept.digest)


async def test_failed_removal_of_layers_hinders_no_other_removal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    build = await bench.request(ALICE)
    await bench.node.template_builds.finish(build, BuiltRoot((), 1), TemplateSettings())
    monkeypatch.setattr(LayerStore, "prune", fail)
    await bench.runtime.prune()
    assert bench.bases.needed == {build.id}


async def stored(layers: LayerStore, content: bytes) -> Layer:
    """Store a layer."""
    with layers.begin() as writer:
        await writer.write(content)
        return await writer.finish("application/vnd.oci.image.layer.v1.tar", f"sha256:{'0' * 64}")


async def upload(bench: Bench, content: bytes) -> Path:
    """Upload an archive of Alice."""

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    return (await bench.uploads.write(ALICE, "archive", pieces())).path


def held(bench: Bench) -> list[Path]:
    return [path for path in bench.uploads.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_waiting_build_keeps_the_archive_with_which_it_was_started(bench: Bench, *, is_cancelled: bool) -> None:
    running, path = await bench.start(ALICE), await upload(bench, b"old")
    waiting = await bench.request(ALICE)
    await bench.runtime.start(ALICE, waiting, BuildPlan((Stage(ArchiveBase(path), FixedSteps()),), contexts={"": path}))
    await bench.uploads.remove(ALICE, "archive")
    bench.memory.clock.advance(UNUSED_S + 1)
    await bench.uploads.remove_unused()
    assert [each.read_bytes() for each in held(bench)] == [b"old"]
    if is_cancelled:
        await bench.runtime.cancel(ALICE, waiting.id)
    for _ in range(2):
        bench.bases.free.release()
    for build in (running, waiting):
        await bench.runtime.wait(build.id)
    assert bench.bases.archives == ([] if is_cancelled else [b"old"])
    await until(lambda: held(bench) == [])


async def test_build_that_cannot_be_started_holds_nothing(bench: Bench) -> None:
    path = await upload(bench, b"old")
    plan = BuildPlan((Stage(ArchiveBase(path), FixedSteps()),))
    build = await bench.request(ALICE)
    started = await asyncio.gather(*(bench.runtime.start(ALICE, build, plan) for _ in range(2)), return_exceptions=True)
    assert [type(each) for each in started] in ([type(None), ConflictError], [ConflictError, type(None)])
    await until(lambda: len(held(bench)) == 2)
    await bench.runtime.cancel(ALICE, build.id)
    await until(lambda: held(bench) == [path])
    await bench.uploads.remove(ALICE, "archive")
    with pytest.raises(InvalidRequestError, match="removed before it started"):
        await bench.runtime.start(ALICE, await bench.request(ALICE), plan)


async def test_build_is_started_whole_although_its_caller_is_cancelled(bench: Bench) -> None:
    path, build = await upload(bench, b"old"), await bench.request(ALICE)
    starting = asyncio.create_task(bench.runtime.start(ALICE, build, BuildPlan((Stage(ArchiveBase(path), FixedSteps()),))))
    await asyncio.sleep(0)  # a thread makes the link
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await bench.runtime.cancel(ALICE, build.id)
    await until(lambda: held(bench) == [path])


@pytest.fixture
def connection(bench: Bench) -> HTTPConnection:
    """A request to an app with the node and its builds."""
    return HTTPConnection({"type": "http", "app": SimpleNamespace(state=SimpleNamespace(node=bench.node, builds=bench.runtime))})


async def newest(bench: Bench) -> BuildRecord:
    """Return the newest build of Alice."""
    return (await bench.node.template_builds.list_builds(ALICE, limit=1)).items[0]


async def test_requested_build_that_cannot_be_started_is_cancelled(bench: Bench, connection: HTTPConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    started = [(await bench.start(ALICE)).id for _ in range(4)]
    bench.memory.clock.advance(1)
    monkeypatch.setattr(BuildRuntime, "check_room", lambda *_: None)  # another request has taken the last place meanwhile
    with pytest.raises(LimitError):
        await request_build(connection, ALICE, "app", PLAN, limits=None)
    refused = await newest(bench)
    assert (refused.id in started, refused.status) == (False, BuildStatus.CANCELLED)


async def test_refused_builds_leave_no_record_and_push_no_log_of_a_failure_out(bench: Bench, connection: HTTPConnection) -> None:
    bench.bases.free.release()
    failed = await bench.start(ALICE)
    await bench.runtime.wait(failed.id)
    for _ in range(4):
        await bench.start(ALICE)
    for _ in range(KEPT_FAILED + 1):
        with pytest.raises(LimitError):
            await request_build(connection, ALICE, "app", PLAN, limits=None)
    kept = (await bench.node.template_builds.list_builds(ALICE)).items
    assert (len(kept), await bench.status(failed)) == (5, BuildStatus.FAILED)
    assert (await bench.node.template_builds.lines(ALICE, failed.id)).items


class FullDisk:
    """A database whose disk is full: the ends of builds cannot be recorded until ``is_full`` is False."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.refused = 0
        self.node = bench.node
        for name in ("fail", "cancel", "finish"):
            monkeypatch.setattr(TemplateBuilds, name, self.failing(getattr(TemplateBuilds, name)))
        monkeypatch.setattr(BuildLog, "fail", self.failing(BuildLog.fail))

    def failing(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that fails while the disk is full."""

        async def fail(*args: object) -> object:
            if self.is_full:
                self.refused += 1
                raise LimitError("The disk is full.", code=ErrorCode.NODE_DISK_FULL)
            return await work(*args)

        return fail


async def test_waiting_build_whose_cancellation_cannot_be_recorded_is_not_stuck(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.start(ALICE)
    path, waiting = await upload(bench, b"old"), await bench.request(ALICE)
    await bench.runtime.start(ALICE, waiting, BuildPlan((Stage(ArchiveBase(path), FixedSteps()),)))
    disk = FullDisk(bench, monkeypatch)
    with pytest.raises(LimitError, match="disk is full"):
        await bench.runtime.cancel(ALICE, waiting.id)
    await bench.runtime.wait(waiting.id)
    assert held(bench) == [path]
    disk.is_full = False
    assert not await bench.runtime.cancel(ALICE, waiting.id)


async def test_cancellation_of_a_waiting_build_ends_although_its_caller_is_cancelled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, record = asyncio.Event(), asyncio.Event(), TemplateBuilds.cancel

    async def slow(builds: TemplateBuilds, build: BuildRecord) -> BuildRecord | None:
        began.set()
        await go.wait()
        return await record(builds, build)

    monkeypatch.setattr(TemplateBuilds, "cancel", slow)
    await bench.start(ALICE)
    waiting = await bench.start(ALICE)
    cancelling = asyncio.create_task(bench.runtime.cancel(ALICE, waiting.id))
    await began.wait()
    cancelling.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelling
    assert await bench.status(waiting) is BuildStatus.CANCELLED
    assert not await bench.runtime.cancel(ALICE, waiting.id)


async def test_cancellation_of_a_build_whose_failure_is_being_recorded_leaves_it_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, record = asyncio.Event(), asyncio.Event(), TemplateBuilds.fail

    async def slow(builds: TemplateBuilds, build: BuildRecord, error: SandlotError) -> BuildRecord | None:
        began.set()
        await go.wait()
        return await record(builds, build, error)

    monkeypatch.setattr(TemplateBuilds, "fail", slow)
    path, build = await upload(bench, b"old"), await bench.request(ALICE)
    await bench.runtime.start(ALICE, build, BuildPlan((Stage(ArchiveBase(path), FixedSteps()),)))
    bench.bases.free.release()
    await began.wait()
    cancelling = asyncio.create_task(bench.runtime.cancel(ALICE, build.id))
    await asyncio.wait([cancelling], timeout=0)
    go.set()
    assert await cancelling
    assert await bench.status(build) is BuildStatus.FAILED
    await until(lambda: held(bench) == [path])


async def test_stop_of_the_service_ends_what_a_build_still_removes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def release(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(Uploads, "release", release)
    build = await bench.start(ALICE)
    bench.bases.free.release()
    await bench.runtime.wait(build.id)
    await began.wait()
    await bench.runtime.aclose()
    assert ended.is_set()


async def test_stop_of_the_service_ends_the_wait_for_a_waiting_build(bench: Bench) -> None:
    await bench.start(ALICE)
    waiting = await bench.start(ALICE)
    wait = asyncio.create_task(bench.runtime.wait(waiting.id))
    await bench.runtime.aclose()
    await wait
    assert not await bench.runtime.cancel(ALICE, waiting.id)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_end_that_cannot_be_recorded_is_recorded_later(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool) -> None:
    build = await bench.start(ALICE)
    await until(lambda: bool(bench.bases.begun))
    disk = FullDisk(bench, monkeypatch)
    if is_cancelled:
        await bench.runtime.cancel(ALICE, build.id)
    else:
        bench.bases.free.release()
        await bench.runtime.wait(build.id)
    assert await bench.status(build) is BuildStatus.BUILDING
    refused = disk.refused
    bench.memory.clock.advance(RETRY_S)
    await until(lambda: disk.refused > refused)
    disk.is_full = False
    bench.memory.clock.advance(RETRY_S)

    async def has_ended() -> bool:
        return await bench.status(build) is (BuildStatus.CANCELLED if is_cancelled else BuildStatus.FAILED)

    await until(has_ended)


async def test_build_that_cannot_begin_has_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(*_: object) -> None:
        raise LimitError("The disk is full.", code=ErrorCode.NODE_DISK_FULL)

    monkeypatch.setattr(TemplateBuilds, "begin", begin)
    build = await bench.start(ALICE)
    await bench.runtime.wait(build.id)
    assert (await bench.node.template_builds.get_build(ALICE, build.id)).error.startswith("The disk is full.")


async def test_build_that_is_never_started_ends_after_a_day(bench: Bench) -> None:
    forgotten = await bench.request(ALICE)
    bench.memory.clock.advance(UNSTARTED_S)
    recent = await bench.request(ALICE)

    async def has_ended() -> bool:
        bench.memory.clock.advance(MAINTENANCE_S + 1)  # each time: the loop may have begun to sleep after the last one
        return await bench.status(forgotten) is BuildStatus.FAILED

    await until(has_ended)
    assert await bench.status(recent) is BuildStatus.WAITING


async def test_build_is_requested_and_started_although_its_client_hangs_up(bench: Bench, connection: HTTPConnection) -> None:
    starting = asyncio.create_task(request_build(connection, ALICE, "app", PLAN, limits=None))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await bench.runtime.cancel(ALICE, (await newest(bench)).id)


async def test_archives_of_builds_of_the_last_service_are_removed(bench: Bench, tmp_path: Path) -> None:
    path = await upload(bench, b"old")
    await bench.start(ALICE)
    await bench.runtime.start(ALICE, await bench.request(ALICE), BuildPlan((Stage(ArchiveBase(path), FixedSteps()),)))
    await bench.runtime.aclose()
    runtime = next_runtime(bench, tmp_path / "next")
    await runtime.open()
    await runtime.aclose()
    assert held(bench) == [path]


async def test_cached_steps_and_uploads_are_removed_when_nobody_builds(bench: Bench, tmp_path: Path) -> None:
    limits = BuildLimits()
    steps = StepCache(bench.node, tmp_path / "builds", limits, bench.memory.clock)
    sandbox = await bench.node.sandboxes.create(ALICE, CreateSandboxParams(timeout_s=None))

    async def save() -> None:
        await steps.save(ALICE, sandbox.id, ALICE.owner, "key")
        assert await steps.find(ALICE.owner, "key") is not None
        await upload(bench, b"old")

    async def is_removed() -> bool:
        return await steps.find(ALICE.owner, "key") is None and held(bench) == []

    await save()
    bench.memory.clock.advance(limits.cache_s + MAINTENANCE_S)
    await until(is_removed)
    await bench.runtime.aclose()
    await save()
    bench.memory.clock.advance(limits.cache_s + 1)
    runtime = next_runtime(bench, tmp_path / "next")
    await runtime.open()  # at once
    await runtime.aclose()
    assert await steps.find(ALICE.owner, "key") is None


async def test_builds_of_the_last_service_are_failed_and_their_sandboxes_removed(bench: Bench, tmp_path: Path) -> None:
    build = await bench.request(ALICE)
    await bench.node.template_builds.begin(build)
    left = await bench.node.sandboxes.create(ALICE, CreateSandboxParams(metadata={BUILD: build.id}))
    other = await bench.node.sandboxes.create(ALICE, CreateSandboxParams())
    await bench.runtime.aclose()
    runtime = next_runtime(bench, tmp_path / "next")
    await runtime.open()
    await runtime.aclose()
    failed = await bench.node.template_builds.get_build(ALICE, build.id)
    assert (failed.status, failed.error.startswith(RESTARTED)) == (BuildStatus.FAILED, True)

    async def live() -> set[str]:
        found = await bench.node.sandboxes.list(ALICE, SandboxFilter(), after=None, limit=10)
        return {each.id for each in found.items if not each.is_over}

    async def is_removed() -> bool:
        return left.id not in await live()

    await until(is_removed)
    assert other.id in await live()


async def test_log_drops_lines_beyond_its_rate_and_number(bench: Bench) -> None:
    build = await bench.request(ALICE)
    limits = BuildLimits(log_lines=50, lines_per_s=3, output_bytes=10_000_000)
    log = BuildLog(bench.node, build, limits, bench.memory.clock)
    lines = OutputLines(log)
    lines.feed(1, b"".join(b"%d\n" % number for number in range(100_000)))
    lines.feed(2, b"x" * 5_000)
    lines.feed(2, b"y" * 5_000 + b"\nlast\r100%\nhalf")
    lines.finish()
    await log.aclose()
    found = await bench.node.template_builds.lines(ALICE, build.id, limit=1000)
    assert [line.text for line in found.items][:2] == ["0", "1"]
    assert len(found.items) == 31
    assert found.items[-1].text.endswith("lines of output were left out.")
    assert lines.tail[-4:] == ["x" * MAX_LINE_CHARS, "last", "100%", "half"]
    assert "99999" in lines.tail
    with pytest.raises(LimitError, match="output, the maximum"):
        lines.feed(1, bytes(10_000_000))


async def test_lines_about_dropped_output_count_for_the_limit_of_the_log(bench: Bench) -> None:
    build = await bench.request(ALICE)
    log = BuildLog(bench.node, build, BuildLimits(log_lines=50, lines_per_s=3), bench.memory.clock)
    for _ in range(100):
        log.output(["line"] * 40)
        bench.memory.clock.advance(1)
    await log.aclose()
    found = await bench.node.template_builds.lines(ALICE, build.id, limit=1000)
    assert len(found.items) == 51, "the last line says how much was dropped in the end"
    assert sum(line.text == "line" for line in found.items) + sum(int(line.text.split()[0]) for line in found.items if line.text != "line") == 4000


async def test_log_removes_control_characters_and_joins_bytes_of_a_character(bench: Bench) -> None:
    log = BuildLog(bench.node, await bench.request(ALICE), BuildLimits(), bench.memory.clock)
    lines = OutputLines(log)
    for piece in (b"a\x1b[31mb\xc3", b"\xa9\x00\n", b"\n   \n"):
        lines.feed(1, piece)
    lines.finish()
    assert lines.tail == ["a[31mbé"]
    await log.aclose()
