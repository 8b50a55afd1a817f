"""Which template a name means, and what sandboxes get from the templates of users."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.pools.models import content_of
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import INTERNAL, LOCAL, OPERATOR, OwnerId, Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.ids import NodeId, new_template_id
from sandlot.model.images import Layer
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import GIB, Limits, RootFs, RootKind, TemplateRef, User
from sandlot.model.templates import BuildRecord, BuildStatus, BuiltRoot, TemplateDefaults, TemplateRecord, TemplateSettings
from sandlot.server.user_templates import UserTemplates
from sandlot.testing.memory.store import MemoryDatabase, MemoryStore
from tests.support.clock import ManualClock

ALICE = Principal(OwnerId("a11ce0a11ce0"), "alice")
BOB = Principal(OwnerId("b0bb0bb0bb0b"), "bob")
NOW = ManualClock().now()
SETTINGS = TemplateSettings({"A": "b"}, "www-data:www-data", "/srv", "serve", "curl localhost")


@dataclass
class Roots:
    """Root images that need no making."""

    made: list[BuiltRoot] = field(default_factory=list)
    cached: set[str] = field(default_factory=set)

    async def digest(self, root: BuiltRoot) -> str:
        return hashlib.sha256(repr(root).encode()).hexdigest()

    async def ensure(self, root: BuiltRoot, _layers: object) -> RootFs:
        self.made.append(root)
        return _image(await self.digest(root))

    async def find(self, digest: str) -> RootFs | None:
        return _image(digest) if digest in self.cached else None


class BuiltIn:
    """The built-in template ``base``."""

    async def list(self, _principal: Principal) -> list[TemplateInfo]:
        return [TemplateInfo("base", "", "0" * 64)]

    async def find(self, _principal: Principal, name: str) -> TemplateRef | None:
        return TemplateRef(LOCAL, name) if name == "base" else None

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        if ref.name != "base":
            raise NotFoundError("There is no such recipe.")
        return TemplateDefaults()

    async def build(self, _ref: TemplateRef, *, images: bool) -> ResolvedTemplate:  # noqa: ARG002 - of the interface
        return ResolvedTemplate(RootFs("0" * 64, Path("/tree")), {})

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        return await self.build(ref, images=False) if ref.digest == "0" * 64 else None


@dataclass
class At:
    """A template store of users, and its parts."""

    templates: UserTemplates
    store: MemoryStore
    roots: Roots

    async def add(self, name: str, owner: OwnerId = ALICE.owner) -> TemplateRecord:
        """Add a template without builds."""
        record = TemplateRecord(new_template_id(), owner, name, Limits(memory_bytes=2 * GIB), NOW, NOW)
        await self.store.templates.add(record)
        return record

    async def build(self, record: TemplateRecord, *tags: str, settings: TemplateSettings = SETTINGS, layer: str = "") -> BuildRecord:
        """Add a ready build with its own root, or with that of a layer."""
        waiting = BuildRecord(str(uuid.uuid4()), record.id, record.owner, NodeId("node"), BuildStatus.WAITING, record.limits, NOW, tags)
        await self.store.templates.add_build(waiting)
        root = BuiltRoot((Layer(f"sha256:{layer or waiting.id}", 1, "", ""),), 1)
        ready = replace(waiting, status=BuildStatus.READY, root=root, settings=settings, ended_at=NOW)
        assert await self.store.templates.save_build(ready)
        return ready


@pytest.fixture
async def at() -> AsyncIterator[At]:
    async with MemoryStore(MemoryDatabase()) as store:
        roots: Any = Roots()
        yield At(UserTemplates(BuiltIn(), store.templates, roots, _no_layer), store, roots)


async def test_name_means_the_own_template_then_that_of_the_operator_then_the_builtin_one(at: At) -> None:
    for owner in (LOCAL, ALICE.owner):
        await at.build(await at.add("web", owner), "default")
    await at.build(await at.add("base"), "default")
    assert await at.templates.find(ALICE, "web") == TemplateRef(ALICE.owner, "web")
    assert await at.templates.find(BOB, "web") == await at.templates.find(OPERATOR, "web") == TemplateRef(LOCAL, "web")
    assert await at.templates.find(ALICE, "base") == TemplateRef(ALICE.owner, "base")
    assert await at.templates.find(BOB, "base") == TemplateRef(LOCAL, "base")
    assert await at.templates.find(INTERNAL, "web") is None
    for name in ("none", "base:v1", "", "../base", "web/x", "base:"):
        assert await at.templates.find(BOB, name) in {None, TemplateRef(LOCAL, name.rstrip(":"))}


async def test_template_without_a_ready_build_hides_no_other(at: At) -> None:
    await at.add("base")
    assert await at.templates.find(ALICE, "base") == TemplateRef(LOCAL, "base")


async def test_record_of_the_operator_never_stands_for_a_builtin_template(at: At) -> None:
    await at.build(await at.add("base", LOCAL), "default")
    ref = TemplateRef(LOCAL, "base")
    assert await at.templates.find(OPERATOR, "base") == await at.templates.find(ALICE, "base") == ref
    assert await at.templates.defaults(ref) == TemplateDefaults()
    assert (await at.templates.build(ref, images=False)).root.kind is RootKind.TREE


async def test_ids_and_tags_are_found_by_those_who_see_the_template(at: At) -> None:
    record = await at.add("web")
    await at.build(record, "v1")
    await at.build(record, "default", "v2")
    assert await at.templates.find(ALICE, f"{record.id}") == TemplateRef(ALICE.owner, "web")
    assert await at.templates.find(ALICE, "web:v1") == TemplateRef(ALICE.owner, "web", tag="v1")
    assert await at.templates.find(ALICE, f"{record.id}:v2") == TemplateRef(ALICE.owner, "web", tag="v2")
    assert await at.templates.find(ALICE, "web:default") == TemplateRef(ALICE.owner, "web")
    assert await at.templates.find(ALICE, "web:v3") is None
    assert await at.templates.find(BOB, record.id) is None
    assert await at.templates.find(BOB, f"{record.id}:v1") is None
    assert await at.templates.find(OPERATOR, record.id) == TemplateRef(ALICE.owner, "web")


async def test_sandboxes_get_the_settings_of_the_build(at: At) -> None:
    record = await at.add("web")
    build = await at.build(record, "default")
    ref = TemplateRef(ALICE.owner, "web")
    resolved = await at.templates.build(ref, images=True)
    assert await at.templates.defaults(ref) == TemplateDefaults(
        RootKind.IMAGE, record.limits, "/srv", User("www-data:www-data"), "serve", "curl localhost", resolved.root.digest, build.id
    )
    assert (resolved.env, resolved.root.kind, resolved.build) == ({"A": "b"}, RootKind.IMAGE, build.id)
    assert await at.templates.at(TemplateRef(ALICE.owner, "web", resolved.root.digest, build.id)) == resolved
    assert len(at.roots.made) == 2
    assert await at.templates.defaults(TemplateRef(LOCAL, "base")) == TemplateDefaults()
    assert (await at.templates.build(TemplateRef(LOCAL, "base"), images=False)).root.kind is RootKind.TREE


async def test_build_without_settings_has_the_defaults_of_the_api(at: At) -> None:
    record = await at.add("web")
    await at.build(record, "default", settings=TemplateSettings())
    defaults = await at.templates.defaults(TemplateRef(ALICE.owner, "web"))
    assert (replace(defaults, digest="", build=""), defaults.start) == (TemplateDefaults(RootKind.IMAGE, record.limits), None)


async def test_template_without_the_default_tag_says_what_to_do(at: At) -> None:
    await at.build(await at.add("web"), "v1")
    with pytest.raises(NotFoundError, match="has no build with the tag `default`") as missing:
        await at.templates.build(TemplateRef(ALICE.owner, "web"), images=True)
    assert "NAME:TAG" in missing.value.hint


async def test_root_of_a_deleted_template_is_found_while_it_is_cached(at: At) -> None:
    record = await at.add("web")
    build = await at.build(record, "default")
    assert build.root is not None
    ref = TemplateRef(ALICE.owner, "web", await at.roots.digest(build.root), build.id)
    await at.store.templates.remove(record.id)
    assert await at.templates.at(ref) is None
    at.roots.cached.add(ref.digest)
    found = await at.templates.at(ref)
    assert found is not None
    assert (found.root.digest, found.build) == (ref.digest, build.id)
    assert await at.templates.defaults(ref) == TemplateDefaults(RootKind.IMAGE)


async def test_builds_that_differ_in_their_settings_only_are_told_apart(at: At) -> None:
    record = await at.add("web")
    old = await at.build(record, "v1", settings=TemplateSettings({"MODE": "old"}, start_command="serve old"), layer="same")
    new = await at.build(record, "default", settings=TemplateSettings({"MODE": "new"}, start_command="serve new"), layer="same")
    for name, build in (("web:v1", old), ("web", new)):
        ref = await at.templates.find(ALICE, name)
        assert ref is not None
        defaults = await at.templates.defaults(ref)
        pinned = defaults.pin(ref)
        assert (defaults.start_command, pinned.build, pinned.digest) == (build.settings.start_command, build.id, defaults.digest)
        assert await at.templates.defaults(pinned) == defaults
        resolved = await at.templates.build(ref, images=True)
        assert (resolved.env, resolved.build) == (build.settings.env, build.id)
        assert await at.templates.at(pinned) == resolved


async def test_lent_root_images_keep_their_environments(at: At) -> None:
    at.roots.cached.add("d" * 64)
    names = [at.templates.lend(ALICE, "d" * 64, {"MODE": mode}) for mode in ("old", "new", "old")]
    assert names[0] == names[2] != names[1]
    for name, mode in zip(names, ("old", "new", "old"), strict=True):
        ref = await at.templates.find(ALICE, name)
        assert ref is not None
        resolved = await at.templates.at(ref)
        assert resolved is not None
        assert (resolved.root.digest, resolved.env) == ("d" * 64, {"MODE": mode})
        assert await at.templates.find(BOB, name) is None


async def test_root_image_with_another_guest_has_the_settings_of_its_build(at: At) -> None:
    build = await at.build(await at.add("web"), "default")
    ref = TemplateRef(ALICE.owner, "web", "e" * 64, build.id)
    assert await at.templates.at(ref) is None
    at.roots.cached.add(ref.digest)
    assert await at.templates.at(ref) == ResolvedTemplate(_image(ref.digest), {"A": "b"}, build.id)


async def test_snapshots_have_the_limits_of_the_template(at: At) -> None:
    record = await at.add("web")
    build = await at.build(record, "default")
    other = await at.build(record, settings=TemplateSettings({"A": "c"}))
    defaults = await at.templates.defaults(TemplateRef(ALICE.owner, "web"))
    contents = await at.templates.snapshot_contents([build])
    assert contents == {content_of(ALICE.owner, {"A": "b"}, defaults)}
    assert len(await at.templates.snapshot_contents([build, other])) == 2
    waiting = replace(build, id=str(uuid.uuid4()), status=BuildStatus.WAITING, limits=Limits(memory_bytes=4 * GIB))
    await at.store.templates.add_build(waiting)
    await at.store.templates.save_build(replace(waiting, status=BuildStatus.READY))
    assert contents.isdisjoint(await at.templates.snapshot_contents([build]))


async def test_list_has_own_templates_those_of_the_operator_and_the_builtin_ones(at: At) -> None:
    own, shared = await at.add("web"), await at.add("shared", LOCAL)
    await at.add("secret", BOB.owner)
    build = await at.build(own, "default")
    assert build.root is not None
    found = {each.name: each for each in await at.templates.list(ALICE)}
    assert {"base", "web", "shared"} <= found.keys()
    assert "secret" not in found
    assert (found["web"].id, found["web"].owner, found["web"].digest) == (own.id, ALICE.owner, await at.roots.digest(build.root))
    assert (found["shared"].id, found["shared"].digest) == (shared.id, None)
    assert (found["web"].limits, found["base"].limits) == (own.limits, Limits())
    assert (found["base"].id, found["base"].owner) == ("", LOCAL)


async def test_list_shows_the_templates_that_names_mean(at: At) -> None:
    for owner in (ALICE.owner, LOCAL):
        await at.add("base", owner)  # without a ready build, or of the operator: the name means the built-in template
    assert [(each.owner, each.digest) for each in await at.templates.list(ALICE)] == [(LOCAL, "0" * 64)]


async def test_deleted_template_or_tag_is_no_builtin_template(at: At) -> None:
    record = await at.add("base")
    await at.build(record, "default", "v1")
    tag, default = await at.templates.find(ALICE, "base:v1"), await at.templates.find(ALICE, "base")
    assert tag is not None
    assert default is not None
    await at.store.templates.change_tags(record.id, {"v1": None}, at=NOW)
    for call in (at.templates.defaults(tag), at.templates.build(tag, images=True)):
        with pytest.raises(NotFoundError, match="has no build with the tag `v1`"):
            await call
    await at.store.templates.remove(record.id)
    for call in (at.templates.defaults(default), at.templates.build(tag, images=True)):
        with pytest.raises(NotFoundError, match="was deleted"):
            await call


async def test_deleted_build_is_no_builtin_template(at: At) -> None:
    build = await at.build(await at.add("base"), "v1")
    ref = TemplateRef(ALICE.owner, "base", build=build.id)
    await at.store.templates.remove_build(build.id)
    for call in (at.templates.defaults(ref), at.templates.build(ref, images=True)):
        with pytest.raises(NotFoundError, match="was deleted"):
            await call


async def test_tag_means_the_build_that_it_names_now(at: At) -> None:
    record = await at.add("web")
    first, second = await at.build(record, "v1"), await at.build(record, "default")
    ref = await at.templates.find(ALICE, "web:v1")
    assert ref is not None
    pinned = (await at.templates.defaults(ref)).pin(ref)
    await at.store.templates.change_tags(record.id, {"v1": second.id}, at=NOW)
    assert (await at.templates.build(ref, images=True)).build == second.id
    assert (pinned.build, pinned.tag, (await at.templates.build(pinned, images=True)).build) == (first.id, "", first.id)


def _image(digest: str) -> RootFs:
    return RootFs(digest, image=Path("/image"), index=Path("/index"))


def _no_layer(_layer: Layer) -> AsyncIterator[bytes]:
    raise AssertionError
