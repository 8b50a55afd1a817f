"""What a template snapshot depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.pools import models
from sandlot.core.pools.models import DISK_BYTES, PoolSpec
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.specs import GIB, MIB, Limits, RootFs

KIND = PoolSpec("base", "gvisor", Limits())
BASE = ResolvedTemplate(root=RootFs(Path("/roots/a"), "a" * 64), env={"PATH": "/bin", "LANG": "C.UTF-8"})


def key(kind: PoolSpec = KIND, base: ResolvedTemplate = BASE, fingerprint: str = "runsc:1", version: str = "1.0") -> str:
    return models.key(models.made_of(models.snapshot_spec(kind), base, fingerprint, version))


@pytest.mark.parametrize(
    "other",
    [
        key(replace(KIND, isolation="container")),
        key(replace(KIND, limits=Limits(memory_bytes=2 * GIB))),
        key(replace(KIND, limits=Limits(cpus=2.0))),
        key(replace(KIND, limits=Limits(disk_bytes=64 * MIB))),
        key(base=replace(BASE, root=RootFs(Path("/roots/a"), "b" * 64))),
        key(base=replace(BASE, env={**BASE.env, "LANG": "C"})),
        key(fingerprint="runsc:2"),
        key(version="1.1"),
    ],
    ids=["isolation", "memory", "cpus", "disk", "root", "env", "fingerprint", "version"],
)
def test_whatever_it_depends_on_changes_the_key(other: str) -> None:
    assert other != key()


@pytest.mark.parametrize(
    "same",
    [
        key(replace(KIND, limits=Limits(pids=100))),
        key(replace(KIND, limits=Limits(disk_bytes=50 * GIB))),
        key(base=ResolvedTemplate(root=RootFs(Path("/elsewhere"), "a" * 64), env=dict(sorted(BASE.env.items())))),
    ],
    ids=["pids", "more disk", "the order of the environment"],
)
def test_what_the_host_or_the_guest_sets_later_does_not(same: str) -> None:
    assert same == key()


def test_it_is_taken_of_no_more_disk_than_it_needs() -> None:
    assert models.snapshot_spec(KIND).limits.disk_bytes == DISK_BYTES
    assert models.snapshot_spec(replace(KIND, limits=Limits(disk_bytes=64 * MIB))).limits.disk_bytes == 64 * MIB
