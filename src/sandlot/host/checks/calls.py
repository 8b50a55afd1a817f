"""System calls that Python 3.11 has no names for; each raises OSError where the kernel says no."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
"""linux/sched.h"""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
"""linux/prctl.h"""

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str = "") -> int:
    """Raise what errno says if a C call failed; otherwise what it returned."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)
    return result


def unshare(flags: int) -> None:
    """Leave namespaces for own ones (unshare(2))."""
    checked(_libc.unshare(flags), "unshare")


def prctl(option: int, *arguments: int) -> None:
    """Change this process (prctl(2))."""
    checked(_libc.prctl(option, *(ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4])), "prctl")
