"""Builds of templates: how many at once, in which threads, and what waits for them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.ports import ResolvedTemplate
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.templates import TemplateResolver
from sandlot.images.progress import Progress, discard_progress
from sandlot.images.recipe_files import builtin_templates
from sandlot.images.store import ImageStore
from sandlot.model.access import LOCAL, OPERATOR, Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import RootFs, RootKind, TemplateRef
from sandlot.model.states import State
from sandlot.server.image_templates import MAX_BUILDS, ImageTemplates
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.node import MemoryNode, MemoryTemplates, NodeState, open_node, settled

WORKER_THREADS = (os.cpu_count() or 1) + 4
"""Number of asyncio's worker threads, which short work shares."""
DRIVERS = Drivers(
    {"gvisor": MemoryDriver(), "container": MemoryDriver("container", capabilities=set(DriverCapability) - {DriverCapability.BOOT_IMAGE})}
)
USER_TEMPLATES = tuple(f"user-{number}" for number in range(WORKER_THREADS))


class SlowImages(ImageStore):
    """The built-in recipes, which are built, and ``USER_TEMPLATES``, whose builds block until ``finish`` is set. No build makes an image.

    Attributes:
        finish: Event that ends all builds.
        building: Names of the templates that are being built.
        built: Names of the templates whose builds have ended, in order.
        error: Exception that each build raises; None for no exception.
    """

    __slots__ = ("_missing", "building", "built", "error", "finish")

    def __init__(self, cache: Path) -> None:
        recipes = builtin_templates()
        super().__init__(cache, {**recipes, **dict.fromkeys(USER_TEMPLATES, recipes["base"])})
        self._missing = set(USER_TEMPLATES)
        self.finish = threading.Event()
        self.building: set[str] = set()
        self.built: list[str] = []
        self.error: Exception | None = None

    def find_current_root(self, name: str) -> RootFs | None:
        """Return the root of a template that is built."""
        return None if name in self._missing else RootFs(name, Path("/nonexistent") / name)

    def root(self, name: str, _progress: Progress = discard_progress) -> RootFs:
        """Build a template."""
        self.building.add(name)
        assert self.finish.wait(60)
        self.building.discard(name)
        if self.error is not None:
            raise self.error
        self._missing.discard(name)
        self.built.append(name)
        return RootFs(name, Path("/nonexistent") / name)

    def find_root(self, digest: str) -> RootFs | None:
        """Return a root by its digest."""
        return RootFs(digest, Path("/nonexistent") / digest)


@pytest.fixture
def images(tmp_path: Path) -> Iterator[SlowImages]:
    """Images whose builds end after the test at the latest, so that no thread is left."""
    slow = SlowImages(tmp_path)
    yield slow
    slow.finish.set()


async def test_short_work_does_not_wait_for_template_builds(tmp_path: Path, images: SlowImages) -> None:
    """A create of a built template and a hibernation call short functions in threads."""
    templates: Any = ImageTemplates(images)
    state = NodeState(tmp_path, templates=templates)
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        creating = [asyncio.create_task(node.sandboxes.create(OPERATOR, CreateSandboxParams(template=name))) for name in USER_TEMPLATES]
        await settled(lambda: len(images.building) == MAX_BUILDS)
        node.clock.advance(30.0)  # the last reading of the host is outdated

        async with asyncio.timeout(30):
            await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
            await node.sandboxes.hibernate(OPERATOR, sandbox.id)

        assert (len(images.building), images.built) == (MAX_BUILDS, [])
        images.finish.set()
        assert [created.state for created in await asyncio.gather(*creating)] == [State.RUNNING] * len(USER_TEMPLATES)
        assert sorted(images.built) == sorted(USER_TEMPLATES)


async def test_callers_share_one_build(images: SlowImages) -> None:
    resolver = TemplateResolver(ImageTemplates(images), DRIVERS)
    first, second = [asyncio.create_task(resolver.resolve(TemplateRef(LOCAL, "user-0"), "gvisor")) for _ in range(2)]
    await settled(lambda: images.building == {"user-0"})

    first.cancel()
    images.finish.set()

    assert (await second).root.require_tree().name
    assert images.built == ["user-0"]


class TwoKinds(MemoryTemplates):
    """Templates that have a folder and an image."""

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        path = Path("/nonexistent") / ref.name
        return ResolvedTemplate(RootFs("image", image=path, index=path) if images else RootFs("folder", path), {})


async def test_root_is_of_a_kind_that_the_driver_starts() -> None:
    resolver, ref = TemplateResolver(TwoKinds(), DRIVERS), TemplateRef(LOCAL, "base")
    roots = await asyncio.gather(*(resolver.resolve(ref, isolation) for isolation in ("gvisor", "container", "gvisor")))
    assert [each.root.kind for each in roots] == [RootKind.IMAGE, RootKind.TREE, RootKind.IMAGE]


async def test_failed_build_frees_its_slot_and_is_tried_again(images: SlowImages) -> None:
    resolver = TemplateResolver(ImageTemplates(images), DRIVERS)
    images.finish.set()
    images.error = OSError("no space left")
    for _ in range(MAX_BUILDS + 1):
        with pytest.raises(OSError, match="no space left"):
            await resolver.resolve(TemplateRef(LOCAL, "user-1"), "gvisor")
    images.error = None

    assert (await resolver.resolve(TemplateRef(LOCAL, "user-1"), "gvisor")).root.digest
    assert (await resolver.resolve(TemplateRef(LOCAL, "user-0"), "gvisor")).root.digest


async def _principal(node: MemoryNode, name: str) -> Principal:
    record, _secret = await node.keys.create(name)
    principal = node.keys.principal_of(record.id)
    assert principal is not None
    return principal


async def test_error_lists_own_and_builtin_templates_only(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        anne, bob = [await _principal(node, name) for name in ("anne", "bob")]
        node.state.templates.custom |= {TemplateRef(anne.owner, "own-project"), TemplateRef(bob.owner, "secret-project")}

        with pytest.raises(NotFoundError) as error:
            await node.sandboxes.create(anne, CreateSandboxParams(template="secret-project"))

        assert "base" in error.value.hint
        assert "own-project" in error.value.hint
        assert "secret-project" not in error.value.hint


async def test_name_means_the_own_template_before_the_builtin_template(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        anne, bob = [await _principal(node, name) for name in ("anne", "bob")]
        node.state.templates.custom.add(TemplateRef(anne.owner, "base"))

        own = await node.sandboxes.create(anne, CreateSandboxParams(template="base"))
        builtin_ = await node.sandboxes.create(bob, CreateSandboxParams(template="base"))

        assert (own.spec.template.owner, builtin_.spec.template.owner) == (anne.owner, LOCAL)
        assert own.spec.template.digest != builtin_.spec.template.digest
        assert 'template="custom"' in node.metrics.text().decode()
