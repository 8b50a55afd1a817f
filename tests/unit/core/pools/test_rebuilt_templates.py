"""Pools of a template that is built again, tagged or deleted: creates get a warm sandbox of the current build."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.pools.pool import Pool
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.pools import PoolSizes, StartPath
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, TemplateRef
from sandlot.model.templates import TemplateDefaults
from tests.support.node import MemoryNode, NodeState, open_node
from tests.unit.core.pools.test_manager import NO_SNAPSHOTS, new_key, refill

CAPABILITIES = pytest.mark.parametrize("capabilities", [set(DriverCapability), NO_SNAPSHOTS], ids=["snapshots", "boots"])


def build(node: MemoryNode, id_: str, *, tag: str = "", env: str = "", limits: Limits | None = None) -> None:
    """Let a template or its tag name another build."""
    templates = node.state.templates
    digest = templates._current("base").root.digest  # noqa: SLF001 - the root file system of all builds
    templates.defaults_of[f"base:{tag}" if tag else "base"] = TemplateDefaults(digest=digest, build=id_, limits=limits or Limits())
    templates.envs[id_] = {"MODE": env} if env else {}


async def pool_of(node: MemoryNode, template: str = "base", sizes: PoolSizes | None = None) -> Pool:
    made = await node.services.pools.create(OPERATOR, template, "auto", LimitsChange(), sizes or PoolSizes(warm=1, max=1))
    await refill(node)
    return node.pools.find(OPERATOR, made.id).pool


async def create(node: MemoryNode, template: str = "base") -> str:
    """Create a sandbox. Return the build that it starts from."""
    sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template=template))
    return sandbox.spec.template.build


async def follow(node: MemoryNode) -> None:
    """Let the pools find out that a template has changed: a check of the pools, a new snapshot, and a fill."""
    for _ in range(4):
        await refill(node)


@CAPABILITIES
@pytest.mark.parametrize("env", ["", "second"], ids=["same content", "other content"])
async def test_pool_follows_a_template_that_is_built_again(tmp_path: Path, capabilities: set[DriverCapability], env: str) -> None:
    async with open_node(NodeState(tmp_path, capabilities=capabilities)) as node:
        build(node, "first")
        pool = await pool_of(node)
        assert await create(node) == "first"
        await refill(node)

        build(node, "second", env=env)
        await follow(node)

        assert [warm.template.build for warm in pool.ready] == ["second"]
        assert await create(node) == "second"
        assert pool.claims == {StartPath.WARM: 2}


@CAPABILITIES
async def test_pool_of_a_tag_follows_the_tag(tmp_path: Path, capabilities: set[DriverCapability]) -> None:
    async with open_node(NodeState(tmp_path, capabilities=capabilities)) as node:
        resolver = node.services.pools._refiller._resolver  # noqa: SLF001 - tags are those of records, which the templates in memory are not
        node.services.pools._templates._store = resolver._store = node.state.templates  # noqa: SLF001
        build(node, "first")
        build(node, "first", tag="v1")
        pool = await pool_of(node, "base:v1")
        assert await create(node, "base:v1") == "first"
        await refill(node)

        build(node, "second", tag="v1", env="second")
        await follow(node)

        assert await create(node, "base:v1") == "second"
        assert await create(node) == "first"
        assert pool.claims == {StartPath.WARM: 2}
        assert (await node.services.pools.get(OPERATOR, "base:v1")).id == pool.id


async def test_prepared_sandboxes_follow_the_template(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        build(node, "first")
        pool = await pool_of(node, sizes=PoolSizes(warm=0, max=0, prepared=1))
        assert [entry.template.build for entry in pool.prepared] == ["first"]

        build(node, "second", env="second")
        await follow(node)

        assert [entry.template.build for entry in pool.prepared] == ["second"]


async def test_warm_sandbox_of_the_last_build_that_is_finished_late_is_replaced(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        build(node, "first")
        release = node.driver.hold("boot")
        made = await node.services.pools.create(OPERATOR, "base", "auto", LimitsChange(), PoolSizes(warm=1, max=1))
        node.clock.advance(1.0)
        await node.driver.faults.reach("boot")
        build(node, "second")
        release.set()

        await follow(node)

        assert [warm.template.build for warm in node.pools.find(OPERATOR, made.id).pool.ready] == ["second"]


@CAPABILITIES
async def test_pool_of_a_deleted_template_is_empty_until_the_template_is_built_again(tmp_path: Path, capabilities: set[DriverCapability]) -> None:
    async with open_node(NodeState(tmp_path, capabilities=capabilities)) as node:
        build(node, "first")
        pool = await pool_of(node)

        node.state.templates.deleted.add("base")
        await follow(node)
        assert (len(pool.ready), (await node.services.pools.get(OPERATOR, pool.id)).error) == (0, "The template base was deleted.")

        node.state.templates.deleted.clear()
        build(node, "second")
        await follow(node)
        assert await create(node) == "second"
        assert (pool.claims, pool.error) == ({StartPath.WARM: 1}, "")


async def test_pool_that_is_deleted_while_its_template_is_read_gets_no_further_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        build(node, "first")
        pool = await pool_of(node)
        await create(node)  # one sandbox is missing
        defaults = node.state.templates.defaults

        async def delete_meanwhile(ref: TemplateRef) -> TemplateDefaults:
            monkeypatch.undo()
            await node.services.pools.delete(OPERATOR, pool.id)
            return await defaults(ref)

        monkeypatch.setattr(node.state.templates, "defaults", delete_meanwhile)
        await refill(node)

        assert pool.entries() == []


async def test_limits_of_a_pool_are_those_of_its_template_unless_the_request_names_others(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        build(node, "first", limits=Limits(cpus=2.0, memory_bytes=2 * GIB))
        own = await pool_of(node)
        assert own.spec.limits == Limits(cpus=2.0, memory_bytes=2 * GIB)
        assert await create(node) == "first"
        assert own.claims == {StartPath.WARM: 1}

        made = await node.services.pools.create(OPERATOR, "base", "auto", LimitsChange(cpus=1.0), PoolSizes(warm=0, max=0))
        assert made.limits == replace(own.spec.limits, cpus=1.0)


async def test_pools_of_the_settings_have_the_limits_of_their_templates(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.templates.defaults_of["base"] = TemplateDefaults(limits=Limits(memory_bytes=2 * GIB))
    async with open_node(state, pools=None) as node:
        await refill(node)
        await refill(node)
        pools = {pool.spec.template.name: pool for pool in (each.pool for each in node.pools.list(OPERATOR))}
        assert {name: pool.spec.limits for name, pool in pools.items()} == {"base": Limits(memory_bytes=2 * GIB), "code-interpreter": Limits()}

        await create(node)

        assert pools["base"].claims == {StartPath.WARM: 1}


async def test_pool_is_found_by_the_default_tag_of_its_template(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        pool = await pool_of(node)
        assert (await node.services.pools.get(OPERATOR, "base:default")).id == pool.id
        with pytest.raises(NotFoundError):
            await node.services.pools.get(OPERATOR, "base:v1")


async def test_template_that_cannot_be_read_keeps_no_other_pool_from_being_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        defaults = node.state.templates.defaults

        async def defaults_of_others(ref: TemplateRef) -> TemplateDefaults:
            if ref.name == "base":
                raise OSError(errno.ENOSPC, "No space left on device")
            return await defaults(ref)

        broken = await pool_of(node, sizes=PoolSizes(warm=0, max=1))
        other = await pool_of(node, "code-interpreter", PoolSizes(warm=0, max=1))
        monkeypatch.setattr(node.state.templates, "defaults", defaults_of_others)
        for pool in (broken, other):
            await node.services.pools.update(OPERATOR, pool.id, warm=1)
        await follow(node)

        assert (len(broken.ready), broken.error) == (0, "No space left on device")
        assert (len(other.ready), other.error) == (1, "")


async def test_snapshots_of_earlier_builds_that_only_a_private_pool_used_are_removed(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        build(node, "first")
        made = await node.services.pools.create(await new_key(node, "anne"), "base", "auto", LimitsChange(cpus=2.0), PoolSizes(warm=1, max=1))
        await follow(node)
        stored = tmp_path / "cache/snapshots"
        (first,) = stored.glob("*/made.json")

        build(node, "second", env="second")
        node.driver.faults.raises["snapshot"] = [ConflictError("The second build has no snapshot.") for _ in range(9)]
        await follow(node)
        assert "has no snapshot" in (await node.services.pools.get(OPERATOR, made.id)).error
        assert not first.exists()


async def test_snapshot_that_could_not_be_restored_is_removed_with_its_pool(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        anne = await new_key(node, "anne")
        made = await node.services.pools.create(anne, "base", "auto", LimitsChange(cpus=2.0), PoolSizes(warm=1, max=1))
        await follow(node)
        (stored,) = (tmp_path / "cache/snapshots").glob("*/made.json")

        node.driver.faults.raises["restore"] = [ConflictError("It is damaged.") for _ in range(2)]
        await node.sandboxes.create(anne, CreateSandboxParams(template="base", limits=LimitsChange(cpus=2.0)))
        while node.driver.faults.raises["restore"]:
            node.clock.advance(1.0)
            await node.pools.run_until_idle()
        assert node.pools.find(anne, made.id).snapshot is None
        await node.services.pools.delete(anne, made.id)
        await follow(node)
        assert not stored.exists()
