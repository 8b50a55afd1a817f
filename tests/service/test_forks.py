"""Forks on gVisor: children continue from their parent and are independent of it.

Inheritance, repeated requests, failures and trees are tested on the in-memory driver, in ``tests/unit/core/saved``.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.network import NetworkMode
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import MIB, OnTimeout
from sandlot.server.composition import RunningService
from tests.support.saving import BASE, SMALL, State, cell, check, fill, gone, make, saved, shell
from tests.support.until import until

pytestmark = pytest.mark.slow

ALICE = Principal(owner=OwnerId("a11ce0a11ce0"), name="alice")

DRAWS = """
import json, os, random, uuid
print(json.dumps([os.urandom(16).hex(), random.random(), str(uuid.uuid4())]))
"""
"""What children of one fork must not have in common."""


@pytest.fixture(scope="module")
async def parent(core_service: RunningService) -> tuple[Sandbox, State]:
    params = replace(
        BASE,
        name="root",
        env={"FIRST": "1", "BOTH": "1"},
        metadata={"a": "b", "sandlot.api": "x"},
        on_timeout=OnTimeout.PAUSE,
        idle_timeout_s=1000.0,
    )
    sandbox = await make(core_service, params)
    return sandbox, await fill(core_service.node, sandbox)


async def fork(
    service: RunningService, sandbox: Sandbox, count: int = 1, principal: Principal = OPERATOR, key: str | None = None, **asked: object
) -> list[Sandbox]:
    return list(await service.internals.forks.create(principal, sandbox.id, ForkParams(count, **asked), key=key))  # type: ignore[arg-type]


async def end(service: RunningService, *sandboxes: Sandbox) -> None:
    await asyncio.gather(*(service.internals.manager.kill(OPERATOR, sandbox.id) for sandbox in sandboxes))


def live(service: RunningService) -> set[str]:
    return {sandbox.id for sandbox in service.internals.registry.list(OPERATOR)}


async def test_children_continue_from_their_parent_and_are_independent(
    core_service: RunningService, parent: tuple[Sandbox, State], state_dir: Path
) -> None:
    sandbox, state = parent
    await cell(core_service.node, sandbox, DRAWS)  # every generator has been used
    children = await fork(core_service, sandbox, 2, env={"BOTH": "2"}, name="child", timeout_s=77.0)
    for each in (sandbox, *children):
        await check(core_service.node, each, state)
    await until(lambda: saved(state_dir) == [])  # the image of a fork is nobody's, and gone once its children have started
    for number, child in enumerate(children, 1):
        assert (child.spec.parent, child.spec.restored, child.spec.snapshot, child.name) == (sandbox.id, "memory", None, f"child-{number}")
        assert (child.spec.limits, child.spec.network.mode, child.spec.on_timeout) == (SMALL, NetworkMode.NONE, OnTimeout.PAUSE)
        assert child.idle_timeout_s == 1000.0
        assert dict(child.metadata) == {"a": "b"}, "the service's own words are not copied"
        assert (child.owner, child.spec.timeout_s) == (sandbox.owner, 77.0)
        assert (await shell(core_service.node, child, "hostname; echo $FIRST $BOTH")).split() == [child.id, "1", "2"]
    draws = [json.loads(await cell(core_service.node, each, DRAWS)) for each in (sandbox, *children)]
    for drawn in zip(*draws, strict=True):
        assert len(set(drawn)) == len(draws), drawn
    await cell(core_service.node, children[0], "word = 'changed'")
    await shell(core_service.node, children[0], f"echo changed > /workspace/word; kill {state.ticker}")
    for each in (sandbox, *children[1:]):
        await check(core_service.node, each, state)
    await end(core_service, *children)


@pytest.mark.parametrize("generations, size", [(2, 8 * MIB), pytest.param(10, 50 * MIB, marks=pytest.mark.soak)])
async def test_generations_of_forks_keep_everything(core_service: RunningService, generations: int, size: int, state_dir: Path) -> None:
    sandbox = await make(core_service)
    state = await fill(core_service.node, sandbox, size=size)
    line = [sandbox]
    for number in range(1, generations + 1):
        (child,) = await fork(core_service, line[-1])
        await check(core_service.node, child, state)
        assert (
            await cell(core_service.node, child, f"path = [*globals().get('path', []), {number}]\nprint(path)") == f"{list(range(1, number + 1))}\n"
        )
        await shell(core_service.node, child, f"cat /workspace/generations 2>/dev/null; echo {number} >> /workspace/generations")
        line.append(child)
        if len(line) > 2:  # the oldest go, and what came of them goes on
            await end(core_service, line[-3])
    assert (await shell(core_service.node, line[-1], "cat /workspace/generations")).split() == [str(number) for number in range(1, generations + 1)]
    await check(core_service.node, line[-1], state)
    assert (await core_service.internals.forks.get_tree(OPERATOR, line[-1].id)).root == sandbox.id
    await end(core_service, *line)
    await gone(state_dir, *saved(state_dir))


@pytest.mark.soak
async def test_many_children_start_at_once(core_service: RunningService, state_dir: Path) -> None:
    sandbox = await make(core_service)
    await cell(core_service.node, sandbox, "word = 'first'")
    children = await fork(core_service, sandbox, 40)
    words = await asyncio.gather(*(cell(core_service.node, child, "import socket; print(word, socket.gethostname())") for child in children))
    assert [word.split() for word in words] == [["first", child.id] for child in children]
    await end(core_service, sandbox, *children)
    await until(lambda: saved(state_dir) == [])


async def test_concurrent_forks_of_a_hibernated_sandbox_do_not_block_each_other(core_service: RunningService) -> None:
    """Children that are prepared ahead, and a parent that needs a turn to be written, must not hold each other up."""
    sandbox = await make(core_service)
    await cell(core_service.node, sandbox, "word = 'first'")
    await core_service.internals.manager.hibernate(OPERATOR, sandbox.id)
    *families, awake = await asyncio.gather(*(fork(core_service, sandbox) for _ in range(2)), shell(core_service.node, sandbox, "echo awake"))
    assert str(awake).strip() == "awake"
    children = [child for family in families for child in family]
    assert isinstance(children[0], Sandbox)
    assert [await cell(core_service.node, child, "print(word)") for child in children] == ["first\n"] * 2  # type: ignore[arg-type]
    await end(core_service, sandbox, *children)  # type: ignore[arg-type]
