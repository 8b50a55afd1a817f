"""A runner of builds without sandboxes: it records the plans of builds, and each build ends as a test says."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from sandlot.builds.plan import BuildPlan, Copy
from sandlot.core.node import Node
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.images import ImageConfig
from sandlot.model.templates import BuildLine, BuildRecord, BuiltRoot, LogLevel, TemplateSettings
from sandlot.server import process
from tests.unit.compat.shared import SharedBench, shared_bench

FAILING = "exit 1"
"""Text in a step that lets its build fail at this step."""


class StandInBuilds:
    """It.

    Attributes:
        plans: Build -> its plan.
        contexts: Build -> content of each of its archives, read when the build was started.
        gate: Builds end when it is set.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.plans: dict[str, BuildPlan] = {}
        self.contexts: dict[str, dict[str, bytes]] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def prune(self) -> None:
        """Nothing is kept."""

    def check_room(self, principal: Principal) -> None:
        """Refuse nothing."""

    async def start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        assert principal.sees(build.owner)
        self.plans[build.id] = plan
        self.contexts[build.id] = {name: path.read_bytes() for name, path in plan.contexts.items()}
        self._tasks[build.id] = asyncio.create_task(self._run(build, plan))

    async def cancel(self, principal: Principal, build: str) -> bool:
        task = self._tasks.get(build)
        if task is None or task.done():
            return False
        task.cancel()
        await asyncio.wait([task])
        await self._node.template_builds.cancel(await self._node.template_builds.get_build(principal, build))
        return True

    async def ended(self, build: str) -> None:
        """Wait until a build has ended."""
        await self._tasks[build]

    async def _run(self, build: BuildRecord, plan: BuildPlan) -> None:
        records, now = self._node.template_builds, build.created_at
        begun = await records.begin(build)
        assert begun is not None
        await self.gate.wait()
        for step in plan.stages[-1].source.steps(ImageConfig()):
            begun = await records.step(begun, step.label) or begun
            await records.log(begun, [BuildLine(now, LogLevel.INFO, step.text, step.label)])
            if FAILING in step.text:
                await records.log(begun, [BuildLine(now, LogLevel.ERROR, "it did not work", step.label)])
                await records.fail(begun, InvalidRequestError("failed to run command: exit code 1"))
                return
        settings = TemplateSettings(start_command=plan.start_command, ready_command=plan.ready_command)
        await records.finish(begun, BuiltRoot((), 1 << 20, "", "base"), settings)


@asynccontextmanager
async def build_bench(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SharedBench, StandInBuilds]]:
    """Run a service on the in-memory driver that runs builds with :class:`StandInBuilds`."""
    create_app: Any = vars(process)["create_app"]
    apps: list[FastAPI] = []

    def without_sandboxes(*args: Any) -> FastAPI:  # noqa: ANN401 - those of create_app
        apps.append(create_app(*args))
        return apps[-1]

    monkeypatch.setattr(process, "create_app", without_sandboxes)
    async with shared_bench(folder) as at:
        apps[0].state.builds = builds = StandInBuilds(at.node)
        yield at, builds


@dataclass
class Rig:
    """A service whose builds are recorded, and a key.

    Attributes:
        at: The service.
        builds: Its builds.
        key: Secret of the key.
        url: Its address.
    """

    at: SharedBench
    builds: StandInBuilds
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.at.port}"

    async def another_key(self) -> str:
        return (await self.at.service.api_keys.create("other"))[1]

    async def last(self) -> BuildRecord:
        """Return the build that was started last, when it has ended."""
        build = [*self.builds.plans][-1]
        await self.builds.ended(build)
        return await self.at.node.template_builds.get_build(OPERATOR, build)


@asynccontextmanager
async def build_rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Run a service with a key."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))  # a path that is short enough for a socket
    async with build_bench(folder, monkeypatch) as (at, builds):
        yield Rig(at, builds, (await at.service.api_keys.create("mine"))[1])
    shutil.rmtree(folder)


def copies(plan: BuildPlan) -> list[Copy]:
    """Return the copies of the last stage of a plan."""
    return [step.action for step in plan.stages[-1].source.steps(ImageConfig()) if isinstance(step.action, Copy)]
