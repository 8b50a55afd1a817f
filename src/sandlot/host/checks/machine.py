"""The machine as such: its system, who asks, memory, processors, limits of the service, programs. Reads, and starts nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from sandlot.host.checks.finding import Finding, Part
from sandlot.host.hierarchies import read_pairs
from sandlot.model.specs import Limits

GROUP = "machine"
SUPPORTED = {"debian": ("12", "13")}
"""os-release's ID -> VERSION_IDs that Sandlot is tested on."""
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "SYS_CHROOT": 18,
    "SYS_ADMIN": 21,
    "MKNOD": 27,
    "SETFCAP": 31,
}
"""What root needs and an unprivileged container takes away: name -> number (linux/capability.h)."""
LEAST_OPEN_FILES = 1024
LEAST_PIDS = 8192
"""Fifty sandboxes of about 150 host tasks each."""
_MEMINFO, _STATUS, _UID_MAP = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/uid_map")
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_ALL_IDS = 2**32 - 1
_GIB = 1024**3
_ROOTS_PATH = "/usr/sbin:/sbin"


def check_machine() -> list[Finding]:
    """Everything of this module, in some milliseconds."""
    return [
        check_system(_os_release(), platform.machine(), platform.release()),
        check_user(os.geteuid(), _read(_STATUS), _read(_UID_MAP)),
        check_memory(read_pairs(_read(_MEMINFO).replace(":", "").replace(" kB", "")), Limits().memory_bytes),
        check_processors(len(os.sched_getaffinity(0)), os.cpu_count() or 1),
        check_limits(resource.getrlimit(resource.RLIMIT_NOFILE), int(_read(_PID_MAX) or 0)),
        check_core_files(_read(_CORE_PATTERN).strip()),
    ]


def check_system(release: Mapping[str, str], machine: str, kernel: str) -> Finding:
    """The operating system; others than the supported ones may work.

    Args:
        release: os-release(5).
        machine: The architecture, as uname(1) has it.
        kernel: The kernel's release.
    """
    name = release.get("PRETTY_NAME") or release.get("NAME") or "an unknown system"
    detail = f"{name}, Linux {kernel}, {machine}"
    facts = {"id": release.get("ID", ""), "version": release.get("VERSION_ID", ""), "kernel": kernel, "machine": machine}
    if machine != "x86_64":
        return Finding("system", ok=False, detail=detail, fix="Sandlot runs on x86-64 only.", group=GROUP, facts=facts)
    known = release.get("VERSION_ID", "") in SUPPORTED.get(release.get("ID", ""), ())
    fix = "" if known else "Tested on Debian 12 and 13; elsewhere it is best effort."
    return Finding("system", known, detail, fix, required=False, group=GROUP, facts=facts)


def check_user(uid: int, status: str, uid_map: str) -> Finding:
    """Whether this user may make sandboxes.

    Args:
        uid: Effective.
        status: The text of ``/proc/self/status``.
        uid_map: The text of ``/proc/self/uid_map``.
    """
    facts = {"uid": uid}
    if uid != 0:
        fix = "Only root can start sandboxes: use sudo, or set SANDLOT_URL and SANDLOT_API_KEY of a service that runs."
        return Finding("user", ok=False, detail=f"uid {uid}", fix=fix, group=GROUP, facts=facts)
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    lacking = [name for name, number in CAPABILITIES.items() if not effective >> number & 1]
    if lacking:
        detail = f"root, without {', '.join(f'CAP_{name}' for name in lacking)}"
        fix = "Run on the host itself, or in a container that has them (for example docker run --privileged)."
        return Finding("user", ok=False, detail=detail, fix=fix, group=GROUP, facts=facts)
    if uid_map.split() != ["0", "0", str(_ALL_IDS)]:
        fix = "Run as root of the host: root of a user namespace may neither mount disks nor limit control groups."
        return Finding("user", ok=False, detail="root of a user namespace only", fix=fix, group=GROUP, facts=facts)
    return Finding("user", ok=True, detail="root, with its capabilities", group=GROUP, facts=facts)


def check_memory(meminfo: Mapping[str, int], sandbox_bytes: int) -> Finding:
    """Whether there is room for sandboxes.

    Args:
        meminfo: ``/proc/meminfo``: name -> KiB.
        sandbox_bytes: What one sandbox may use, unless it asks for something else.
    """
    total, available, swap = (meminfo.get(name, 0) * 1024 for name in ("MemTotal", "MemAvailable", "SwapTotal"))
    facts = {"total_bytes": total, "available_bytes": available, "swap_bytes": swap}
    detail = f"{available / _GIB:.1f} of {total / _GIB:.1f} GiB available, {swap / _GIB:.1f} GiB of swap (sandboxes get none)"
    enough = available >= sandbox_bytes
    fix = "" if enough else f"A sandbox may use {sandbox_bytes / _GIB:g} GiB unless it asks for less: free memory, or create smaller ones."
    return Finding("memory", enough, detail, fix, required=False, group=GROUP, facts=facts)


def check_processors(usable: int, online: int) -> Finding:
    """How many there are: an answer is always fine."""
    detail = f"{usable}" if usable == online else f"{usable} of {online}"
    return Finding("processors", ok=True, detail=detail, required=False, group=GROUP, facts={"usable": usable, "online": online})


def check_limits(open_files: tuple[int, int], pids: int) -> Finding:
    """What bounds the number of sandboxes beside memory.

    Args:
        open_files: RLIMIT_NOFILE, soft and hard; a service takes some for each sandbox.
        pids: kernel.pid_max; 0 where it cannot be read.
    """
    soft, hard = open_files
    unlimited = resource.RLIM_INFINITY
    files_fine, pids_fine = soft == unlimited or soft >= LEAST_OPEN_FILES, pids == 0 or pids >= LEAST_PIDS
    parts = (
        Part("open files", files_fine, f"{'unlimited' if soft == unlimited else soft}"),
        Part("processes of the machine", pids_fine, f"{pids or 'unknown'}"),
    )
    fixes = ([] if files_fine else ["ulimit -n 65536, or LimitNOFILE=65536 in the service's unit."]) + (
        [] if pids_fine else ["sysctl -w kernel.pid_max=4194304."]
    )
    facts = {"open_files_soft": soft, "open_files_hard": hard, "pid_max": pids}
    detail = ", ".join(f"{part.detail} {part.name}" for part in parts)
    return Finding("limits", files_fine and pids_fine, detail, " ".join(fixes), required=False, group=GROUP, parts=parts, facts=facts)


def check_core_files(pattern: str) -> Finding:
    """Whether memory of a program that crashes in a container can reach a program of the host.

    Args:
        pattern: kernel.core_pattern (core(5)); empty where it cannot be read.
    """
    piped = pattern.startswith("|")
    detail = f"given to a program of the host: {pattern[1:]}" if piped else "not given to any program of the host"
    fix = "sysctl -w kernel.core_pattern=core: a program in a container can have that program, root here, started with what it held in memory."
    return Finding("core-files", not piped, detail, fix if piped else "", required=False, group=GROUP, facts={"core_pattern": pattern})


def find_program(name: str) -> str | None:
    """A program on PATH, or where root's programs are."""
    return shutil.which(name) or shutil.which(name, path=_ROOTS_PATH)


def check_program(name: str, fix: str, *, required: bool = True) -> Finding:
    """Whether a program is there.

    Args:
        name: Its name.
        fix: How to get it.
        required: Whether sandboxes cannot run without it.
    """
    found = find_program(name)
    facts = {"path": found}
    return Finding(name, found is not None, found or "not installed", "" if found else fix, required=required, group="programs", facts=facts)


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
