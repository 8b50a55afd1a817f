"""What sandboxes of one node have on this host, by looking at the kernel: nothing that a driver says of itself is believed.

Whatever is counted carries the state directory's path or the node's id, so that others on the machine do not matter.
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

SETTLE_S = 30.0
"""Until something that has to vanish counts as left; only a defect is waited out."""
_NUMBER = re.compile(r"\d+")

FoundT = TypeVar("FoundT", bound=Sized)


def traces(data_dir: Path, node: NodeId) -> tuple[str, ...]:
    """Processes, mounts, loop devices, control groups, ranges of ids and folders, as sorted texts for a person; empty when nothing is left.

    Args:
        data_dir: The state directory.
        node: Its node.
    """
    path, name = os.fsencode(data_dir), re.compile(rf"(?<![a-z2-7]){node}-[a-z2-7]{{16}}".encode())
    groups = _groups(node)
    in_groups = {int(pid) for group in groups for pid in _read(f"{group}/cgroup.procs").split()}
    found = {f"group {group}" for group in groups}
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
        with contextlib.suppress(OSError):  # it has just been given back
            if f"/{node}/" in (owner := os.readlink(link)):  # noqa: PTH115 - not a path to follow
                found.add(f"ids {link.name} {owner}")
    found.update(f"folder {file}" for file in (data_dir / "sandboxes").glob("*"))
    return tuple(sorted(found))


def spent_ticks(node: NodeId) -> int:
    """The processor time of all processes of a node's sandboxes that live, in clock ticks (proc(5), stat)."""
    pids = {int(pid) for group in _groups(node) for pid in _read(f"{group}/cgroup.procs").split()}
    fields = [_read(f"/proc/{pid}/stat").rpartition(b")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields if each)


def descriptors() -> Counter[str]:
    """What this process holds open: the kind of each descriptor, numbers left out."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        try:
            kinds[_NUMBER.sub("N", os.readlink(f"/proc/self/fd/{number}"))] += 1  # noqa: PTH115 - targets that are no paths
        except FileNotFoundError:
            continue
    return kinds


def settled(look: Callable[[], FoundT]) -> FoundT:
    """Look until there is nothing, or patience ends; what there was last. Blocks: of use when nothing has to happen here."""
    ends = time.monotonic() + SETTLE_S
    while (found := look()) and time.monotonic() < ends:
        time.sleep(0.05)
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has just ended
        return b""


def _groups(node: NodeId) -> list[str]:
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f"/{node}/" in f"{folder}/"]
