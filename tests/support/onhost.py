"""A driver's sandbox as the host sees it: its control group, its processes, and what the kernel says of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sandlot.drivers.oci.paths import SandboxFolder, node_group, sandboxes_folder
from sandlot.host.cgroups import Cgroup, detect_layout
from sandlot.host.launcher import Started, read_started
from sandlot.model.ports import Instance
from sandlot.testing.drivers.harness import DriverHarness


def group(harness: DriverHarness, instance: Instance) -> Cgroup:
    return Cgroup(detect_layout(), node_group(harness.node) / instance.ref)


def processes(harness: DriverHarness, instance: Instance) -> Started:
    return read_started(SandboxFolder(sandboxes_folder(harness.data_dir) / instance.ref).live.read_text())


def status(pid: int) -> dict[str, str]:
    """The fields of a process's ``/proc/PID/status`` (proc(5))."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())}


def network_namespaces() -> set[Path]:
    """Return the network namespaces in which processes of the host are."""
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        with suppress(OSError):
            found.add(Path(f"/proc/{name}/ns/net").readlink())
    return found


def members_of(data_dir: Path) -> dict[int, Path]:
    """Return the processes of the host that see a state directory in mounts of their own, each with its network namespace."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):  # noqa: PTH208 - names, not paths
        with suppress(OSError):
            namespace = Path(f"/proc/{pid}/ns/net").readlink()
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
            if namespace != Path("/proc/self/ns/net").readlink() and str(data_dir) in mounts:
                found[pid] = namespace
    return found
