"""Reading where a host's controllers are, and which files limit what."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.host.cgroup_layout import (
    GroupLimits,
    Hierarchy,
    Layout,
    Setting,
    change_settings,
    cpu_quota_us,
    create_settings,
    missing_controllers,
    parse_layout,
)
from sandlot.model.errors import HostError

V1 = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
27 25 0:25 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,name=systemd
28 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
29 25 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
30 25 0:28 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
31 25 0:29 / /sys/fs/cgroup/freezer rw,nosuid - cgroup cgroup rw,freezer
"""
V2 = "34 30 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
LIMITS = GroupLimits(memory_bytes=256 << 20, cpus=1.5, pids=2304)


def test_hybrid_host_is_version_1_with_its_named_hierarchies() -> None:
    layout = parse_layout(V1, {"/sys/fs/cgroup/unified": "hugetlb\n"})
    assert layout.version == 1
    assert [hierarchy.mount.name for hierarchy in layout.hierarchies] == ["systemd", "cpu,cpuacct", "memory", "pids", "freezer"]
    assert layout.hierarchies[0].controllers == frozenset()
    assert layout.home("cpuacct") == layout.home("cpu") == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert missing_controllers(layout) == ()


def test_unified_host_is_version_2() -> None:
    layout = parse_layout(V2, {"/sys/fs/cgroup": "cpuset cpu io memory hugetlb pids rdma\n"})
    assert layout == Layout(2, (Hierarchy(Path("/sys/fs/cgroup"), frozenset({"cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma"})),))
    assert layout.home("memory") == layout.home("freezer") == Path("/sys/fs/cgroup")
    assert missing_controllers(layout) == ()


def test_missing_controllers_are_returned() -> None:
    layout = parse_layout("".join(line for line in V1.splitlines(keepends=True) if "pids" not in line), {})
    assert missing_controllers(layout) == ("pids",)
    with pytest.raises(HostError, match="pids"):
        layout.home("pids")
    assert missing_controllers(parse_layout(V2, {"/sys/fs/cgroup": "memory cpu"})) == ("pids",)


@pytest.mark.parametrize("mountinfo", ["", "nonsense\n", "1 2\n - \n", V2, V1.splitlines()[0]])
def test_host_without_the_memory_controller_is_refused(mountinfo: str) -> None:
    with pytest.raises(HostError) as refused:
        parse_layout(mountinfo, {"/sys/fs/cgroup": "cpu pids"})
    assert refused.value.hint


def test_mount_point_may_contain_spaces_and_be_mounted_twice() -> None:
    line = "29 25 0:27 / /my\\040cgroups/memory rw - cgroup cgroup rw,memory\n"
    layout = parse_layout(line + line, {})
    assert [hierarchy.mount for hierarchy in layout.hierarchies] == [Path("/my cgroups/memory")]


def test_settings_of_a_new_group_in_both_versions() -> None:
    assert create_settings(1, LIMITS) == (
        Setting("memory", "memory.limit_in_bytes", "268435456"),
        Setting("memory", "memory.memsw.limit_in_bytes", "268435456", optional=True),
        Setting("memory", "memory.kmem.tcp.limit_in_bytes", "33554432", optional=True),
        Setting("cpu", "cpu.cfs_period_us", "100000"),
        Setting("cpu", "cpu.cfs_quota_us", "150000"),
        Setting("pids", "pids.max", "2304"),
    )
    assert create_settings(2, LIMITS) == (
        Setting("memory", "memory.max", "268435456"),
        Setting("memory", "memory.swap.max", "0", optional=True),
        Setting("cpu", "cpu.max", "150000 100000"),
        Setting("pids", "pids.max", "2304"),
    )


def test_step_of_a_change_that_may_be_refused_comes_first() -> None:
    assert [setting.file for setting in change_settings(1, LIMITS, raised=False)] == [
        *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        *("cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max"),
    ]
    assert [setting.file for setting in change_settings(1, LIMITS, raised=True)] == [
        *("cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max"),
        *("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"),
    ]
    lower = [(setting.file, setting.value) for setting in change_settings(2, LIMITS, raised=False)]
    assert lower[:2] == [("memory.high", "268435456"), ("memory.max", "268435456")]
    assert ("memory.high", "max") in lower[2:]
    assert [setting.file for setting in change_settings(2, LIMITS, raised=True)] == [
        *("cpu.max", "pids.max", "memory.swap.max", "memory.max"),
        "memory.high",  # a service that was killed while it took memory away has left it
    ]
    assert change_settings(2, LIMITS, raised=True)[-1].value == "max"
    for version in (1, 2):
        for raised in (False, True):
            last = {setting.file: setting for setting in change_settings(version, LIMITS, raised=raised)}
            constant = {setting for setting in create_settings(version, LIMITS) if "tcp" in setting.file}
            assert set(create_settings(version, LIMITS)) - constant <= set(last.values())


@pytest.mark.parametrize("cpus, quota", [(0.05, 5000), (1, 100_000), (64, 6_400_000), (0.001, 1000)])
def test_quota_is_at_least_the_kernels_minimum(cpus: float, quota: int) -> None:
    assert cpu_quota_us(cpus) == quota
