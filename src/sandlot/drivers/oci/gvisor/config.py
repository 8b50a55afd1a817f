"""Pure: from a shape to the ``config.json`` of an OCI bundle for runsc.

Source: the OCI runtime specification 1.0.2, config.md and config-linux.md, and what runsc makes of it.
"""

from __future__ import annotations

from typing import Any

from sandlot.drivers.oci.gvisor.plan import KERNEL_OOM_SCORE
from sandlot.drivers.oci.places import VIEW_GROUP, VIEW_ROOT, VIEW_VOLUMES
from sandlot.drivers.oci.runtime import GUEST_PATH, OCI_VERSION
from sandlot.host.hierarchies import CPU_PERIOD_US, GroupLimits, cpu_quota_us
from sandlot.link.payload import GUEST_ARGV, GUEST_ROOT, VOLUMES
from sandlot.model.specs import Shape

HOST_NAME = "sandbox"
HUB = f"{GUEST_ROOT}/{VOLUMES}"
"""Where its volumes are inside, each in the folder of its slot's number; its guest binds them to their paths."""
OPEN_FILES_SOFT = 65536
OPEN_FILES_HARD = 1_048_576
"""Linux's own ceiling (fs.nr_open). Inside, every limit is the sandbox kernel's bookkeeping, paid from its memory limit."""

CAPABILITIES = (
    # What root in a container usually has: own files, other users, low ports, device nodes (which lead nowhere here).
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
    # The guest's own duties: the host name, when a sandbox becomes somebody's; limits and priorities of what it starts.
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    # Debuggers, for root; a user traces own processes without it.
    "CAP_SYS_PTRACE",
)
"""Capabilities inside gVisor's own kernel, all of them over that kernel's objects only; on the host the process that runs
it has none. SYS_ADMIN opens mount(2) to root inside. That adds nothing to what an attacker can reach: gVisor, like Linux,
gives it to any user in a user namespace of their own. Left out: NET_RAW and NET_ADMIN (there is no network), SYS_MODULE,
SYS_RAWIO, SYS_BOOT, SYS_TIME and the rest (nothing there would answer)."""


def oci_config(shape: Shape, limits: GroupLimits, *, has_hub: bool) -> dict[str, Any]:
    """The configuration of one sandbox.

    Args:
        shape: What it was prepared from.
        limits: What its control group was limited to.
        has_hub: Whether its root has a place for volumes; one that an earlier version made has none.
    """
    capabilities = list(CAPABILITIES)
    return {
        "ociVersion": OCI_VERSION,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(GUEST_ARGV),
            "env": [f"PATH={GUEST_PATH}"],
            "cwd": "/",
            # No "ambient": a command that the guest starts as another user keeps none.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
            "oomScoreAdj": KERNEL_OOM_SCORE,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": OPEN_FILES_SOFT, "hard": OPEN_FILES_HARD},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        # Writable through the overlay; the folder itself is mounted read-only.
        "root": {"path": VIEW_ROOT, "readonly": False},
        # Whoever it will be: the guest sets it when that is known.
        "hostname": HOST_NAME,
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            # Shared memory is memory: counted there, and refused (ENOSPC) at half of it, before it takes the sandbox down.
            # /tmp, in contrast, is on the disk (see Holding.furnish): large files belong there.
            {
                "destination": "/dev/shm",  # noqa: S108 - the sandbox's
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", f"size={shape.limits.memory_bytes // 2}"],
            },
            # Before it is known whether it will have any, because a sandbox of a pool gets them while it runs: what is mounted in the stage's
            # view later is seen by the file server, which serves it read-only where it is. The hub itself cannot be written to.
            *(
                [{"destination": HUB, "type": "bind", "source": VIEW_VOLUMES, "options": ["rbind", "rw", "rslave", "nosuid", "nodev"]}]
                if has_hub
                else []
            ),
        ],
        "linux": {
            "cgroupsPath": str(VIEW_GROUP),
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "resources": {
                "memory": {"limit": limits.memory_bytes},
                "cpu": {"quota": cpu_quota_us(limits.cpus), "period": CPU_PERIOD_US},
                "pids": {"limit": limits.pids},
            },
        },
    }
