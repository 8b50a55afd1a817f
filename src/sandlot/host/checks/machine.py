"""Checks of the machine: system, user, memory, processors, limits, programs. These checks only read, and start no process."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from sandlot.host.cgroup_layout import parse_flat_keyed
from sandlot.host.checks.finding import Finding, Part
from sandlot.model.specs import Limits

GROUP = "machine"
SUPPORTED = {"debian": ("12", "13")}
"""Systems on which Sandlot is tested: ID of os-release(5) -> values of VERSION_ID."""
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
"""Capabilities that the service needs, and that root lacks in some containers: name without CAP_ -> number (linux/capability.h)."""
MIN_OPEN_FILES = 1024
"""Least soft limit of open files (RLIMIT_NOFILE) with which the check passes."""
MIN_PIDS = 8192
"""Least kernel.pid_max with which the check passes: enough for 50 sandboxes with about 150 host tasks each."""
_MEMINFO, _STATUS, _UID_MAP = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/uid_map")
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_ALL_IDS = 2**32 - 1
_GIB = 1024**3
_ROOT_PATH = "/usr/sbin:/sbin"


def check_machine() -> list[Finding]:
    """Run the checks of this module, except those of programs, and return the findings. Blocks for some milliseconds."""
    return [
        check_system(_os_release(), platform.machine(), platform.release()),
        check_user(os.geteuid(), _read(_STATUS), _read(_UID_MAP)),
        check_memory(parse_flat_keyed(_read(_MEMINFO).replace(":", "").replace(" kB", "")), Limits().memory_bytes),
        check_processors(len(os.sched_getaffinity(0)), os.cpu_count() or 1),
        check_limits(resource.getrlimit(resource.RLIMIT_NOFILE), int(_read(_PID_MAX) or 0)),
        check_core_files(_read(_CORE_PATTERN).strip()),
    ]


def check_system(release: Mapping[str, str], machine: str, kernel: str) -> Finding:
    """Check whether the operating system is one on which Sandlot is tested. Sandlot may also work on other systems.

    Args:
        release: Fields of os-release(5).
        machine: Architecture as printed by ``uname -m``.
        kernel: Release of the kernel as printed by ``uname -r``.
    """
    name = release.get("PRETTY_NAME") or release.get("NAME") or "an unknown system"
    detail = f"{name}, Linux {kernel}, {machine}"
    facts = {"id": release.get("ID", ""), "version": release.get("VERSION_ID", ""), "kernel": kernel, "machine": machine}
    if machine != "x86_64":
        return Finding("system", ok=False, detail=detail, fix="Sandlot runs on x86-64 only.", group=GROUP, facts=facts)
    known = release.get("VERSION_ID", "") in SUPPORTED.get(release.get("ID", ""), ())
    fix = "" if known else "Use Debian 12 or 13, on which Sandlot is tested; other systems are best effort."
    return Finding("system", known, detail, fix, required=False, group=GROUP, facts=facts)


def check_user(uid: int, status: str, uid_map: str) -> Finding:
    """Check whether this user may create sandboxes.

    Args:
        uid: Effective user id.
        status: Text of ``/proc/self/status``.
        uid_map: Text of ``/proc/self/uid_map``.
    """
    facts = {"uid": uid}
    if uid != 0:
        fix = "Only root can start sandboxes: use sudo, or set SANDLOT_URL and SANDLOT_API_KEY of a service that runs."
        return Finding("user", ok=False, detail=f"uid {uid}", fix=fix, group=GROUP, facts=facts)
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    lacking = [name for name, number in CAPABILITIES.items() if not effective >> number & 1]
    if lacking:
        detail = f"root, without {', '.join(f'CAP_{name}' for name in lacking)}"
        fix = "Run on the host itself, or in a container with these capabilities (for example docker run --privileged)."
        return Finding("user", ok=False, detail=detail, fix=fix, group=GROUP, facts=facts)
    if uid_map.split() != ["0", "0", str(_ALL_IDS)]:
        fix = "Run as root of the host: root of a user namespace may neither mount disks nor limit control groups."
        return Finding("user", ok=False, detail="root of a user namespace only", fix=fix, group=GROUP, facts=facts)
    return Finding("user", ok=True, detail="root, with its capabilities", group=GROUP, facts=facts)


def check_memory(meminfo: Mapping[str, int], sandbox_bytes: int) -> Finding:
    """Check whether the memory available now is enough for one sandbox with the default memory limit.

    Args:
        meminfo: Fields of ``/proc/meminfo``: name -> KiB.
        sandbox_bytes: Default memory limit of a sandbox, in bytes.
    """
    total, available, swap = (meminfo.get(name, 0) * 1024 for name in ("MemTotal", "MemAvailable", "SwapTotal"))
    facts = {"total_bytes": total, "available_bytes": available, "swap_bytes": swap}
    detail = f"{available / _GIB:.1f} of {total / _GIB:.1f} GiB available, {swap / _GIB:.1f} GiB of swap (sandboxes get none)"
    enough = available >= sandbox_bytes
    fix = "" if enough else f"Free memory, or create sandboxes with less than the default of {sandbox_bytes / _GIB:g} GiB."
    return Finding("memory", enough, detail, fix, required=False, group=GROUP, facts=facts)


def check_processors(usable: int, online: int) -> Finding:
    """Report the number of processors. This check always passes.

    Args:
        usable: Number of processors on which this process may run.
        online: Number of processors of the machine.
    """
    detail = f"{usable}" if usable == online else f"{usable} of {online}"
    return Finding("processors", ok=True, detail=detail, required=False, group=GROUP, facts={"usable": usable, "online": online})


def check_limits(open_files: tuple[int, int], pids: int) -> Finding:
    """Check whether the limits of open files and of processes allow about 50 sandboxes.

    Args:
        open_files: Soft and hard limit of open files (RLIMIT_NOFILE). A service has some files open for each sandbox.
        pids: Value of kernel.pid_max. 0: the value could not be read, and the check of processes passes.
    """
    soft, hard = open_files
    unlimited = resource.RLIM_INFINITY
    files_fine, pids_fine = soft == unlimited or soft >= MIN_OPEN_FILES, pids == 0 or pids >= MIN_PIDS
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
    """Check that the kernel passes no core dumps to a program of the host: a program in a container could start that program as root.

    Args:
        pattern: Value of kernel.core_pattern (core(5)). Empty: the value could not be read, and the check passes.
    """
    piped = pattern.startswith("|")
    detail = f"passed to a program of the host: {pattern[1:]}" if piped else "not passed to any program of the host"
    fix = "sysctl -w kernel.core_pattern=core: a program in a container can make the kernel start that program as root, with its memory as input."
    return Finding("core-files", not piped, detail, fix if piped else "", required=False, group=GROUP, facts={"core_pattern": pattern})


def find_program(name: str) -> str | None:
    """Return the path of a program in PATH, /usr/sbin or /sbin. Return None if the program is not found."""
    return shutil.which(name) or shutil.which(name, path=_ROOT_PATH)


def check_program(name: str, fix: str, *, required: bool = True) -> Finding:
    """Check whether a program is installed.

    Args:
        name: Name of the program.
        fix: Command that installs the program.
        required: True if sandboxes cannot run without the program.
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
