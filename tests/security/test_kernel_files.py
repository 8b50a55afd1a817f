"""Promise: no file of /proc, /sys, /dev or the control groups gives anybody inside a hold on the host, as user or as root.

What Linux shows there of itself is either not there, or cannot be read and written, or is the sandbox's own. Every file that
is there is tried, not only those that are known; what the host has in the same place is compared before and after.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.attempts import not_refused, outcomes
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.traces import node_of

pytestmark = pytest.mark.usefixtures("host_unchanged")

TRIGGERS = {
    "sysrq": 'write("/proc/sysrq-trigger", "h")',
    "core_pattern": 'write("/proc/sys/kernel/core_pattern", "|/tmp/sandlot-evil")',
    "modprobe": 'write("/proc/sys/kernel/modprobe", "/tmp/sandlot-evil")',
    "uevent_helper": 'write("/sys/kernel/uevent_helper", "/tmp/sandlot-evil")',
    "binfmt_misc": 'write("/proc/sys/fs/binfmt_misc/register", ":sandlot:M::sandlot-evil::/tmp/sandlot-evil:")',
    "own OOM score below what it was": 'write("/proc/self/oom_score_adj", "-1000")',
    "identity map": 'write("/proc/self/uid_map", "0 0 4294967295")',
    "an identity map of others": 'write("/proc/1/uid_map", "0 0 4294967295")',
    "a control group": 'os.mkdir("/sys/fs/cgroup/memory/sandlot-evil")',
    "a control group, version 2": 'os.mkdir("/sys/fs/cgroup/sandlot-evil")',
    "kernel symbols": 'nonzero("/proc/kallsyms")',
    "the kernel's memory": 'open("/proc/kcore", "rb").read(64) or gone()',
    "kernel log": 'os.read(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK), 64) or gone()',
    "log device": 'os.read(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), 64) or gone()',
    "pages of memory": 'open("/proc/kpagecount", "rb").read(8) or gone()',
    "flags of memory": 'open("/proc/kpageflags", "rb").read(8) or gone()',
    "timers": 'open("/proc/timer_list").read(64) or gone()',
    "schedule": 'open("/proc/sched_debug").read(64) or gone()',
    "keys": 'open("/proc/keys").read(64) or gone()',
    "a host's socket": 'socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock")',
    "an init's socket": 'socket.socket(socket.AF_UNIX).connect("/run/systemd/private")',
}
"""What has given containers away, and what belongs to a whole machine. Settings and devices: the next tests, which look at all that are there."""

SETUP = """
def gone():
    raise OSError(errno.ENOENT, "there, and empty")
def write(path, text):
    # No O_CREAT: a file that is not there is not to be made up.
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
def nonzero(path):
    with open(path) as file:
        if not any(line.split()[0].strip("0") for line in file):
            raise OSError(errno.EPERM, "nothing but zeros")
"""


# Of that kernel, not of the host's: scores that nobody acts on.
GVISOR_OWN = {"own OOM score below what it was", "identity map"}
DEVICES = {
    *((1, minor) for minor in (3, 5, 7, 8, 9)),  # null, zero, full, random, urandom: Documentation/admin-guide/devices.txt of Linux
    *((5, minor) for minor in (0, 2)),  # tty and ptmx: the terminal of whoever opens it, and new ones
}
GVISOR_DEVICES = DEVICES | {(10, 200), (10, 229)}
"""tun and fuse, of that kernel: they need an interface or a mount to be of any use, and lead no further than the sandbox."""


@pytest.mark.parametrize("user", USERS)
def test_control_files_of_the_host_cannot_be_used(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor a few of them are there, with no more meaning than ``GVISOR_OWN`` says. A container refuses all."""
    found = outcomes(sandbox, {**TRIGGERS, "control": 'write("/proc/self/oom_score_adj", "1000")'}, user=user, setup=SETUP)
    assert found.pop("control") == "ok"
    allowed, also = (GVISOR_OWN, {"sysrq": {"EIO"}}) if isolation == "gvisor" else ((), {})
    assert not_refused(found, allowed=allowed, also=also) == {}


@pytest.mark.parametrize("user", USERS)
def test_proc_and_sys_cannot_be_written(sandbox: Sandbox, isolation: str, user: str) -> None:
    """Of all that are there, whatever their names; those of processes inside are left out, which are their own.

    In gVisor root may open many, which are that kernel's; the fixture sees to it that the host's are as they were. In a container
    none can even be opened for writing.
    """
    told = run_inside(
        sandbox,
        """
told["opened"], told["tried"] = [], 0
for top in ("/proc", "/sys"):
    for where, folders, files in os.walk(top):
        if where == "/proc":
            folders[:] = [name for name in folders if not name.isdecimal() and name not in ("self", "thread-self")]
        for name in files:
            path = os.path.join(where, name)
            if os.path.islink(path):
                continue  # /proc/mounts and /proc/net are of the process that looks
            told["tried"] += 1
            got = attempt(os.open, path, os.O_RDWR | os.O_NONBLOCK)
            got = attempt(os.open, path, os.O_WRONLY | os.O_NONBLOCK) if "error" in got else got
            # What is covered by /dev/null takes all, and keeps nothing.
            if "got" in got and os.fstat(got["got"]).st_rdev != os.makedev(1, 3):
                told["opened"].append(path)
                attempt(os.write, got["got"], attempt(read, path, 4096).get("got", "1").encode("latin-1") or b"1")
                os.close(got["got"])
""",
        user=user,
    )
    assert told["tried"] > 20
    if isolation != "gvisor":
        assert told["opened"] == []


def test_dev_holds_only_devices_without_data(sandbox: Sandbox, isolation: str) -> None:
    """In gVisor, /dev has tun and fuse besides, of that kernel."""
    told = run_inside(
        sandbox,
        """
import subprocess
look = ["find", "/", "-path", "/proc", "-prune", "-o", "(", "-type", "b", "-o", "-type", "c", ")", "-print"]
found = subprocess.run(look, stdout=subprocess.PIPE, text=True).stdout.splitlines()
# What is mounted over a file is not of the kind that its folder tells.
found += [line.split()[4] for line in read("/proc/self/mountinfo", 1 << 20).splitlines()]
told["devices"] = []
for path in sorted(set(found)):
    got = os.lstat(path)
    if not path.startswith("/proc/") and (stat.S_ISBLK(got.st_mode) or stat.S_ISCHR(got.st_mode)):
        told["devices"].append([path, stat.S_ISBLK(got.st_mode), os.major(got.st_rdev), os.minor(got.st_rdev)])
""",
        user="root",
    )
    known = GVISOR_DEVICES if isolation == "gvisor" else DEVICES
    assert [1, 3] in [numbers for _, _, *numbers in told["devices"]], "null is there, so that was a real look"
    strange = [(path, block, *numbers) for path, block, *numbers in told["devices"] if block or tuple(numbers) not in known]
    assert [device for device in strange if not device[0].startswith("/dev/pts/")] == []


@pytest.mark.parametrize("user", USERS)
def test_host_control_groups_are_invisible_and_unchangeable(sandbox: Sandbox, service: LocalService, user: str) -> None:
    """What the host limits a sandbox with is neither named inside nor can it be entered, left or mounted; the groups stay as they were."""
    groups = {group: _limits(group) for group in _groups(service)}
    assert groups, "there are some, so that was a real look"
    told = run_inside(
        sandbox,
        """
told["named"] = {name: attempt(read, f"/proc/{name}").get("got", "") for name in ("self/cgroup", "1/cgroup", "cgroups", "self/mountinfo")}
told["files"] = [os.path.join(where, name) for where, _, names in os.walk("/sys/fs/cgroup") for name in names]
told["written"] = []
for path in told["files"]:
    got = attempt(os.open, path, os.O_WRONLY | os.O_NONBLOCK)
    if "got" in got:
        for text in ("0", "-1", "max", "/tmp/evil", "1"):
            if "got" in attempt(os.write, got["got"], text.encode()):
                told["written"].append([path, text])
""",
        user=user,
    )
    node = node_of(service.data_dir)
    assert node not in repr(told["named"])
    assert not any("release_agent" in path for path in told["files"])
    assert told["written"] == []
    assert {group: _limits(group) for group in groups} == groups


def _groups(service: LocalService) -> list[Path]:
    """The control groups of the service's sandboxes, of every hierarchy."""
    return [Path(where) for where, _, _ in os.walk("/sys/fs/cgroup") if f"/sandlot/{node_of(service.data_dir)}" in where]


def _limits(group: Path) -> dict[str, str]:
    names = ("memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max", "notify_on_release", "memory.max", "cpu.max", "memory.oom_control")
    return {name: (group / name).read_text(encoding="ascii").split("under_oom")[0] for name in names if (group / name).exists()}
