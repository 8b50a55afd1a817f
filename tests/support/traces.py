"""What sandboxes leave on a host, counted from outside of Sandlot: by looking at the kernel, not by asking the service.

Everything that is counted carries the state directory's path or its node's id, so that other services on the machine do not
matter. A test takes :func:`traces` before and after, and waits with :func:`settle`, because removal goes on off the request path.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandlot.store.engine import READERS

CGROUPS = Path("/sys/fs/cgroup")
ID_RANGES = Path("/run/sandlot/ids")
"""A link for each range of user ids that some sandbox on this host has; it leads to the name of that sandbox's control group."""
PATIENCE_S = 120.0
"""Until something that has to vanish counts as left: only a hang is waited out."""
_NUMBER = re.compile(r"\d+")
_POOLED = re.compile(r"/sandlot\.db(-wal|-shm)?$")
_HELD = re.compile(r"/snapshots/[0-9a-f]+/made\.json$")

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Traces:
    """All that sandboxes of one state directory have on this host, as sorted texts that a person can read.

    Args:
        processes: Those in a control group of the node, those that name the directory or a sandbox, those in a mount namespace that shows it.
        mounts: Mount points of any namespace that show something of the directory.
        loops: Loop devices whose file lies in the directory.
        cgroups: Control groups of the node.
        folders: What lies in the directory's folder of sandboxes.
        ids: Ranges of user ids that belong to a control group of the node.
    """

    processes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


NOTHING = Traces()


def traces(data_dir: Path, *, besides: frozenset[int] = frozenset(), keep: frozenset[str] = frozenset()) -> Traces:
    """Look at the host.

    Args:
        data_dir: The state directory.
        besides: Processes that are no sandbox's: the service and the test itself.
        keep: Refs of sandboxes that live on: what is theirs is left out.
    """
    node = node_of(data_dir)
    groups = tuple(_groups(node)) if node else ()
    needles = [os.fsencode(data_dir), *([f"/sandlot/{node}/".encode()] if node else [])]
    # A whole ref: an option such as `--host-uds` contains the id of the node `host`.
    sandbox_ref = re.compile(rf"\b{node}-[a-z2-7]{{16}}\b".encode()) if node else None
    processes: list[str] = []
    mounts: set[str] = set()
    for pid in _processes():
        if pid in besides or pid == os.getpid():
            continue
        command, group = _read(f"/proc/{pid}/cmdline")[:1000].replace(bytes(1), b" "), _read(f"/proc/{pid}/cgroup")
        # Where the host's mounts are private (as they are without systemd), a sandbox of another service, begun meanwhile, keeps what was one then.
        elsewhere = bool(node) and b"/sandlot/" in group and f"/sandlot/{node}/".encode() not in group
        shown = [line for line in _read(f"/proc/{pid}/mountinfo").splitlines() if needles[0] in line and not elsewhere]
        lives_on = any(ref.encode() in group or ref.encode() in command for ref in keep)
        # The build of the runtime that it runs on is shown to each sandbox, under a name that is no sandbox's.
        mounts.update(os.fsdecode(line) for line in shown if not (lives_on and needles[0] + b"/runtimes/" in line))
        if shown or any(needle in command or needle in group for needle in needles) or (sandbox_ref is not None and sandbox_ref.search(command)):
            place = next((line for line in group.splitlines() if b"sandlot" in line), b"")
            processes.append(f"{pid} {os.fsdecode(place)} {os.fsdecode(command)}")
    mounts.update(os.fsdecode(line) for line in _read("/proc/self/mountinfo").splitlines() if needles[0] in line)

    def strange(lines: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(line for line in lines if not any(ref in line for ref in keep)))

    return Traces(
        processes=strange(processes),
        mounts=strange(mounts),
        loops=strange(_loops(needles[0])),
        cgroups=strange(group for group in groups if not (keep and group.endswith(f"/{node}"))),
        folders=strange(path.name for path in (data_dir / "sandboxes").glob("*")),
        ids=strange(_id_ranges(node)) if node else (),
    )


def node_of(data_dir: Path) -> str:
    """The id of a state directory's node; empty before its first service."""
    file = data_dir / "node"
    return file.read_text(encoding="ascii").strip() if file.exists() else ""


def sandbox_pids(data_dir: Path) -> list[int]:
    """The host's processes that are in a control group of the node."""
    return sorted({pid for group in _groups(node_of(data_dir)) for pid in _pids(Path(group))})


def memory_bytes(pid: int) -> int:
    """What a process has in memory (proc(5), VmRSS)."""
    return int(Path(f"/proc/{pid}/status").read_text(encoding="ascii").split("VmRSS:")[1].split()[0]) * 1024


def descriptors(pid: int) -> Counter[str]:
    """What a process holds open: the kind of each descriptor, numbers left out.

    The store's connections count only beyond those that its pool opens when they are first needed, and keeps. The snapshot of each template is held
    by one from when it is first needed, so that nobody removes it.
    """
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened = str(entry.readlink())
        except FileNotFoundError:
            continue
        if not _HELD.search(opened):
            found[_NUMBER.sub("N", opened)] += 1
    return Counter({name: max(0, count - (READERS + 1 if _POOLED.search(name) else 0)) for name, count in found.items()})


def settle(look: Callable[[], ValueT], expected: ValueT) -> None:
    """Wait until what is looked at is as expected; otherwise fail with what it is.

    Args:
        look: Looks.
        expected: What it is to come to.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == expected, f"it is {found}, and was to be {expected}"


def _processes() -> Iterator[int]:
    yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _read(path: str) -> bytes:
    """A file of /proc; nothing where its process has just ended."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _groups(node: str) -> Iterator[str]:
    """The node's own group and those below it, in every hierarchy (version 1) or in the one there is (version 2)."""
    for mount in (CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())):
        top = mount / "sandlot" / node
        if top.is_dir():
            yield from (str(folder) for folder, _, _ in os.walk(top))


def _pids(group: Path) -> list[int]:
    try:
        return [int(word) for word in (group / "cgroup.procs").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _id_ranges(node: str) -> Iterator[str]:
    for link in ID_RANGES.glob("[0-9]*"):
        try:
            owner = str(link.readlink())
        except OSError:  # it has just been given back
            continue
        if owner.startswith(f"/sandlot/{node}/"):
            yield f"{link.name} {owner}"


def _loops(needle: bytes) -> Iterator[str]:
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        backing = _read(str(file)).strip()
        if needle in backing:
            yield f"{file.parts[3]} {os.fsdecode(backing)}"
