"""The ``config.json`` of an OCI bundle for runsc. Pure.

Source: the OCI runtime specification 1.0.2, config.md and config-linux.md, and its implementation in runsc.
"""

from __future__ import annotations

from typing import Any

from sandlot.drivers.oci.gvisor.plan import KERNEL_OOM_SCORE
from sandlot.drivers.oci.paths import VIEW_DISK, VIEW_GROUP, VIEW_IMAGE, VIEW_ROOT, VIEW_VOLUMES
from sandlot.drivers.oci.runtime import GUEST_PATH, OCI_VERSION
from sandlot.host.cgroup_layout import CPU_PERIOD_US, GroupLimits, cpu_quota_us
from sandlot.link.payload import GUEST_ARGV, GUEST_ROOT, VOLUMES
from sandlot.model.specs import RootKind, Shape
from sandlot.protocol.schema import NETWORK_ARGUMENT

HOST_NAME = "sandbox"
HUB = f"{GUEST_ROOT}/{VOLUMES}"
"""Directory inside the sandbox with the volumes, each in a folder named after its slot. The guest binds them to their paths."""
OPEN_FILES_SOFT = 65536
OPEN_FILES_HARD = 1_048_576
"""Linux's own maximum (fs.nr_open). Open files inside take memory of gVisor's kernel only, which the memory limit covers."""

IMAGE_ANNOTATIONS = {
    "dev.gvisor.spec.rootfs.source": VIEW_IMAGE,
    "dev.gvisor.spec.rootfs.type": "erofs",
    "dev.gvisor.spec.rootfs.overlay": f"dir={VIEW_DISK}",
}
"""Annotations that make runsc open an EROFS image, read-only, instead of the folder ``root.path`` (pkg ``runsc/boot/mount_hints.go``). runsc mounts a
tmpfs at an empty ``/tmp`` of the root file system, so images contain an entry there."""

CAPABILITIES = (
    # Usual capabilities of root in a container: files, other users, low ports, device nodes. Device nodes give access to no device.
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
    # The guest needs this capability to set the host name when the sandbox gets its owner, and to set limits and priorities of processes.
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    # For debuggers that run as root. Other users can trace their own processes without this capability.
    "CAP_SYS_PTRACE",
)
"""Capabilities over objects of gVisor's own kernel. On the host, the process that runs this kernel has none. SYS_ADMIN allows root inside to call
mount(2). This gives an attacker nothing new: in gVisor, as in Linux, every user gets SYS_ADMIN in a user namespace of their own. Omitted: NET_RAW and
NET_ADMIN, because there is no network; SYS_MODULE, SYS_RAWIO, SYS_BOOT, SYS_TIME and others, because gVisor does not implement what they allow."""


def oci_config(shape: Shape, limits: GroupLimits, *, has_hub: bool, has_card: bool, netns: str = "") -> dict[str, Any]:
    """Return the configuration of one sandbox.

    Args:
        shape: Shape of the sandbox.
        limits: Limits of the sandbox's control group.
        has_hub: True if the root file system has a directory for volumes.
        has_card: True if the sandbox gets a network card that leads to the guest.
        netns: Path of the network namespace that runsc copies; empty: runsc copies none.
    """
    capabilities = list(CAPABILITIES)
    return {
        "ociVersion": OCI_VERSION,
        "annotations": dict(IMAGE_ANNOTATIONS) if shape.root.kind is RootKind.IMAGE else {},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [*GUEST_ARGV, NETWORK_ARGUMENT] if has_card else list(GUEST_ARGV),
            "env": [f"PATH={GUEST_PATH}"],
            "cwd": "/",
            # No ambient capabilities: a process that the guest starts as another user has no capabilities.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
            "oomScoreAdj": KERNEL_OOM_SCORE,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": OPEN_FILES_SOFT, "hard": OPEN_FILES_HARD},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        # Writes go to the overlay. The folder itself is mounted read-only.
        "root": {"path": VIEW_ROOT, "readonly": False},
        # This host name is a placeholder. The guest sets the host name of the sandbox when the sandbox gets its owner.
        "hostname": HOST_NAME,
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            # Shared memory counts against the memory limit. A write beyond half of the limit fails (ENOSPC), so that it does not end the sandbox.
            # /tmp is on the disk instead (see SandboxHostResources.create_resources): it is for large files.
            {
                "destination": "/dev/shm",  # noqa: S108 - the sandbox's
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", f"size={shape.limits.memory_bytes // 2}"],
            },
            # The parent directory of the volumes is always mounted, because a sandbox of a pool gets its volumes while it runs. The file server sees
            # volumes that are mounted later in the stage's namespace, and enforces read-only mounts. The directory itself is read-only.
            *(
                [{"destination": HUB, "type": "bind", "source": VIEW_VOLUMES, "options": ["rbind", "rw", "rslave", "nosuid", "nodev"]}]
                if has_hub
                else []
            ),
        ],
        "linux": {
            "cgroupsPath": str(VIEW_GROUP),
            "namespaces": [
                {"type": "network", "path": netns} if kind == "network" and netns else {"type": kind}
                for kind in ("pid", "network", "ipc", "uts", "mount")
            ],
            "resources": {
                "memory": {"limit": limits.memory_bytes},
                "cpu": {"quota": cpu_quota_us(limits.cpus), "period": CPU_PERIOD_US},
                "pids": {"limit": limits.pids},
            },
        },
    }
