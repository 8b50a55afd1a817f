"""Builds of templates: how many at once, in which threads, and what waits for them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.core.ports import ResolvedTemplate
from sandlot.core.resources.drivers import MAX_BUILDS, Templates
from sandlot.model.access import OPERATOR
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.states import State
from tests.support.node import MemoryTemplates, NodeState, open_node, settled

WORKER_THREADS = (os.cpu_count() or 1) + 4
"""Number of asyncio's worker threads, which short work shares."""
USER_TEMPLATES = tuple(f"user-{number}" for number in range(WORKER_THREADS))


class SlowTemplates(MemoryTemplates):
    """The built-in templates, which are built, and ``USER_TEMPLATES``, whose builds block until ``finish`` is set.

    Attributes:
        finish: Event that ends all builds.
        building: Names of the templates that are being built.
        built: Names of the templates whose builds have ended, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recipes = {**self._recipes, **dict.fromkeys(USER_TEMPLATES, self._recipes["base"])}
        self.missing |= set(USER_TEMPLATES)
        self.finish = threading.Event()
        self.building: set[str] = set()
        self.built: list[str] = []

    def base(self, name: str) -> ResolvedTemplate:
        """Build a template."""
        if name in self.missing:
            self.building.add(name)
            assert self.finish.wait(60)
            self.building.discard(name)
            self.built.append(name)
        return super().base(name)


@pytest.fixture
def templates() -> Iterator[SlowTemplates]:
    """Templates whose builds end after the test at the latest, so that no thread is left."""
    slow = SlowTemplates()
    yield slow
    slow.finish.set()


async def test_short_work_does_not_wait_for_template_builds(tmp_path: Path, templates: SlowTemplates) -> None:
    """A create of a built template and a hibernation call short functions in threads."""
    state = NodeState(tmp_path, templates=templates)
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        creating = [asyncio.create_task(node.sandboxes.create(OPERATOR, CreateSandboxParams(template=name))) for name in USER_TEMPLATES]
        await settled(lambda: len(templates.building) == MAX_BUILDS)
        node.clock.advance(30.0)  # the last reading of the host is outdated

        async with asyncio.timeout(30):
            await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
            await node.sandboxes.hibernate(OPERATOR, sandbox.id)

        assert (len(templates.building), templates.built) == (MAX_BUILDS, [])
        templates.finish.set()
        assert [created.state for created in await asyncio.gather(*creating)] == [State.RUNNING] * len(USER_TEMPLATES)
        assert sorted(templates.built) == sorted(USER_TEMPLATES)


async def test_callers_share_one_build(templates: SlowTemplates) -> None:
    resolver = Templates(templates)
    first, second = [asyncio.create_task(resolver.resolve("user-0")) for _ in range(2)]
    await settled(lambda: templates.building == {"user-0"})

    first.cancel()
    templates.finish.set()

    assert (await second).root.path.name
    assert templates.built == ["user-0"]


async def test_failed_build_frees_its_slot_and_is_tried_again(templates: SlowTemplates) -> None:
    resolver = Templates(templates)
    templates.finish.set()
    for _ in range(MAX_BUILDS + 1):
        templates.errors["base"] = OSError("no space left")
        with pytest.raises(OSError, match="no space left"):
            await resolver.resolve("base")
    del templates.errors["base"]

    assert (await resolver.resolve("base")).root.digest
    assert (await resolver.resolve("user-0")).root.digest
