"""What the kernel gives to sandboxes: namespaces, filters of system calls, handles of processes; each found by using it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Any

from sandlot.host.checks import calls
from sandlot.host.checks.children import forked
from sandlot.host.checks.finding import Finding, Part
from sandlot.host.idranges import FIRST_ID, IDS
from sandlot.host.stage import operations

GROUP = "kernel"
NAMESPACES = {
    "mount": calls.CLONE_NEWNS,
    "pid": calls.CLONE_NEWPID,
    "network": calls.CLONE_NEWNET,
    "ipc": calls.CLONE_NEWIPC,
    "uts": calls.CLONE_NEWUTS,
    "user": calls.CLONE_NEWUSER,
    "cgroup": calls.CLONE_NEWCGROUP,
}
_KINDS_OF_SETTING = {"mount": "mnt", "network": "net"}
SETTINGS = Path("/proc/sys")
_TRY_S = 5.0

_SECCOMP_MODE_FILTER = 2
_SECCOMP_RET_ALLOW, _SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SYS_GETPRIORITY = 140
"""linux/seccomp.h, linux/bpf_common.h; x86-64's number of a call that nothing here needs."""


def check_kernel() -> list[dict[str, Any]]:
    """Everything of this module, in a process of its own."""
    return [finding.dump() for finding in (check_namespaces(), check_seccomp(), check_pidfds())]


def check_namespaces() -> Finding:
    """Whether a process may have namespaces of its own, one kind after the other."""
    parts = tuple(Part(kind, not (why := forked(lambda flag=flag: _enter(flag), _TRY_S)), why) for kind, flag in NAMESPACES.items())  # type: ignore[misc]
    lacking = [part.name for part in parts if not part.ok]
    facts = {name: value for name in _restrictions() if (value := read_setting(name)) is not None}
    if not lacking:
        return Finding("namespaces", ok=True, detail=f"{', '.join(NAMESPACES)}", group=GROUP, parts=parts, facts=facts)
    return Finding(
        "namespaces",
        ok=False,
        detail=f"none of these: {', '.join(lacking)}",
        fix=namespace_fix(lacking, facts, os.geteuid()),
        group=GROUP,
        parts=parts,
        facts=facts,
    )


def namespace_fix(lacking: list[str], facts: dict[str, str], uid: int) -> str:
    """What to do where a kind of namespace cannot be had.

    Args:
        lacking: The kinds.
        facts: The kernel's settings that bear on it.
        uid: Who tried.
    """
    for kind in lacking:
        name = f"user/max_{_KINDS_OF_SETTING.get(kind, kind)}_namespaces"
        if facts.get(name) == "0":
            return f"sysctl -w {name.replace('/', '.')}=15000 (it is 0: no {kind} namespaces at all)."
    if uid != 0:
        if facts.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
            return "Run as root: kernel.apparmor_restrict_unprivileged_userns=1 keeps other users out of namespaces."
        if facts.get("kernel/unprivileged_userns_clone") == "0":
            return "Run as root: kernel.unprivileged_userns_clone=0 keeps other users out of namespaces."
        return "Run as root."
    return "Root is not enough inside of an unprivileged container: it needs CAP_SYS_ADMIN and no filter (for example docker run --privileged)."


def _restrictions() -> tuple[str, ...]:
    limits = (f"user/max_{_KINDS_OF_SETTING.get(kind, kind)}_namespaces" for kind in NAMESPACES)
    return ("kernel/apparmor_restrict_unprivileged_userns", "kernel/unprivileged_userns_clone", *limits)


def read_setting(name: str) -> str | None:
    """A setting of the kernel (sysctl); None where it has no such one."""
    try:
        return (SETTINGS / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _enter(flag: int) -> None:
    if flag == calls.CLONE_NEWUSER:
        _enter_user_namespace()
        return
    # Others than root may have them only as root of a user namespace.
    calls.unshare(flag if os.geteuid() == 0 else flag | calls.CLONE_NEWUSER)
    if flag == calls.CLONE_NEWPID and (why := forked(_be_first, _TRY_S)):
        raise OSError(errno.EPERM, why)


def _be_first() -> None:
    if os.getpid() != 1:
        raise OSError(errno.EPERM, f"the first process got pid {os.getpid()}")


def _enter_user_namespace() -> None:
    if os.geteuid() == 0:  # with ids of its own, as a sandbox has them: that takes more than a namespace
        os.close(operations.user_namespace(FIRST_ID, IDS))
    calls.unshare(calls.CLONE_NEWUSER)


def check_seccomp() -> Finding:
    """Whether a filter of system calls is obeyed: a call that it forbids must fail with the error that it names."""
    why = forked(_filter_one_call, _TRY_S)
    if not why:
        return Finding("seccomp", ok=True, detail="a filter is obeyed, without new privileges", group=GROUP)
    fix = "The kernel must be built with CONFIG_SECCOMP_FILTER; inside of a container, its own filter may forbid it (docker run --privileged)."
    return Finding("seccomp", ok=False, detail=why, fix=fix, group=GROUP)


def _filter_one_call() -> None:
    # linux/filter.h: code, jumps if true and if false, value. The number of the call is the first word of struct seccomp_data.
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 1, _SYS_GETPRIORITY),
            (_RETURN, 0, 0, _SECCOMP_RET_ERRNO | errno.EXDEV),
            (_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(instructions)))
    calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)
    calls.prctl(calls.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head))
    try:
        os.getpriority(os.PRIO_PROCESS, 0)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return
        raise
    raise OSError(errno.ENOSYS, "a filter was taken, and not obeyed")


def check_pidfds() -> Finding:
    """Whether the kernel has handles of processes (pidfd_open(2), Linux 5.3): a recycled pid is never sent a signal."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Finding("pidfds", ok=False, detail=str(error.strerror), fix="Linux 5.3 or newer is needed.", group=GROUP)
    return Finding("pidfds", ok=True, detail="processes have handles", group=GROUP)
