"""What this machine lacks for sandboxes, looked at part by part: for ``sandlot doctor``, which tells people what to fix.

Whether a driver works is the driver's own probe (it starts a sandbox); this says *why not* in terms of the machine. What can
be tried is tried: a group is made and frozen, a loop device asked for, a namespace entered. Nothing is left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandlot.host import stage
from sandlot.host.cgroups import Cgroup, detect_layout
from sandlot.host.hierarchies import GroupLimits, missing
from sandlot.model.errors import HostError

LEAST_FREE_BYTES = 2 * 1024**3
"""Below this a state directory cannot hold a few sandboxes' files."""
_TRY_LIMITS = GroupLimits(memory_bytes=64 * 1024**2, cpus=1.0, pids=64)
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One thing that was looked at.

    Args:
        name: What, in a word or two.
        ok: Whether it is as it must be.
        detail: What was found.
        fix: What to do where it is not; empty otherwise.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


def check_host(data_dir: Path) -> tuple[HostCheck, ...]:
    """Look at everything. Blocks for some ten milliseconds.

    Args:
        data_dir: The state directory; need not exist yet.
    """
    return (
        check_root(os.geteuid()),
        _tried("control groups", check_groups),
        _tried("loop devices", check_loops),
        _tried("mount namespaces", check_namespaces),
        _tried("process handles", check_handles),
        check_program("mkfs.ext4", "apt-get install e2fsprogs"),
        check_program("runsc", "apt-get install -t bookworm-backports runsc (Debian 12), or an official gVisor release"),
        check_program("mmdebstrap", "apt-get install mmdebstrap"),
        check_space(data_dir),
    )


def check_root(uid: int) -> HostCheck:
    """Whether this is root."""
    return HostCheck("root", uid == 0, f"uid {uid}", "" if uid == 0 else "Run the service as root: it makes control groups and mounts.")


def check_groups() -> HostCheck:
    """Whether a control group can be made, limited, frozen and removed."""
    layout = detect_layout()
    detail = f"version {layout.version}"
    if lacking := missing(layout):
        return HostCheck(
            "control groups", ok=False, detail=f"{detail}, without {', '.join(lacking)}", fix="Enable the controllers on the kernel's command line."
        )
    group = Cgroup(layout, PurePosixPath(f"/sandlot/probe-{os.getpid()}"))
    try:
        group.create(_TRY_LIMITS)
        group.freeze()
        group.thaw()
    finally:
        group.remove()
    return HostCheck("control groups", ok=True, detail=f"{detail}, with a freezer")


def check_loops() -> HostCheck:
    """Whether there is a loop device to be had; only runtimes that cannot limit the disk themselves need one."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(control, stage.LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    there = Path(f"/dev/loop{number}").exists()
    return HostCheck("loop devices", there, f"next is /dev/loop{number}", "" if there else "Mount devtmpfs on /dev, so that devices appear.")


def check_namespaces() -> HostCheck:
    """Whether a process may have a mount namespace of its own."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=_TIMEOUT_S, check=False)
    words = done.stderr.decode(errors="replace").strip()
    fix = "" if done.returncode == 0 else "A container needs CAP_SYS_ADMIN for that (for example docker run --privileged)."
    return HostCheck("mount namespaces", done.returncode == 0, words or "allowed", fix)


def check_handles() -> HostCheck:
    """Whether the kernel has pidfds (Linux 5.3)."""
    os.close(os.pidfd_open(os.getpid()))
    return HostCheck("process handles", ok=True, detail=f"Linux {os.uname().release}")


def check_program(name: str, fix: str) -> HostCheck:
    """Whether a program is on PATH, or where root's programs are."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    return HostCheck(name, found is not None, found or "not installed", "" if found else fix)


def check_space(data_dir: Path) -> HostCheck:
    """Whether the state directory has room. Sandboxes' disks are sparse: their limits may add up to more than is free."""
    existing = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    enough = free >= LEAST_FREE_BYTES
    return HostCheck("disk", enough, f"{free / 1024**3:.1f} GiB free at {existing}", "" if enough else "Free some space, or set SANDLOT_DATA_DIR.")


def _tried(name: str, check: Callable[[], HostCheck]) -> HostCheck:
    try:
        return check()
    except HostError as error:
        return HostCheck(name, ok=False, detail=error.message, fix=error.hint)
    except OSError as error:
        return HostCheck(
            name,
            ok=False,
            detail=f"{error.strerror}: {error.filename or ''}".rstrip(": "),
            fix="Run as root on a host, not in an unprivileged container.",
        )
    except subprocess.SubprocessError as error:
        return HostCheck(name, ok=False, detail=str(error), fix="The machine does not answer in time; look at its load.")
