"""Sandboxes of a build start from its snapshot, in which the start command runs already; without the snapshot, they run it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.pools.build_snapshots import PAUSE_S
from sandlot.core.pools.models import content_of
from sandlot.core.pools.template_snapshots import CHECK_S
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, UnavailableError
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, ProcessSpec, TemplateRef, User
from sandlot.model.templates import TemplateDefaults
from sandlot.testing.memory import files
from sandlot.testing.memory.process import ProgramContext
from tests.support.node import MemoryNode, NodeState, PoolStatus, open_node, run_pending, settled

WEB = CreateSandboxParams(template="base")


class Programs:
    """A server, whose ready command succeeds once the server runs. The scripted shell takes the loop of the ready command for programs."""

    def __init__(self, node: MemoryNode) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Host name, working directory and environment of each start of the server."""
        self.exit_code: int | None = None
        self.ready_code = 0
        known = node.driver.scripts.programs
        known.update({"serve": self._serve, "until": self._ready, "do": known["true"], "done": self._ready, "command": known["true"]})

    async def _serve(self, context: ProgramContext) -> int | None:
        self.seen.append((context.files.read("/etc/hostname", 0).decode(), context.cwd, dict(context.env)))
        await context.write("listening\n")
        if self.exit_code is None:
            await asyncio.Event().wait()
        return self.exit_code

    async def _ready(self, context: ProgramContext) -> int:
        if self.exit_code:
            await asyncio.Event().wait()
        while not self.seen:
            await context.sleep(0)
        return self.ready_code


class Build:
    """A finished build of a template with a start command."""

    def __init__(self, node: MemoryNode) -> None:
        self.node, self.programs, self.output = node, Programs(node), b""
        templates = node.state.templates
        self.resolved = templates._current("base")  # noqa: SLF001 - the build of the template
        self.template = TemplateRef(LOCAL, "base", self.resolved.root.digest, "first")
        self.use(TemplateDefaults(limits=Limits(memory_bytes=2 * GIB), cwd="/srv/app", user=User.ROOT, start_command="serve", ready_command="ready"))

    def use(self, defaults: TemplateDefaults) -> None:
        """Let the build have other settings."""
        self.defaults = replace(defaults, digest=self.resolved.root.digest, build=defaults.build or "first")
        self.node.state.templates.defaults_of["base"] = self.defaults

    async def save(self, principal: Principal = OPERATOR) -> int:
        """Make the snapshot."""

        def on_output(_channel: int, data: bytes) -> None:
            self.output += data

        return await self.node.internals.build_snapshots.make(principal, self.template, self.defaults, on_output)

    async def create(self, params: CreateSandboxParams = WEB) -> tuple[Sandbox, bool]:
        """Create a sandbox. Return it, and whether its start command was started in it."""
        sandbox = await self.node.sandboxes.create(OPERATOR, params)
        await run_pending()
        started = [each["argv"] for each in self.node.guest(sandbox).requests("process.start")]
        (process,) = await self.node.services.processes.list(OPERATOR, sandbox.id)
        assert (process.argv, process.running) == (("/bin/sh", "-c", "serve"), True)
        return sandbox, ["/bin/sh", "-c", "serve"] in started

    @property
    def snapshots(self) -> list[Path]:
        """Published snapshots."""
        return [each.parent for each in (self.node.state.folder / "cache/snapshots").glob("*/made.json")]


@pytest.fixture
async def build(node: MemoryNode) -> AsyncIterator[Build]:
    made = Build(node)
    yield made
    live = {each.ref for each in node.sandboxes.list(OPERATOR)}
    await settled(lambda: {each.ref for each in node.driver.instances} == live)


async def test_sandbox_is_restored_with_the_running_start_command(build: Build) -> None:
    assert await build.save() > 0
    assert build.output == b"listening\n"
    assert build.node.sandboxes.list(OPERATOR) == []
    sandbox, has_started = await build.create(replace(WEB, env={"MINE": "1"}))
    assert not has_started
    assert (sandbox.spec.template, sandbox.spec.cwd, sandbox.spec.user) == (build.template, "/srv/app", User.ROOT)
    result = await build.node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("printenv", "MINE")))
    assert result.stdout.text() == "1\n"


async def test_start_command_sees_nothing_of_the_build(build: Build) -> None:
    await build.save()
    name, cwd, env = build.programs.seen[0]
    assert (name, cwd) == ("template", "/srv/app")
    assert build.node.services.id not in str(env)
    assert {name for name in env if name not in build.resolved.env} <= {"HOME", "LC_CTYPE", "LOGNAME", "PWD", "SHELL", "USER"}


@pytest.mark.parametrize("limits", [LimitsChange(memory_bytes=GIB), LimitsChange(cpus=2.0), LimitsChange(pids=100), LimitsChange(disk_bytes=GIB)])
async def test_sandbox_with_other_limits_runs_the_start_command_itself(build: Build, limits: LimitsChange) -> None:
    await build.save()
    _, has_started = await build.create(replace(WEB, limits=limits))
    assert has_started


async def test_larger_disk_and_more_processes_need_no_other_snapshot(build: Build) -> None:
    await build.save()
    _, has_started = await build.create(replace(WEB, limits=LimitsChange(pids=2000, disk_bytes=20 * GIB)))
    assert not has_started


async def test_missing_snapshot_costs_a_boot_and_is_made_again(build: Build) -> None:
    _, has_started = await build.create()
    assert has_started
    await build.node.clock.pass_s(PAUSE_S + 1, 0.5)
    await settled(lambda: len(build.snapshots) == 1 and not build.node.internals.build_snapshots.is_busy)
    _, has_started = await build.create()
    assert not has_started


async def test_snapshot_that_cannot_be_restored_costs_a_boot(build: Build) -> None:
    await build.save()
    build.node.driver.faults.raises["restore"] = [ConflictError("The image is damaged.")]
    _, has_started = await build.create()
    assert has_started
    assert build.snapshots == []


async def test_snapshot_of_another_runtime_build_costs_a_boot(build: Build) -> None:
    await build.save()
    build.node.driver.version = "memory-2"
    _, has_started = await build.create()
    assert has_started


async def test_restore_without_room_keeps_the_snapshot(build: Build) -> None:
    await build.save()
    build.node.driver.faults.raises["restore"] = [UnavailableError("There is no room.", code=ErrorCode.BUSY)]
    _, has_started = await build.create()
    assert has_started
    assert len(build.snapshots) == 1


async def test_warm_sandbox_of_a_pool_runs_the_start_command_already(build: Build) -> None:
    pool = await fill(build)
    (warm,) = pool.pool.ready
    sandbox, has_started = await build.create()
    assert (sandbox.id, has_started) == (warm.id, False)
    await build.node.pools.delete(OPERATOR, pool.pool.id)
    await build.node.pools.run_until_idle()


async def fill(build: Build, owner: Principal = OPERATOR, limits: Limits | None = None, warm: int = 1) -> PoolStatus:
    """Make a pool of the template, and fill it."""
    made = await build.node.pools.create(owner, "base", "gvisor", limits or build.defaults.limits, PoolSizes(warm=warm, max=warm))
    for _ in range(3):  # the first check of the pools, the snapshot, and the pause after it
        build.node.clock.advance(2.0)
        await build.node.pools.run_until_idle()
    return made


async def test_snapshots_of_a_build_and_of_its_pools_do_not_replace_each_other(build: Build) -> None:
    await build.save()
    pools = [await fill(build), await fill(build, limits=replace(build.defaults.limits, memory_bytes=GIB))]
    assert len(build.snapshots) == 3
    build.use(replace(build.defaults, ready_command="another"))
    await build.save()
    assert len(build.snapshots) == 4
    replaced = {None if each.snapshot is None else each.snapshot.key for each in pools}
    await build.node.clock.pass_s(CHECK_S + 5, 1.0)
    await build.node.pools.run_until_idle()
    current = [build.node.pools.find(OPERATOR, each.pool.id) for each in pools]
    assert all(each.snapshot is not None and each.snapshot.key not in replaced for each in current)
    assert len(build.snapshots) == 4
    for each in pools:
        await build.node.pools.delete(OPERATOR, each.pool.id)
    await build.node.pools.run_until_idle()
    await build.node.internals.build_snapshots.prune({content_of(LOCAL, build.resolved.env, build.defaults)})
    assert len(build.snapshots) == 3  # shared pools may come back


async def test_end_of_a_private_pool_keeps_the_snapshot_of_the_build(build: Build) -> None:
    build.use(replace(build.defaults, start_command="", ready_command=""))
    await build.save()
    (before,) = build.snapshots
    record, _ = await build.node.keys.create("alice")
    alice = build.node.keys.principal_of(record.id)
    assert alice is not None
    pools = [await fill(build, alice), await fill(build, alice, replace(build.defaults.limits, memory_bytes=GIB))]
    assert len(build.snapshots) == 2
    for each in pools:
        await build.node.pools.delete(alice, each.pool.id)
    for _ in range(3):
        build.node.clock.advance(2.0)
        await build.node.pools.run_until_idle()
    assert build.snapshots == [before]


async def test_sandbox_is_never_that_of_an_earlier_build_with_the_same_files(build: Build) -> None:
    templates = build.node.state.templates
    templates.envs.update({"first": {"MODE": "first"}, "second": {"MODE": "second"}})
    build.use(replace(build.defaults, start_command="", ready_command=""))
    made = await fill(build, warm=2)
    assert [warm.template.build for warm in made.pool.ready] == ["first", "first"]
    first = await build.node.sandboxes.create(OPERATOR, WEB)
    build.use(replace(build.defaults, build="second"))
    for limits in (LimitsChange(), LimitsChange(memory_bytes=GIB)):
        second = await build.node.sandboxes.create(OPERATOR, replace(WEB, limits=limits))
        for sandbox, mode in ((first, "first"), (second, "second")):
            result = await build.node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("printenv", "MODE")))
            assert (result.stdout.text(), sandbox.spec.template.build) == (f"{mode}\n", mode)
    await build.node.clock.pass_s(CHECK_S + 5, 1.0)
    await build.node.pools.run_until_idle()
    await settled(lambda: {warm.template.build for warm in made.pool.ready} == {"second"})
    await build.node.pools.delete(OPERATOR, made.pool.id)
    await build.node.pools.run_until_idle()


async def test_pool_of_other_limits_serves_only_its_build(build: Build) -> None:
    templates = build.node.state.templates
    templates.envs.update({"first": {"MODE": "first"}, "second": {"MODE": "second"}})
    build.use(replace(build.defaults, start_command="", ready_command=""))
    made = await fill(build, limits=replace(build.defaults.limits, memory_bytes=GIB))
    build.use(replace(build.defaults, build="second"))
    booted = len(build.node.driver.booted)
    build.node.driver.faults.raises["restore"] = [ConflictError("The snapshot of the first build is not restored.")]
    sandbox = await build.node.sandboxes.create(OPERATOR, replace(WEB, limits=LimitsChange(memory_bytes=GIB)))
    result = await build.node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("printenv", "MODE")))
    assert (result.stdout.text(), len(build.node.driver.booted)) == ("second\n", booted + 1)
    assert build.node.driver.faults.raises["restore"] != [], "nothing was restored"
    build.node.driver.faults.raises.clear()
    await build.node.pools.delete(OPERATOR, made.pool.id)
    await build.node.pools.run_until_idle()


async def test_same_build_is_saved_once(build: Build) -> None:
    size = await build.save()
    booted = len(build.node.driver.booted)
    assert await build.save() == size
    assert len(build.node.driver.booted) == booted
    build.use(replace(build.defaults, ready_command="another"))
    await build.save()
    assert len(build.snapshots) == 2


async def test_start_command_that_fails_is_an_error(build: Build) -> None:
    build.programs.exit_code = 3
    with pytest.raises(ConflictError, match="exit code 3 before it was ready"):
        await build.save()
    assert (build.snapshots, build.output) == ([], b"listening\n")


async def test_start_command_that_has_started_others_may_end(build: Build) -> None:
    build.programs.exit_code = 0
    assert await build.save() > 0


async def test_ready_command_that_never_succeeds_is_an_error(build: Build) -> None:
    build.programs.ready_code = 1
    with pytest.raises(ConflictError, match="did not succeed within 60 s"):
        await build.save()
    assert build.snapshots == []


async def test_quota_of_sandboxes_counts_while_the_start_command_runs(build: Build) -> None:
    with pytest.raises(LimitError):
        await build.save(replace(OPERATOR, quota=Quota(sandboxes=0)))


async def test_snapshot_that_cannot_be_written_is_made_later(build: Build) -> None:
    build.node.driver.faults.raises["snapshot"] = [ConflictError("The disk is slow.")]
    assert await build.save() == 0
    assert build.programs.seen != []


async def test_template_without_a_start_command_has_a_snapshot_too(build: Build) -> None:
    build.use(TemplateDefaults())
    assert await build.save() > 0
    booted = len(build.node.driver.booted)
    sandbox = await build.node.sandboxes.create(OPERATOR, WEB)
    assert build.node.guest(sandbox).identity == sandbox.id
    assert len(build.node.driver.booted) == booted + 1
    build.node.driver.faults.raises["boot"] = [ConflictError("Nothing boots.")]
    await build.node.sandboxes.create(OPERATOR, WEB)


async def test_template_without_a_shell_has_a_snapshot_too(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = build.node.driver.scripts.programs
    for name in ("sh", "bash"):
        del programs[name]
        monkeypatch.delitem(files._FILES, f"/bin/{name}")  # noqa: SLF001 - there is no other way to take files from a new guest
    programs["ready"] = programs["done"]
    assert await build.save() > 0
    sandbox = await build.node.sandboxes.create(OPERATOR, WEB)
    (process,) = await build.node.services.processes.list(OPERATOR, sandbox.id)
    assert (process.argv, process.running) == (("serve",), True)
    assert ["serve"] not in [each["argv"] for each in build.node.guest(sandbox).requests("process.start")]


async def test_driver_without_snapshots_runs_the_start_command_in_the_build_and_in_each_sandbox(tmp_path: Path) -> None:
    state = NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.SNAPSHOT})
    async with open_node(state) as node:
        build = Build(node)
        assert await build.save() == 0
        assert (len(build.programs.seen), build.output) == (1, b"listening\n")
        _, has_started = await build.create()
        assert has_started
    assert state.driver.leftovers() == []


async def test_snapshots_of_builds_that_are_gone_are_removed(build: Build) -> None:
    await build.save()
    needed = content_of(LOCAL, build.resolved.env, build.defaults)
    await build.node.internals.build_snapshots.prune({needed})
    assert len(build.snapshots) == 1
    await build.node.internals.build_snapshots.prune(
        {content_of(LOCAL, build.resolved.env, replace(build.defaults, limits=Limits(memory_bytes=GIB)))}
    )
    assert build.snapshots == []


async def test_cancelled_build_leaves_no_sandbox_and_no_snapshot(build: Build) -> None:
    build.programs.ready_code = 0
    build.node.driver.faults.hold("snapshot")
    saving = asyncio.create_task(build.save())
    await build.node.driver.faults.reach("snapshot")
    saving.cancel()
    build.node.driver.faults.release("snapshot")
    await asyncio.wait([saving])
    await settled(lambda: not build.node.driver.leftovers())
    assert (saving.cancelled(), build.snapshots) == (True, [])
