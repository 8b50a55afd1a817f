"""The ``config.json`` of an OCI bundle for crun. Pure.

Several independent layers separate the tenant's code from the host's kernel:

- Separate user, pid, network, IPC, UTS, mount and cgroup namespaces. The user namespace maps root inside to an unprivileged id of the host. The
  network namespace is that of the stage, the process that starts the runtime (``plan.py``). It belongs to the host's user namespace, so root inside
  cannot change its cards, routes and NAT table.
- Capabilities over this user namespace only, without SYS_ADMIN, NET_ADMIN and SYS_RESOURCE.
- A list of allowed system calls (``seccomp.py``). No program can gain privileges (no_new_privs).
- No sysfs. Files of /proc that describe the host's devices or the internals of its kernel are hidden, and /proc/sys is read-only.
- A /dev with seven nodes. Every file system is mounted with ``nosuid``, and device nodes work only in /dev.

Source: the OCI runtime specification 1.0.2, config.md and config-linux.md; proc(5); capabilities(7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandlot.drivers.oci.container.seccomp import seccomp_filter
from sandlot.drivers.oci.paths import VIEW_BOOT_ID, VIEW_IDS, VIEW_ROOT, VIEW_VOLUMES
from sandlot.drivers.oci.runtime import CORE_BYTES, GUEST_PATH, OCI_VERSION, OOM_SCORE
from sandlot.link.payload import GUEST_ARGV
from sandlot.model.ports import Attachment
from sandlot.model.specs import SandboxSpec, Shape
from sandlot.protocol.schema import NETWORK_ARGUMENT

CAPABILITIES = (
    # Usual capabilities of root in a container, for example to access all files, switch to another user, or bind to a port below 1024.
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
    # For debuggers that run as root. Other users can trace their own processes without this capability.
    "CAP_SYS_PTRACE",
)
"""Capabilities over objects of the sandbox's own user namespace. Omitted: MKNOD, because the devices would not work; SYS_ADMIN, NET_ADMIN, NET_RAW,
SYS_RESOURCE and others, because they open parts of the host's kernel that no program here needs."""

MASKED = (
    # Files and folders that describe the host's devices, its memory, and how it was booted.
    *("/proc/cmdline", "/proc/consoles", "/proc/devices", "/proc/diskstats", "/proc/dma", "/proc/interrupts", "/proc/iomem", "/proc/ioports"),
    *("/proc/mdstat", "/proc/misc", "/proc/modules", "/proc/mtrr", "/proc/partitions", "/proc/swaps", "/proc/softirqs", "/proc/cgroups"),
    *("/proc/acpi", "/proc/asound", "/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/scsi", "/proc/tty", "/proc/xen"),
    # Files and folders that show internals of the host's kernel, and the activity of other processes.
    *("/proc/buddyinfo", "/proc/config.gz", "/proc/crypto", "/proc/dynamic_debug", "/proc/kallsyms", "/proc/kcore", "/proc/key-users"),
    *("/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/locks"),
    *("/proc/pagetypeinfo", "/proc/pressure", "/proc/sched_debug", "/proc/schedstat", "/proc/slabinfo", "/proc/sysrq-trigger", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/vmallocinfo", "/proc/vmstat", "/proc/zoneinfo"),
)
"""Paths that are covered by an empty file or folder, if the kernel has them."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
READ_ONLY = ("/proc/sys", BOOT_ID)
"""Paths that are mounted read-only. The runtime mounts each path over itself, but not the mounts below the path. So the mount at :data:`BOOT_ID` is
listed separately."""

DEV_BYTES = 64 * 1024
SHM = "/dev/shm"  # noqa: S108 - the sandbox's


def oci_config(shape: Shape, spec: SandboxSpec, first_id: int, ids: int, volumes: Sequence[Attachment] = (), *, has_card: bool) -> dict[str, Any]:
    """Return the ``config.json`` of one sandbox, not yet encoded.

    Args:
        shape: Shape of the sandbox.
        spec: Spec of the sandbox; its id becomes the host name.
        first_id: First of the sandbox's own user and group ids on the host.
        ids: Number of the sandbox's user and group ids.
        volumes: Volumes of the sandbox. The stage, the process that starts the runtime, has mounted them in its mount namespace.
        has_card: True if the sandbox has a network card that leads to the guest.
    """
    capabilities = list(CAPABILITIES)
    mapping = [{"containerID": 0, "hostID": first_id, "size": ids}]
    return {
        "ociVersion": OCI_VERSION,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [*GUEST_ARGV, NETWORK_ARGUMENT] if has_card else list(GUEST_ARGV),
            # HOME is set because crun would otherwise look it up in the image's /etc/passwd, and block for ever if this file is a pipe.
            "env": [f"PATH={GUEST_PATH}", "HOME=/"],
            "cwd": "/",
            # No ambient capabilities: a process that the guest starts as another user has no capabilities.
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
            "oomScoreAdj": OOM_SCORE,
            # RLIMIT_NOFILE is not set here: the process that starts crun sets it (``plan.py``), and the sandbox inherits it.
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
            # Shared memory counts against the memory limit. A write beyond half of the limit fails (ENOSPC), so that it does not end the sandbox.
            {
                "destination": SHM,
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", f"size={shape.limits.memory_bytes // 2}"],
            },
            # An empty folder instead of sysfs: sysfs would show the host's devices and, through the loop devices, paths of other sandboxes.
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
            "namespaces": [{"type": "user", "path": VIEW_IDS}, *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup"))],
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            "seccomp": seccomp_filter(),
        },
    }
