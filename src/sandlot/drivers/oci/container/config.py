"""Pure: from a shape and a spec to the ``config.json`` of an OCI bundle for crun.

What stands between the code and the host's kernel, every layer for itself:

- namespaces of its own of every kind, the user namespace first: root inside is an id on the host that owns nothing there;
- capabilities over that namespace only, and of those no SYS_ADMIN, NET_ADMIN or SYS_RESOURCE;
- a list of allowed system calls (``seccomp.py``), and no new privileges by any program;
- no sysfs; of /proc what names the host's devices or its kernel's inside is covered, and nothing can be set;
- a /dev with seven nodes; every file system is mounted without devices and setuid.

Source: the OCI runtime specification 1.0.2, config.md and config-linux.md; proc(5); capabilities(7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandlot.drivers.oci.container.seccomp import seccomp_filter
from sandlot.drivers.oci.places import VIEW_BOOT_ID, VIEW_IDS, VIEW_ROOT, VIEW_VOLUMES
from sandlot.drivers.oci.runtime import CORE_BYTES, GUEST_PATH, OCI_VERSION, OOM_SCORE
from sandlot.link.payload import GUEST_ARGV
from sandlot.model.ports import Attachment
from sandlot.model.specs import SandboxSpec, Shape

CAPABILITIES = (
    # What root in a container usually has: own files, other users, low ports.
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
    # Debuggers, for root; a user traces own processes without it.
    "CAP_SYS_PTRACE",
)
"""Capabilities over what belongs to the sandbox's own user namespace. MKNOD would make no device that works; SYS_ADMIN,
NET_ADMIN, NET_RAW, SYS_RESOURCE and the rest open parts of the host's kernel that no program here needs."""

MASKED = (
    # What names the host's devices, memory and start.
    *("/proc/cmdline", "/proc/consoles", "/proc/devices", "/proc/diskstats", "/proc/dma", "/proc/interrupts", "/proc/iomem", "/proc/ioports"),
    *("/proc/mdstat", "/proc/misc", "/proc/modules", "/proc/mtrr", "/proc/partitions", "/proc/swaps", "/proc/softirqs", "/proc/cgroups"),
    *("/proc/acpi", "/proc/asound", "/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/scsi", "/proc/tty", "/proc/xen"),
    # What tells of its kernel's inside and of others' work.
    *("/proc/buddyinfo", "/proc/config.gz", "/proc/crypto", "/proc/dynamic_debug", "/proc/kallsyms", "/proc/kcore", "/proc/key-users"),
    *("/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/locks"),
    *("/proc/pagetypeinfo", "/proc/pressure", "/proc/sched_debug", "/proc/schedstat", "/proc/slabinfo", "/proc/sysrq-trigger", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/vmallocinfo", "/proc/vmstat", "/proc/zoneinfo"),
)
"""Covered by an empty file or folder, those that the kernel has."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
READ_ONLY = ("/proc/sys", BOOT_ID)
"""The second lies on the first, which is bound anew."""

DEV_BYTES = 64 * 1024
SHM = "/dev/shm"  # noqa: S108 - the sandbox's


def oci_config(shape: Shape, spec: SandboxSpec, first_id: int, ids: int, volumes: Sequence[Attachment] = ()) -> dict[str, Any]:
    """The configuration of one sandbox.

    Args:
        shape: What it was prepared from.
        spec: What was asked for; its id becomes the host name.
        first_id: The first of its own user and group ids on the host.
        ids: How many there are.
        volumes: Its volumes, which are in the stage's view.
    """
    capabilities = list(CAPABILITIES)
    mapping = [{"containerID": 0, "hostID": first_id, "size": ids}]
    return {
        "ociVersion": OCI_VERSION,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(GUEST_ARGV),
            # HOME, because crun otherwise looks for it in the image's /etc/passwd, and waits for ever where that is a pipe.
            "env": [f"PATH={GUEST_PATH}", "HOME=/"],
            "cwd": "/",
            # No "ambient": a command that the guest starts as another user keeps none.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
            "oomScoreAdj": OOM_SCORE,
            # That of open files is the stage's (``plan.py``).
            "rlimits": [{"type": "RLIMIT_CORE", "soft": CORE_BYTES, "hard": CORE_BYTES}],
        },
        "root": {"path": VIEW_ROOT, "readonly": False},
        "hostname": spec.id,
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": BOOT_ID, "type": "bind", "source": VIEW_BOOT_ID, "options": ["bind", "ro", "nosuid", "noexec", "nodev"]},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "dev",
                "options": ["nosuid", "noexec", "mode=755", f"size={DEV_BYTES}", "nr_inodes=64"],
            },
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=256"],
            },
            # Shared memory is memory: counted there, and refused (ENOSPC) at half of it, before it takes the sandbox down.
            {
                "destination": SHM,
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", f"size={shape.limits.memory_bytes // 2}"],
            },
            # In place of sysfs, which would show the host's devices and, by its loop devices, where other sandboxes lie.
            {"destination": "/sys", "type": "tmpfs", "source": "sys", "options": ["nosuid", "noexec", "nodev", "ro", "mode=755", "size=4k"]},
            *(
                {
                    "destination": volume.path,
                    "type": "bind",
                    "source": f"{VIEW_VOLUMES}/{volume.slot}",
                    "options": ["bind", "ro" if volume.read_only else "rw", "nosuid", "nodev"],
                }
                for volume in volumes
            ),
        ],
        "linux": {
            "uidMappings": mapping,
            "gidMappings": mapping,
            "namespaces": [{"type": "user", "path": VIEW_IDS}, *({"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup"))],
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            "seccomp": seccomp_filter(),
        },
    }
