"""Search this host for remains of the sandboxes of one node.

The search reads ``/proc``, ``/sys`` and the state directory, and uses no driver. It finds only remains that contain the path of the state directory
or the id of the node, for example in a command line. Sandboxes of other nodes on the machine are therefore ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sized
from pathlib import Path
from typing import TypeVar

from sandlot.model.ids import NodeId

MAX_WAIT_S = 30.0
"""Longest time in seconds that :func:`wait_until_empty` waits. The function waits so long only if there is a defect."""
_NUMBER = re.compile(r"\d+")

FoundT = TypeVar("FoundT", bound=Sized)


def leftovers(data_dir: Path, node: NodeId) -> tuple[str, ...]:
    """Return sorted descriptions of the processes, mounts, loop devices, cgroups, user id ranges and folders of a node's sandboxes.

    Args:
        data_dir: State directory.
        node: Node id of the state directory.
    """
    path, name = os.fsencode(data_dir), re.compile(rf"(?<![a-z2-7]){node}-[a-z2-7]{{16}}".encode())
    groups = _groups(node)
    in_groups = {int(pid) for group in groups for pid in _read(f"{group}/cgroup.procs").split()}
    found = {f"cgroup {group}" for group in groups}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):  # noqa: PTH208 - names, not paths
        if pid == os.getpid():
            continue
        command = _read(f"/proc/{pid}/cmdline")
        mounts = [line for line in _read(f"/proc/{pid}/mountinfo").splitlines() if path in line]
        if pid in in_groups or name.search(command) or mounts:
            found.add(f"process {pid} {os.fsdecode(command.replace(bytes(1), b' '))}")
        found.update(f"mount {os.fsdecode(line)}" for line in mounts)
    found.update(f"mount {os.fsdecode(line)}" for line in _read("/proc/self/mountinfo").splitlines() if path in line)
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        if path in (backing := _read(str(file))):
            found.add(f"loop {file.parts[3]} {os.fsdecode(backing.strip())}")
    for link in Path("/run/sandlot/ids").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # released since the folder was listed
            if f"/{node}/" in (owner := os.readlink(link)):  # noqa: PTH115 - not a path to follow
                found.add(f"ids {link.name} {owner}")
    found.update(f"folder {file}" for file in (data_dir / "sandboxes").glob("*"))
    return tuple(sorted(found))


def cpu_ticks(node: NodeId) -> int:
    """Return the processor time of all live processes of a node's sandboxes, in clock ticks (proc(5), stat)."""
    pids = {int(pid) for group in _groups(node) for pid in _read(f"{group}/cgroup.procs").split()}
    fields = [_read(f"/proc/{pid}/stat").rpartition(b")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields if each)


def open_descriptors() -> Counter[str]:
    """Count the open descriptors of this process: link target in ``/proc/self/fd``, with every number replaced by ``N`` -> count."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        try:
            kinds[_NUMBER.sub("N", os.readlink(f"/proc/self/fd/{number}"))] += 1  # noqa: PTH115 - targets that are no paths
        except FileNotFoundError:
            continue
    return kinds


def wait_until_empty(find: Callable[[], FoundT]) -> FoundT:
    """Call ``find`` until its result is empty or ``MAX_WAIT_S`` seconds have passed, and return the last result.

    The wait blocks the event loop. Call this function only if the result becomes empty without further work of this process.
    """
    ends = time.monotonic() + MAX_WAIT_S
    while (found := find()) and time.monotonic() < ends:
        time.sleep(0.05)
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # the process has ended
        return b""


def _groups(node: NodeId) -> list[str]:
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/{node}/" in f"{folder}/"]
