"""Operations of the stage of a gVisor sandbox, their order, and the files that the runtime sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci.gvisor.plan import group_limits, stage_plan
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.runtime import Program, RuntimePlanInputs
from sandlot.host.launcher import Operation
from sandlot.host.nat_table import nat_table
from sandlot.model.specs import MIB, Limits, RootFs, Shape

SHAPE = Shape(RootFs("x", Path("/cache/roots/x/tree")), Limits(cpus=1.5, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64))
FOLDER = SandboxFolder(Path("/data/sandboxes/ab27-aaaaaaaaaaaaaaaa"))
PROGRAM = Program("runsc", Path("/data/runtimes/00/runsc"), "00", "x")
DOORS = (Path("/sys/fs/cgroup/memory/sandlot/ab27/x/tasks"), Path("/sys/fs/cgroup/pids/sandlot/ab27/x/tasks"))


INPUTS = RuntimePlanInputs(SHAPE, PROGRAM, FOLDER, DOORS, has_image=True, has_tmp=True, first_id=None, boot_id="", has_card=True)


def plan(*, program: Program = PROGRAM, has_image: bool = True, has_tmp: bool = True) -> tuple[Operation, ...]:
    return stage_plan(replace(INPUTS, program=program, has_image=has_image, has_tmp=has_tmp))


def test_control_group_is_entered_before_anything_is_created() -> None:
    assert plan()[:2] == tuple(("join", str(door)) for door in DOORS)
    names = [operation[0] for operation in plan()]
    assert names.index("private_mounts") < min(names.index(name) for name in ("tmpfs", "bind", "disk", "mkdir", "file"))


def test_no_core_file_and_the_first_to_go() -> None:
    assert ("limit", "RLIMIT_CORE", 1, 1) in plan()
    assert ("oom_score", "1") in plan()


def test_root_is_mounted_read_only_and_paths_are_short() -> None:
    assert ("bind", "/cache/roots/x/tree", "/run/sandlot/root", "ro") in plan()
    assert ("bind", "/data/runtimes/00", "/run/sandlot/program", "ro") in plan()
    assert ("bind", str(FOLDER.path), "/run/sandlot/instance", "rw") in plan()
    assert [operation for operation in plan() if operation[0] == "bind" and operation[3] == "rw"] == [
        ("bind", str(FOLDER.path), "/run/sandlot/instance", "rw")
    ]


def test_image_is_one_read_only_file_and_the_folder_of_the_root_stays_empty() -> None:
    shape = replace(SHAPE, root=RootFs("x", image=Path("/cache/image"), index=Path("/cache/index")))
    of_image = stage_plan(replace(INPUTS, shape=shape, has_tmp=False))
    operations = [operation for operation in of_image if operation not in plan()]
    assert operations == [("file", "/run/sandlot/image", ""), ("bind", "/cache/image", "/run/sandlot/image", "ro")]
    assert ("mkdir", "/run/sandlot/root") in of_image
    assert not any(str(operation[-2]).startswith("/run/sandlot/root") for operation in of_image if operation[0] == "bind")


def test_hub_has_a_folder_for_each_volume_and_one_more() -> None:
    assert ("hub", "/run/sandlot/volumes", 9) in plan()


def test_the_runtime_sees_the_limits_and_no_control_group_of_the_host() -> None:
    files = {str(operation[1]): operation[2] for operation in plan() if operation[0] == "file"}
    assert files["/sys/fs/cgroup/memory/sandbox/memory.limit_in_bytes"] == f"{256 * MIB}\n"
    assert files["/sys/fs/cgroup/cpu/sandbox/cpu.cfs_quota_us"] == "150000\n"
    assert files["/sys/fs/cgroup/cpu/sandbox/cpu.cfs_period_us"] == "100000\n"
    assert "/sys/fs/cgroup/blkio/sandbox/cgroup.procs" in files
    covered = plan().index(("tmpfs", "/sys/fs/cgroup", "mode=0700,size=1m"))
    assert all(plan().index(operation) > covered for operation in plan() if operation[0] == "file")


def test_task_limit_of_the_host_is_above_that_of_the_guest() -> None:
    limits = group_limits(SHAPE.limits)
    assert (limits.memory_bytes, limits.cpus) == (256 * MIB, 1.5)
    # Measured: two host tasks for each guest process, about 50 for the runtime itself.
    assert limits.pids > 2 * SHAPE.limits.pids + 100


def test_runtime_that_copies_its_network_gets_a_namespace_of_its_own() -> None:
    assert not {"private_network", "loopback_card"} & {operation[0] for operation in plan()}

    copied = plan(program=replace(PROGRAM, copies_network=True))
    names = [operation[0] for operation in copied]
    assert names.index("join") < names.index("private_network") < names.index("loopback_card") < names.index("private_mounts")
    assert ("loopback_card", "192.0.2.2", nat_table()) in copied
    assert [operation for operation in copied if operation not in plan() and operation[0] == "tmpfs"] == [
        ("tmpfs", "/proc/sys/net", "mode=0555,size=4k")
    ]


@pytest.mark.parametrize("version, skips", [("0.0~20240729.0", True), ("release-20260622.0", True), ("release-20260803.0", False)])
def test_membarrier_is_skipped_for_releases_that_register_at_each_start(version: str, skips: bool) -> None:  # noqa: FBT001 - a case
    assert (("skip_membarrier",) in plan(program=replace(PROGRAM, version=version))) is skips
