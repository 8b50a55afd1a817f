"""A sandbox's limits, found again from those of its control group."""

from __future__ import annotations

import pytest

from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.instance import limits_of
from sandlot.drivers.oci.runtime import Runtime
from sandlot.host.hierarchies import CPU_PERIOD_US, GroupLimits, cpu_quota_us
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import MIB, Limits


@pytest.mark.parametrize("runtime", [Runsc(), Crun()], ids=["gvisor", "container"])
@pytest.mark.parametrize("pids", [16, 17, 64, 512, 32768])
@pytest.mark.parametrize("cpus", [0.05, 1.5, 64])
def test_what_a_group_was_limited_to_says_what_its_sandbox_was(runtime: Runtime, pids: int, cpus: float) -> None:
    limits = Limits(cpus=cpus, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=pids)
    group = runtime.group_limits(limits)
    read = GroupLimits(group.memory_bytes, cpu_quota_us(group.cpus) / CPU_PERIOD_US, group.pids)
    assert limits_of(read, Limits(disk_bytes=64 * MIB), runtime.group_limits) == limits


def test_a_group_that_none_of_ours_has_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        limits_of(GroupLimits(1, 1.0, 100), Limits(), Crun().group_limits)
