"""Operations of the stage of a container and their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci.container.plan import group_limits, stage_plan
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.runtime import Program, RuntimePlanInputs
from sandlot.host.nat_table import nat_table
from sandlot.model.errors import InternalError
from sandlot.model.specs import MIB, Limits, RootFs, Shape
from sandlot.protocol.schema import most_pids

SHAPE = Shape(RootFs("x", Path("/cache/roots/x/tree")), Limits(cpus=1.5, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64))
FOLDER = SandboxFolder(Path("/data/sandboxes/ab27-aaaaaaaaaaaaaaaa"))
DOORS = (Path("/sys/fs/cgroup/memory/sandlot/ab27/x/tasks"), Path("/sys/fs/cgroup/pids/sandlot/ab27/x/tasks"))
BOOT_ID = "5d3a0f6e-1f5e-4a4b-8f1c-0a5f7c0d9b11"
PLACE = RuntimePlanInputs(
    SHAPE,
    Program("crun", Path("/usr/bin/crun"), "00", "x"),
    FOLDER,
    DOORS,
    has_image=True,
    has_tmp=True,
    first_id=0x70000000,
    boot_id=BOOT_ID,
    has_card=True,
)


def test_control_group_is_entered_before_anything_is_created() -> None:
    plan = stage_plan(PLACE)
    assert plan[:2] == tuple(("join", str(door)) for door in DOORS)
    names = [operation[0] for operation in plan]
    assert names.index("private_mounts") < min(names.index(name) for name in ("tmpfs", "bind", "disk", "mkdir", "file", "idmapped", "overlay"))


def test_no_core_file_and_the_first_to_go() -> None:
    assert ("limit", "RLIMIT_CORE", 1, 1) in stage_plan(PLACE)
    assert ("oom_score", "900") in stage_plan(PLACE)


def test_root_is_mounted_read_only_with_mapped_owners() -> None:
    plan = stage_plan(PLACE)
    ids, image, disk, umask, overlay = plan[-5:]
    assert ids == ("ids", "/run/sandlot/ids", 0x70000000, 65536)
    assert image == ("idmapped", "/cache/roots/x/tree", "/run/sandlot/lower", "/run/sandlot/ids")
    assert [operation for operation in plan if "/cache/roots/x/tree" in operation] == [image]
    assert disk == ("disk", f"{FOLDER.path}/disk.img", "/run/sandlot/disk")
    assert umask == ("umask", 0o022), "so that everybody may pass through the folders that the runtime makes for mounts"
    assert overlay == ("overlay", "/run/sandlot/lower", "/run/sandlot/disk", "/run/sandlot/root", 0x70000000)


def test_there_is_a_place_for_each_volume() -> None:
    assert ("hub", "/run/sandlot/volumes", 8) in stage_plan(PLACE)


def test_the_runtime_sees_no_control_group_of_the_host() -> None:
    assert ("tmpfs", "/sys/fs/cgroup", "mode=0700,size=4k") in stage_plan(PLACE)
    assert ("file", "/run/sandlot/boot_id", f"{BOOT_ID}\n", 0o444) in stage_plan(PLACE)


def test_container_without_own_ids_is_refused() -> None:
    with pytest.raises(InternalError):
        stage_plan(replace(PLACE, first_id=None))


def test_host_limits_processes_of_a_container() -> None:
    limits = group_limits(SHAPE.limits)
    assert (limits.memory_bytes, limits.cpus) == (256 * MIB, 1.5)
    assert SHAPE.limits.pids < limits.pids <= SHAPE.limits.pids + 64


@pytest.mark.parametrize("pids", [16, 64, 376, 512, 10_000])
def test_guest_notices_too_many_processes_before_the_host_refuses_one(pids: int) -> None:
    """With the guest and its keeper, which it does not count."""
    assert group_limits(replace(SHAPE.limits, pids=pids)).pids > most_pids(pids) + 2


@pytest.mark.parametrize("has_card", [True, False])
def test_network_namespace_has_a_card_only_where_the_host_can_create_one(has_card: bool) -> None:  # noqa: FBT001
    plan = stage_plan(replace(PLACE, has_card=has_card))
    names = [operation[0] for operation in plan]
    assert names.index("private_network") > names.index("join"), "the group counts the namespace"
    assert [operation[1:] for operation in plan if operation[0] == "card"] == [("eth0", "192.0.2.2", nat_table())] * has_card
