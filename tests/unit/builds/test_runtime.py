"""The queue of builds: owners take turns, builds end once, and those of the last service are failed. Builds run no step here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.builds.bases import BaseRoot, Report
from sandlot.builds.executor import BUILD
from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import BuildLimits
from sandlot.builds.log import BuildLog, OutputLines
from sandlot.builds.plan import Base, BuildPlan, EmptyBase, FixedSteps, Stage
from sandlot.builds.runtime import RESTARTED, BuildRuntime
from sandlot.builds.step_cache import StepCache
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, LimitError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.images import ImageConfig, Layer
from sandlot.model.sandboxes import CreateSandboxParams, SandboxFilter
from sandlot.model.templates import BuildRecord, BuildStatus, BuiltRoot, TemplateSettings
from tests.support.node import MemoryNode, NodeState, open_node
from tests.support.until import until

ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))
PLAN = BuildPlan((Stage(EmptyBase(), FixedSteps()),))


class Bases:
    """Bases that are never found: each build waits until it is released, and then fails.

    Attributes:
        begun: Owners of the builds, in their order.
        base: Base that is found for each build after all. None: none is found.
        saved: Builds whose snapshots were made.
        needed: Ids of the builds whose snapshots were kept last.
        not_saved: Error of the snapshot.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.free = asyncio.Semaphore(0)
        self.error: Exception = NotFoundError("There is no such image.")
        self.base: BaseRoot | None = None
        self.saved: list[BuildRecord] = []
        self.needed: set[str] = set()
        self.not_saved: SandlotError | None = None

    async def open(self, principal: Principal, base: Base, report: Report) -> BaseRoot:
        del base, report
        if self.base is not None:
            return self.base
        self.begun.append(principal.name)
        await self.free.acquire()
        raise self.error

    async def prepare(self, root: BuiltRoot, report: Report) -> None:
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
    def __init__(self, memory: MemoryNode, folder: Path, bases: Bases, limits: BuildLimits) -> None:
        self.memory, self.bases, self.node = memory, bases, memory.service.node
        self.runtime = BuildRuntime(self.node, bases, LayerStore(folder / "layers"), folder, limits, memory.clock)

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
        bench = Bench(memory, tmp_path / "builds", Bases(), BuildLimits(builds=2, builds_per_key=1, waiting_per_key=3))
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
    return BuildRuntime(bench.node, bench.bases, LayerStore(folder / "layers"), folder, BuildLimits(), bench.memory.clock)


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


async def stored(layers: LayerStore, content: bytes) -> Layer:
    """Store a layer."""
    with layers.begin() as writer:
        await writer.write(content)
        return await writer.finish("application/vnd.oci.image.layer.v1.tar", f"sha256:{'0' * 64}")


async def test_builds_of_the_last_service_are_failed_and_their_sandboxes_removed(bench: Bench, tmp_path: Path) -> None:
    build = await bench.request(ALICE)
    await bench.node.template_builds.begin(build)
    left = await bench.node.sandboxes.create(ALICE, CreateSandboxParams(metadata={BUILD: build.id}))
    other = await bench.node.sandboxes.create(ALICE, CreateSandboxParams())
    await next_runtime(bench, tmp_path / "next").open()
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
    assert lines.tail[-4:] == ["x" * 2_000, "last", "100%", "half"]
    assert "99999" in lines.tail
    with pytest.raises(LimitError, match="output, the maximum"):
        lines.feed(1, bytes(10_000_000))


async def test_log_removes_control_characters_and_joins_bytes_of_a_character(bench: Bench) -> None:
    log = BuildLog(bench.node, await bench.request(ALICE), BuildLimits(), bench.memory.clock)
    lines = OutputLines(log)
    for piece in (b"a\x1b[31mb\xc3", b"\xa9\x00\n", b"\n   \n"):
        lines.feed(1, piece)
    lines.finish()
    assert lines.tail == ["a[31mbé"]
    await log.aclose()
