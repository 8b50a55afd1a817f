"""Specs, ids, sizes and settings of pools, and keys of template snapshots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.pools.models import (
    SNAPSHOT_DISK_BYTES,
    PoolId,
    PoolSetting,
    PoolSpec,
    SnapshotRecipe,
    TemplateSnapshotSpec,
    build_snapshot_spec,
    content_of,
    default_pools,
    parse_pools,
    snapshot_inputs,
    snapshot_key,
)
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.pools import DEFAULT_MAX, PoolSizes
from sandlot.model.specs import GIB, MIB, Limits, RootFs, TemplateRef, User
from sandlot.model.templates import TemplateDefaults, TemplateStart

SPEC = PoolSpec(TemplateRef(LOCAL, "base"), "gvisor", Limits())
TEMPLATE = ResolvedTemplate(root=RootFs("a" * 64, Path("/roots/a")), env={"PATH": "/bin", "LANG": "C.UTF-8"})


# Ids ------------------------------------------------------------------------------------------------------------------


def test_pool_id_depends_on_the_owner_and_on_every_field_of_the_spec() -> None:
    others = [
        replace(SPEC, template=TemplateRef(LOCAL, "code-interpreter")),
        replace(SPEC, isolation="container"),
        *(replace(SPEC, limits=limits) for limits in (Limits(cpus=2.0), Limits(memory_bytes=2 * GIB), Limits(disk_bytes=GIB), Limits(pids=100))),
    ]
    owners = (LOCAL, OwnerId("0123456789ab"), OwnerId("ba9876543210"))

    ids = {str(PoolId(owner, spec)) for spec in (SPEC, *others) for owner in owners}

    assert len(ids) == len(owners) * (len(others) + 1)
    assert all(re.fullmatch(r"pool-[a-z2-7]{12}", each) for each in ids)


def test_pool_id_is_the_same_on_every_node() -> None:
    assert str(PoolId(LOCAL, PoolSpec(TemplateRef(LOCAL, "base"), "gvisor", Limits()))) == "pool-nyo2eazslwep"


def test_pool_id_does_not_depend_on_how_a_number_of_cores_is_written() -> None:
    assert str(PoolId(LOCAL, replace(SPEC, limits=Limits(cpus=2)))) == str(PoolId(LOCAL, replace(SPEC, limits=Limits(cpus=2.0))))


# Specs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_spec, served",
    [
        (SPEC, True),
        (replace(SPEC, limits=Limits(pids=16)), True),
        (replace(SPEC, limits=Limits(pids=513)), False),
        (replace(SPEC, limits=Limits(memory_bytes=2 * GIB)), False),
        (replace(SPEC, limits=Limits(memory_bytes=GIB // 2)), False),
        (replace(SPEC, limits=Limits(cpus=0.5)), False),
        (replace(SPEC, limits=Limits(disk_bytes=GIB)), False),
        (replace(SPEC, template=TemplateRef(LOCAL, "code-interpreter")), False),
        (replace(SPEC, isolation="container"), False),
    ],
)
def test_pool_serves_requests_of_its_spec_or_with_fewer_processes(request_spec: PoolSpec, *, served: bool) -> None:
    assert SPEC.serves(request_spec) is served


# Sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, sizes",
    [
        ({"prepared": 0}, PoolSizes(1, 4, 0)),
        ({"warm": 6}, PoolSizes(6, 6, 2)),
        ({"warm": 0}, PoolSizes(0, 4, 2)),
        ({"max": 1}, PoolSizes(1, 1, 2)),
    ],
)
def test_update_keeps_other_sizes_but_max_follows_warm_upwards(change: dict[str, int], sizes: PoolSizes) -> None:
    assert PoolSizes(1, 4, 2).updated(**change) == sizes


def test_update_with_max_below_warm_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as error:
        PoolSizes(1, 4, 2).updated(warm=3, max=2)

    assert error.value.fields == {"field": "max"}


@pytest.mark.parametrize("sizes", [{"warm": -1}, {"warm": 1001, "max": 1001}, {"prepared": 1001}])
def test_sizes_out_of_range_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError):
        PoolSizes(**sizes)


# The setting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, pools",
    [
        ("", ()),
        ("none", ()),
        (" none ", ()),
        ("base=1", (PoolSetting("base", PoolSizes(1, DEFAULT_MAX)),)),
        ("base=7", (PoolSetting("base", PoolSizes(7, 7)),)),
        ("base=2:2", (PoolSetting("base", PoolSizes(2, 2)),)),
        ("code-interpreter=2:4, base=1:1+3", (PoolSetting("code-interpreter", PoolSizes(2, 4)), PoolSetting("base", PoolSizes(1, 1, 3)))),
        ("base=0:0+2", (PoolSetting("base", PoolSizes(0, 0, 2)),)),
    ],
)
def test_setting_is_parsed(text: str, pools: tuple[PoolSetting, ...]) -> None:
    assert parse_pools(text, {"base", "code-interpreter"}) == pools


@pytest.mark.parametrize(
    "text", ["base", "base=", "base=x", "base=-1", "base=1:", "base=3:2", "base=1,base=2", "other=1", "base=1;x=2", "=1", "base=99999"]
)
def test_invalid_setting_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_pools(text, {"base"})


@pytest.mark.parametrize("memory_gib, most, prepared", [(0, 1, 0), (3, 1, 0), (4, 2, 1), (7, 3, 1), (8, 4, 1), (256, 4, 1)])
def test_default_pools_grow_with_the_memory_of_the_node(memory_gib: int, most: int, prepared: int) -> None:
    pools = {pool.template: pool for pool in default_pools(memory_gib * GIB)}

    assert {name: pool.sizes for name, pool in pools.items()} == {
        "code-interpreter": PoolSizes(1, most, prepared),
        "base": PoolSizes(1, most),
    }
    assert all(pool.is_implied for pool in pools.values())


# Template snapshots ---------------------------------------------------------------------------------------------------


def key(spec: PoolSpec = SPEC, template: ResolvedTemplate = TEMPLATE, fingerprint: str = "runsc:1", version: str = "1.0") -> str:
    return snapshot_key(snapshot_inputs(SnapshotRecipe(TemplateSnapshotSpec.of(spec), template), fingerprint, version))


@pytest.mark.parametrize(
    "other",
    [
        key(replace(SPEC, isolation="container")),
        key(replace(SPEC, limits=Limits(memory_bytes=2 * GIB))),
        key(replace(SPEC, limits=Limits(cpus=2.0))),
        key(replace(SPEC, limits=Limits(disk_bytes=64 * MIB))),
        key(template=replace(TEMPLATE, root=RootFs("b" * 64, Path("/roots/a")))),
        key(template=replace(TEMPLATE, env={**TEMPLATE.env, "LANG": "C"})),
        key(fingerprint="runsc:2"),
        key(version="1.1"),
    ],
    ids=["isolation", "memory", "cpus", "disk", "root", "env", "fingerprint", "version"],
)
def test_snapshot_key_changes_with_everything_that_a_snapshot_depends_on(other: str) -> None:
    assert other != key()


@pytest.mark.parametrize(
    "same",
    [
        key(replace(SPEC, limits=Limits(pids=100))),
        key(replace(SPEC, limits=Limits(cpus=1))),
        key(replace(SPEC, limits=Limits(disk_bytes=50 * GIB))),
        key(template=ResolvedTemplate(root=RootFs("a" * 64, Path("/elsewhere")), env=dict(sorted(TEMPLATE.env.items())))),
    ],
    ids=["pids", "cores as an integer", "more disk", "order of the environment"],
)
def test_snapshot_key_does_not_change_with_what_is_set_at_the_claim(same: str) -> None:
    assert same == key()


def test_key_of_a_snapshot_with_programs_depends_on_the_programs_and_their_owner() -> None:
    def started(owner: OwnerId = LOCAL, **changes: Any) -> str:  # noqa: ANN401 - fields of TemplateStart
        start = replace(TemplateStart("serve", "ready", "/srv", User.USER), **changes)
        spec = TemplateSnapshotSpec(TemplateRef(owner, "web"), "gvisor", Limits())
        return snapshot_key(snapshot_inputs(SnapshotRecipe(spec, TEMPLATE, start), "runsc:1", "1.0"))

    others: list[dict[str, Any]] = [
        {"command": "other"},
        {"ready_command": ""},
        {"cwd": "/"},
        {"user": User.ROOT},
        {"owner": OwnerId("a11ce0a11ce0")},
    ]
    assert len({started(), key(), *(started(**each) for each in others)}) == len(others) + 2


BUILT = TemplateDefaults(limits=Limits(memory_bytes=2 * GIB), start_command="serve", digest="a" * 64, build="first")


def content(owner: OwnerId = LOCAL, env: Mapping[str, str] = TEMPLATE.env, **changes: Any) -> str:  # noqa: ANN401 - fields of TemplateDefaults
    return content_of(owner, env, replace(BUILT, **changes))


def test_content_of_a_build_has_everything_that_its_snapshot_depends_on() -> None:
    limits = BUILT.limits
    others: list[dict[str, Any]] = [
        {"owner": OwnerId("a11ce0a11ce0")},
        {"env": {}},
        {"digest": "b" * 64},
        {"start_command": ""},
        {"ready_command": "ready"},
        {"cwd": "/"},
        {"user": User.ROOT},
        *({"limits": replace(limits, **each)} for each in ({"memory_bytes": GIB}, {"cpus": 4.0}, {"disk_bytes": 20 * GIB})),
    ]
    assert len({content(), *(content(**each) for each in others)}) == len(others) + 1
    assert content() == content(build="second", limits=replace(limits, pids=100))


def test_spare_kernel_in_a_snapshot_runs_as_the_user_of_the_build() -> None:
    without = replace(BUILT, start_command="")
    recipes = [
        SnapshotRecipe.of(build_snapshot_spec(TemplateRef(LOCAL, "web"), "gvisor", each), TEMPLATE, each)
        for each in (without, replace(without, user=User.ROOT))
    ]
    assert [recipe.user for recipe in recipes] == [User.USER, User.ROOT]
    assert recipes[0].parts() != recipes[1].parts()


def test_builds_without_programs_share_a_snapshot_of_all_owners() -> None:
    assert content(start_command="") == content(OwnerId("a11ce0a11ce0"), start_command="", limits=replace(BUILT.limits, disk_bytes=20 * GIB))


@pytest.mark.parametrize("start_command, is_of_build", [("serve", False), ("", True)])
def test_snapshot_of_a_pool_is_that_of_the_build_if_their_contents_are_equal(start_command: str, *, is_of_build: bool) -> None:
    defaults = replace(BUILT, start_command=start_command)
    of_pool, of_build = (
        SnapshotRecipe.of(spec, TEMPLATE, defaults)
        for spec in (
            TemplateSnapshotSpec.of(replace(SPEC, limits=defaults.limits)),
            build_snapshot_spec(defaults.pin(SPEC.template), "gvisor", defaults),
        )
    )
    assert of_build.manifest() == {"content": content_of(LOCAL, TEMPLATE.env, defaults), "isolation": "gvisor"}
    assert (of_pool.is_of_build, of_pool.manifest() == of_build.manifest()) == (is_of_build, is_of_build)
    other = SnapshotRecipe.of(TemplateSnapshotSpec.of(replace(SPEC, limits=Limits(memory_bytes=GIB))), TEMPLATE, defaults)
    assert not other.is_of_build
    assert len({str(each.manifest()) for each in (of_pool, of_build, other)}) == 3 - is_of_build


def test_tags_of_a_template_have_different_pools() -> None:
    refs = (TemplateRef(LOCAL, "web"), TemplateRef(LOCAL, "web", tag="v1"), TemplateRef(LOCAL, "web", tag="v2"))
    assert len({str(PoolId(LOCAL, replace(SPEC, template=ref))) for ref in refs}) == 3


@pytest.mark.parametrize("disk_bytes, snapshot_disk_bytes", [(5 * GIB, SNAPSHOT_DISK_BYTES), (64 * MIB, 64 * MIB)])
def test_snapshot_is_taken_with_a_small_disk(disk_bytes: int, snapshot_disk_bytes: int) -> None:
    assert TemplateSnapshotSpec.of(replace(SPEC, limits=Limits(disk_bytes=disk_bytes))).limits.disk_bytes == snapshot_disk_bytes
