"""What a sandbox must not change of its host, read before and after."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

_SETTINGS = ("/proc/sys/kernel", "/proc/sys/fs", "/proc/sys/vm", "/proc/sys/dev", "/proc/sys/user", "/proc/sys/abi", "/proc/sys/debug")
"""Folders of sysctl(8) that a machine has once. ``net`` is each network namespace's own; the host's is read too."""
_COUNTERS = re.compile(
    # What counts or is drawn anew at each reading, and what other work on the machine moves.
    r"random/|ns_last_pid|-(nr|state)$|/(file|inode|dentry|aio|pty)[-/]nr$|/(dentry-state|inode-state|nr_pending)$|/stat_refresh$|usermodehelper"
    r"|/sched_domain/|/quota/|/tainted$|/drop_caches$|/compact_memory$|/flush$|_nr$|/(lock|user)_?stat"
)


def host_state() -> dict[str, str]:
    """Settings of the kernel, its modules, swap, handlers of binary formats, names and network interfaces of the host.

    Nothing of it changes by itself or by sandboxes of other services, so that two of them can be compared.
    """
    found: dict[str, str] = {"host name": socket.gethostname(), "interfaces": repr(socket.if_nameindex())}
    for folder in (*_SETTINGS, "/proc/sys/net"):
        for where, _, files in os.walk(folder):
            for name in files:
                path = f"{where}/{name}"
                if not _COUNTERS.search(path):
                    found[path] = _read(path)
    for path in ("/proc/swaps", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/module/kernel/parameters/panic"):
        found[path] = _read(path)
    found["/proc/modules"] = repr(sorted(line.split()[0] for line in _read("/proc/modules").splitlines()))
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs, both values."""
    return {name: (before.get(name), after.get(name)) for name in {*before, *after} if before.get(name) != after.get(name)}


def _read(path: str) -> str:
    """A small file of the kernel; nothing where it cannot be read."""
    try:
        return Path(path).read_text(encoding="latin-1")
    except OSError:
        return ""
