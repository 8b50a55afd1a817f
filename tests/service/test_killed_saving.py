"""SIGKILL of the service in the middle of snapshots and forks: no half of one can be used, what was reported is there, and nothing is left.

Whatever it was at, the sandbox itself lives on with all that is in it; then the next service ends it, and nothing of any is on the host.
"""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.core.admission import SINGLE_USE_METADATA
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams
from sandlot.server.composition import RunningService
from tests.support.forsaken import COUNT
from tests.support.saving import State, check, killed_at, make, real_service, saved, shell, soaks
from tests.support.until import until

pytestmark = pytest.mark.slow


async def lives_on(service: RunningService, told: dict[str, Any]) -> Sandbox:
    sandbox = service.internals.registry.find(told["box"], OPERATOR)
    await check(service.node, sandbox, State("first", told["ticker"]))
    return sandbox


async def listed(service: RunningService) -> list[str]:
    return [record.id for record in (await service.node.snapshots.list(OPERATOR, after=None, limit=99)).items]


def live(service: RunningService) -> set[str]:
    return {sandbox.id for sandbox in service.internals.registry.list(OPERATOR)}


@pytest.mark.parametrize("step", ["writing", *soaks("written", "intended", "recorded")])
async def test_service_killed_during_a_snapshot_leaves_a_complete_one_or_none(step: str) -> None:
    with killed_at("forsaken", "take", step) as (folder, told):
        assert "snapshot" not in told, "nobody was told of it"
        async with real_service(folder) as service:
            sandbox = await lives_on(service, told)
            there = await listed(service)
            assert saved(folder) == there
            assert len(there) == (1 if step == "recorded" else 0)
            if there:
                await check(
                    service.node,
                    await make(service, CreateSandboxParams(snapshot="kept")),
                    State("first", told["ticker"]),
                )
            else:  # the name is free, and the sandbox can be written again
                await service.node.snapshots.create(OPERATOR, sandbox.id, name="kept")
            assert len(await listed(service)) == 1


@pytest.mark.soak
async def test_service_killed_while_it_verifies_a_snapshot_finishes_it_later() -> None:
    with killed_at("forsaken", "take", "packing") as (folder, told):
        async with real_service(folder) as service:
            sandbox = await lives_on(service, told)
            snapshots = service.node.snapshots
            await snapshots.verifier.idle.wait()
            record = await snapshots.get(OPERATOR, told["snapshot"])
            assert (record.has_overlay, record.problem) == (True, "")
            assert sorted(each.name for each in (folder / "saved" / record.id).iterdir()) == ["files.overlay", "image"]
            await until(lambda: live(service) == {sandbox.id})  # the copies were for that alone


async def test_service_killed_during_a_deletion_leaves_no_snapshot() -> None:
    with killed_at("forsaken", "delete", "forgotten") as (folder, told):
        async with real_service(folder) as service:
            await lives_on(service, told)
            assert await listed(service) == saved(folder) == []


@pytest.mark.parametrize("step", ["restoring", *soaks("conceived", "one is told of")])
async def test_service_killed_during_a_start_from_a_snapshot_keeps_the_snapshot_usable(step: str) -> None:
    with killed_at("forsaken", "create", step) as (folder, told):
        assert "made" not in told
        async with real_service(folder) as service:
            sandbox = await lives_on(service, told)
            assert await listed(service) == saved(folder) == [told["snapshot"]]
            for other in service.internals.registry.list(OPERATOR):
                if other.id != sandbox.id and not SINGLE_USE_METADATA.items() <= other.metadata.items():  # recorded as one that runs, so it runs
                    await check(service.node, other, State("first", told["ticker"]))
            again = await make(service, CreateSandboxParams(snapshot="kept"))
            await check(service.node, again, State("first", told["ticker"]))


@pytest.mark.parametrize(
    "step", ["one is told of", *soaks("writing", "written", "conceived", "restoring", "one waits", "all are told of", "image removed")]
)
async def test_service_killed_during_a_fork_leaves_all_children_or_none(step: str) -> None:
    with killed_at("forsaken", "fork", step) as (folder, told):
        assert "children" not in told or step == "image removed", "that is done behind the answer"
        async with real_service(folder) as service:
            sandbox = await lives_on(service, told)
            assert saved(folder) == []
            found = live(service) - {sandbox.id}
            assert len(found) in {"one is told of": {1, 2}, "all are told of": {2}, "image removed": {2}}.get(step, {0})
            children = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(COUNT), key="k")
            assert len(children) == COUNT
            if len(found) == COUNT:
                assert {child.id for child in children} == found, "what was made whole is given again"
            await until(lambda: live(service) == {sandbox.id, *(child.id for child in children)})
            for child in children:
                await check(service.node, child, State("first", told["ticker"]))
                assert (await shell(service.node, child, "hostname")).strip() == child.id


async def test_promote_interrupted_by_a_kill_can_be_repeated() -> None:
    with killed_at("forsaken", "promote", "one has ended") as (folder, told):
        kept, *others = told["children"]
        async with real_service(folder) as service:
            sandbox = await lives_on(service, told)
            await service.internals.forks.promote(OPERATOR, kept)
            await until(lambda: live(service) == {sandbox.id, kept})
            assert (await service.internals.forks.promote(OPERATOR, kept)).ended == ()
            await check(service.node, service.internals.registry.find(kept, OPERATOR), State("first", told["ticker"]))
            assert set(others) & live(service) == set()
