"""Results of builds: the root image and the snapshot of a build, and the snapshots that are needed no longer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandlot.builds.layers import LayerStore
from sandlot.model.access import OPERATOR
from sandlot.model.ids import NodeId, TemplateId
from sandlot.model.specs import Limits, TemplateRef, User
from sandlot.model.templates import BuildRecord, BuildStatus, BuiltRoot, TemplateDefaults, TemplateSettings
from sandlot.server.build_results import ServiceBuildResults

ROOT = BuiltRoot((), 1)
BUILD = BuildRecord(
    "id",
    TemplateId("web"),
    OPERATOR.owner,
    NodeId("node"),
    BuildStatus.READY,
    Limits(),
    datetime.now(UTC),
    settings=TemplateSettings({"MODE": "web"}, "user", "/srv", "serve"),
    root=ROOT,
)


@dataclass
class StandIn:
    """Templates, root images and snapshots, which record their calls."""

    ensured: list[BuiltRoot] = field(default_factory=list)
    made: list[tuple[TemplateRef, TemplateDefaults]] = field(default_factory=list)
    needed: Collection[str] = ()

    async def ensure(self, root: BuiltRoot, _layers: object, _report: object) -> None:
        self.ensured.append(root)

    async def digest(self, _root: BuiltRoot) -> str:
        return "d" * 64

    def lend(self, _principal: object, digest: str, env: Mapping[str, str]) -> str:
        return f"lent-{digest[:4]}-{env['MODE']}"

    async def snapshot_contents(self, builds: Collection[BuildRecord]) -> Collection[str]:
        return [f"content of {build.id}" for build in builds]

    async def make(self, _principal: object, template: TemplateRef, defaults: TemplateDefaults, _on_output: object) -> int:
        self.made.append((template, defaults))
        return 1000

    async def prune(self, contents: Collection[str]) -> None:
        self.needed = contents


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def results(stand_in: StandIn, tmp_path: Path) -> ServiceBuildResults:
    parts: Any = stand_in
    return ServiceBuildResults(parts, parts, LayerStore(tmp_path), parts)


async def test_root_image_of_a_build_is_made(results: ServiceBuildResults, stand_in: StandIn) -> None:
    await results.make_root_image(ROOT, lambda _line: None)
    assert stand_in.ensured == [ROOT]


async def test_snapshot_is_made_of_the_root_image_and_the_settings_of_the_build(results: ServiceBuildResults, stand_in: StandIn) -> None:
    assert await results.save_snapshot(OPERATOR, BUILD, lambda _channel, _data: None) == 1000
    ((template, defaults),) = stand_in.made
    assert (template.name, template.digest) == ("lent-dddd-web", "d" * 64)
    assert (defaults.digest, defaults.cwd, defaults.user) == ("d" * 64, "/srv", User("user"))


async def test_build_without_root_file_system_has_no_snapshot(results: ServiceBuildResults, stand_in: StandIn) -> None:
    assert await results.save_snapshot(OPERATOR, replace(BUILD, root=None), lambda _channel, _data: None) == 0
    assert stand_in.made == []


async def test_snapshots_of_all_builds_are_kept(results: ServiceBuildResults, stand_in: StandIn) -> None:
    await results.prune([BUILD])
    assert stand_in.needed == ["content of id"]
