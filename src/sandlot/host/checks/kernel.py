"""Checks that use features of the kernel: namespaces, filters of system calls (seccomp), process handles (pidfds)."""

from __future__ import annotations

import errno
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

from sandlot.host.checks.finding import Finding, Part
from sandlot.host.checks.runner import run_forked
from sandlot.host.id_ranges import FIRST_ID, IDS
from sandlot.host.stage import syscalls
from sandlot.host.stage.operations import user_namespace

GROUP = "kernel"
NAMESPACES = {
    "mount": syscalls.CLONE_NEWNS,
    "pid": syscalls.CLONE_NEWPID,
    "network": syscalls.CLONE_NEWNET,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "user": syscalls.CLONE_NEWUSER,
    "cgroup": syscalls.CLONE_NEWCGROUP,
}
_SETTING_NAMES = {"mount": "mnt", "network": "net"}
SETTINGS = Path("/proc/sys")
_TRY_S = 5.0

_SECCOMP_RET_ALLOW, _SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SYS_GETPRIORITY = 140
"""Number of getpriority(2) on x86-64. The check of seccomp forbids this system call, which it otherwise does not need."""


def check_kernel() -> list[dict[str, Any]]:
    """Run all checks of this module and return their findings as JSON objects. Must run in a child process, because it may block."""
    return [finding.dump() for finding in (check_namespaces(), check_seccomp(), check_pidfds())]


def check_namespaces() -> Finding:
    """Check, for each kind of namespace, whether a process can enter a new namespace of this kind."""
    parts = tuple(Part(kind, not (why := run_forked(partial(_enter, flag), _TRY_S)), why) for kind, flag in NAMESPACES.items())
    lacking = [part.name for part in parts if not part.ok]
    facts = {name: value for name in _restrictions() if (value := read_setting(name)) is not None}
    if not lacking:
        return Finding("namespaces", ok=True, detail=f"{', '.join(NAMESPACES)}", group=GROUP, parts=parts, facts=facts)
    return Finding(
        "namespaces",
        ok=False,
        detail=f"not available: {', '.join(lacking)}",
        fix=namespace_fix(lacking, facts, os.geteuid()),
        group=GROUP,
        parts=parts,
        facts=facts,
    )


def namespace_fix(lacking: list[str], facts: dict[str, str], uid: int) -> str:
    """Return the action that makes missing kinds of namespaces available.

    Args:
        lacking: Kinds of namespaces that could not be entered, at least one.
        facts: Settings of the kernel that restrict namespaces: name -> value.
        uid: Id of the user that ran the check.
    """
    for kind in lacking:
        name = f"user/max_{_SETTING_NAMES.get(kind, kind)}_namespaces"
        if facts.get(name) == "0":
            return f"sysctl -w {name.replace('/', '.')}=15000 (the value is 0, so no {kind} namespace can be created)."
    if uid != 0:
        if facts.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
            return "Run as root: with kernel.apparmor_restrict_unprivileged_userns=1, no other user can create namespaces."
        if facts.get("kernel/unprivileged_userns_clone") == "0":
            return "Run as root: with kernel.unprivileged_userns_clone=0, no other user can create namespaces."
        return "Run as root."
    return "The container may not create namespaces: start it with CAP_SYS_ADMIN and without a filter (for example docker run --privileged)."


def _restrictions() -> tuple[str, ...]:
    limits = (f"user/max_{_SETTING_NAMES.get(kind, kind)}_namespaces" for kind in NAMESPACES)
    return ("kernel/apparmor_restrict_unprivileged_userns", "kernel/unprivileged_userns_clone", *limits)


def read_setting(name: str) -> str | None:
    """Return the value of a kernel setting (sysctl), named by its path below /proc/sys. Return None if the setting cannot be read."""
    try:
        return (SETTINGS / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _enter(flag: int) -> None:
    if flag == syscalls.CLONE_NEWUSER:
        _enter_user_namespace()
        return
    # A user other than root can create a namespace only together with a new user namespace.
    syscalls.unshare(flag if os.geteuid() == 0 else flag | syscalls.CLONE_NEWUSER)
    if flag == syscalls.CLONE_NEWPID and (why := run_forked(_check_first_pid, _TRY_S)):
        raise OSError(errno.EPERM, why)


def _check_first_pid() -> None:
    if os.getpid() != 1:
        raise OSError(errno.EPERM, f"the first process of a new pid namespace has pid {os.getpid()}, not 1")


def _enter_user_namespace() -> None:
    if os.geteuid() == 0:  # as root, also map a range of ids, as for a sandbox
        os.close(user_namespace(FIRST_ID, IDS))
    syscalls.unshare(syscalls.CLONE_NEWUSER)


def check_seccomp() -> Finding:
    """Check whether filters of system calls work: a system call that a filter forbids must fail with the error that the filter sets."""
    why = run_forked(_filter_one_call, _TRY_S)
    if not why:
        return Finding("seccomp", ok=True, detail="a filter works, without new privileges", group=GROUP)
    fix = "Use a kernel with CONFIG_SECCOMP_FILTER; in a container, the container's own filter may forbid filters (docker run --privileged)."
    return Finding("seccomp", ok=False, detail=why, fix=fix, group=GROUP)


def _filter_one_call() -> None:
    # Each instruction is a struct sock_filter (linux/filter.h): code, jump if true, jump if false, value. The first instruction loads the number of
    # the system call, which is at offset 0 of the data.
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 1, _SYS_GETPRIORITY),
            (_RETURN, 0, 0, _SECCOMP_RET_ERRNO | errno.EXDEV),
            (_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
        )
    )
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.set_seccomp_filter(program)
    try:
        os.getpriority(os.PRIO_PROCESS, 0)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return
        raise
    raise OSError(errno.ENOSYS, "the kernel accepted a filter, but the filter has no effect")


def check_pidfds() -> Finding:
    """Check whether the kernel has process handles (pidfd_open(2), Linux 5.3), through which no signal can reach a process with a reused pid."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Finding("pidfds", ok=False, detail=str(error.strerror), fix="Linux 5.3 or newer is needed.", group=GROUP)
    return Finding("pidfds", ok=True, detail="the kernel has process handles", group=GROUP)
