"""Recovery of a sandbox that a killed service left, and limits that are derived from a control group."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.instance import OciInstance, limits_of_group
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Program, Runtime
from sandlot.host.cgroup_layout import CPU_PERIOD_US, GroupLimits, Hierarchy, Layout, cpu_quota_us
from sandlot.host.cgroups import Cgroup
from sandlot.host.launcher import Started
from sandlot.host.process_identity import Identity
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import MIB, Limits


@pytest.mark.parametrize("runtime", [Runsc(), Crun()], ids=["gvisor", "container"])
@pytest.mark.parametrize("pids", [16, 17, 64, 512, 32768])
@pytest.mark.parametrize("cpus", [0.05, 1.5, 64])
def test_limits_of_a_sandbox_follow_from_those_of_its_group(runtime: Runtime, pids: int, cpus: float) -> None:
    limits = Limits(cpus=cpus, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=pids)
    group = runtime.group_limits(limits)
    read = GroupLimits(group.memory_bytes, cpu_quota_us(group.cpus) / CPU_PERIOD_US, group.pids)
    assert limits_of_group(read, Limits(disk_bytes=64 * MIB), runtime.group_limits) == limits


def test_limits_that_no_sandbox_has_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        limits_of_group(GroupLimits(1, 1.0, 100), Limits(), Crun().group_limits)


async def test_paused_sandbox_that_was_thawed_for_a_snapshot_is_frozen_again(tmp_path: Path) -> None:
    ref = "ab27-aaaaaaaaaaaaaaaa"
    group = tmp_path / "groups/sandlot/ab27" / ref
    group.mkdir(parents=True)
    (group / "cgroup.freeze").write_text("0")
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    resources = SandboxHostResources(SandboxFolder(tmp_path / "sandboxes" / ref), Cgroup(layout, PurePosixPath("/sandlot/ab27") / ref), Runsc())
    record = Record(ref, Step.BOOT, "gvisor", "/usr/bin/runsc", "0" * 64, "x", Limits())
    resources.create_folder(record)
    (resources.folder.path / "refreeze").touch()
    ended = Started(sandbox=Identity(1, 1), keeper=Identity(1, 1))
    instance = OciInstance(resources, record, ended, Runsc(), lambda: Program("runsc", Path("/bin/true"), "0" * 64, "x"))

    await instance.recover()

    assert (group / "cgroup.freeze").read_text() == "1"
    assert not (resources.folder.path / "refreeze").exists()
    await instance.wait()
