"""A driver without isolation: the real guest on the real root file system, in namespaces of this machine's own kernel.

For tests of what lies above the seam: it starts in a tenth of the time that gVisor takes, and it can be told to fail. Nothing
that it runs is contained, so tests run only their own code in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sandlot.host.link_pipes import PipeStream, make_pipes
from sandlot.link.payload import GUEST_ARGV
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import (
    Attachment,
    ByteStream,
    Capabilities,
    Change,
    DriverCapability,
    Exit,
    ExitReason,
    HeadroomRange,
    ProbeResult,
    Resources,
    RuntimeInfo,
    Usage,
    VolumeView,
)
from sandlot.model.specs import Limits, SandboxSpec, Shape

_ABILITIES = (
    *(DriverCapability.BOOT, DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS, DriverCapability.LIMIT_DISK),
    *(
        DriverCapability.CONFIGURE_MEMORY,
        DriverCapability.CONFIGURE_CPU,
        DriverCapability.CONFIGURE_PIDS,
        DriverCapability.PAUSE,
        DriverCapability.VOLUMES,
    ),
)

# An overlay on a tmpfs in a mount namespace of its own: all of it is gone with its last process.
_INSIDE = """
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/root"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
mount -t tmpfs tmpfs "$2/root/dev/shm"
while IFS="$(printf '\\t')" read -r source path access; do
  mkdir -p "$2/root$path"
  mount --bind "$source" "$2/root$path"
  mount -o "remount,bind,$access,nosuid,nodev" "$2/root$path"
done < "$3"
root=$2/root
shift 3
exec chroot "$root" "$@"
"""


_STILL = frozenset("TtZX")
"""States of what runs no more, for now or for ever (proc(5))."""


class Thread(NamedTuple):
    """One inside, as this machine's kernel sees it (proc(5), stat)."""

    tid: int
    state: str
    ticks: int
    """Processor time."""


@dataclass
class Faults:
    """What goes wrong, for tests of what core makes of it: step -> the exception that it raises; consumed by use."""

    raises: dict[str, list[Exception]] = field(default_factory=dict)
    holds: dict[str, asyncio.Event] = field(default_factory=dict)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)
    why_not: str = ""

    def hold(self, step: str) -> asyncio.Event:
        """Let that step wait for the event that is returned; :meth:`reach` tells when it does."""
        self.holds[step] = asyncio.Event()
        self.reached[step] = asyncio.Event()
        return self.holds[step]

    async def reach(self, step: str) -> None:
        await self.reached[step].wait()

    async def at(self, step: str) -> None:
        if step in self.holds:
            self.reached[step].set()
            await self.holds[step].wait()
        waiting = self.raises.get(step)
        if waiting:
            raise waiting.pop(0)


class BareInstance:
    """One guest that runs."""

    hub = None
    has_sparse_disk = False

    def __init__(self, ref: str, limits: Limits, folder: Path, process: asyncio.subprocess.Process, faults: Faults) -> None:
        self.ref = ref
        self.limits = limits
        self.folder = folder
        self.process = process
        self.changes: list[Change] = []
        self._faults = faults
        self._stream: PipeStream | None = None
        self._ends = asyncio.ensure_future(process.wait())

    def crash(self) -> None:
        """End PID 1, and with it everything in its namespace.

        The parent's death would not do: PR_SET_PDEATHSIG is forgotten where a process changes its ids (prctl(2)), and the
        guest does that whenever it starts something.
        """
        if self.process.returncode is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()
            for pid in children:
                os.kill(int(pid), signal.SIGKILL)
            if not children:
                self.process.kill()

    async def connect(self) -> ByteStream:
        await self._faults.at("connect")
        return PipeStream.open(self.folder)

    async def configure(self, change: Change) -> None:
        """Nothing limits it; what it was told is kept for the test."""
        await self._faults.at("configure")
        self.changes.append(change)
        self.limits = change.over(self.limits)

    async def pause(self) -> None:
        """Stop every process of it: no freezer, but nothing inside can undo it before it is resumed."""
        await self._faults.at("pause")
        self._signal(signal.SIGSTOP)
        while any(thread.state not in _STILL for pid in self._inside() for thread in _threads(pid)):  # forked meanwhile, or not stopped yet
            await asyncio.sleep(0.001)
            self._signal(signal.SIGSTOP)

    async def resume(self) -> None:
        await self._faults.at("resume")
        self._signal(signal.SIGCONT)

    def _inside(self) -> list[int]:
        return _members({_pid_space(self.process.pid, "pid_for_children")} - {""})

    def _signal(self, number: signal.Signals) -> None:
        if self.process.returncode is not None:
            raise SandboxEndedError("It has ended.", code=ErrorCode.SANDBOX_ENDED)
        for pid in self._inside():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    headroom_bytes = 0

    async def snapshot_headroom(self) -> HeadroomRange:
        return HeadroomRange()

    async def wait_headroom_withdrawn(self) -> None:
        """Return at once: there is none."""

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True, headroom_bytes: int) -> int:
        raise UnsupportedError(f"no snapshot into {into}, {keep_running}, {durable}, {headroom_bytes}", code=ErrorCode.UNSUPPORTED)

    async def usage(self) -> Usage:
        return Usage(cpu_s=0.5, memory_bytes=1, memory_peak_bytes=2, pids=3, disk_bytes=4)

    async def wait(self) -> Exit:
        status = await asyncio.shield(self._ends)
        return Exit(ExitReason.EXITED if status == 0 else ExitReason.KILLED, f"status {status}")

    async def destroy(self) -> None:
        await self._faults.at("destroy")
        self.crash()
        await asyncio.shield(self._ends)
        await self._faults.at("clean")
        shutil.rmtree(self.folder, ignore_errors=True)


class BareBlank:
    """Prepared, nothing running."""

    def __init__(self, shape: Shape, folder: Path, faults: Faults, made: list[BareInstance]) -> None:
        self._shape = shape
        self._folder = folder
        self._faults = faults
        self._made = made
        self._volumes: tuple[Attachment, ...] = ()

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        await self._faults.at("attach")
        self._volumes = tuple(volumes)

    async def boot(self, spec: SandboxSpec) -> BareInstance:
        await self._faults.at("boot")
        lines = [f"{each.tree}\t{each.path}\t{'ro' if each.read_only else 'rw'}\n" for each in self._volumes]
        (self._folder / "volumes").write_text("".join(lines), encoding="utf-8")
        read = os.open(self._folder / "in", os.O_RDWR | os.O_CLOEXEC)
        write = os.open(self._folder / "out", os.O_RDWR | os.O_CLOEXEC)
        log = os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            process = await asyncio.create_subprocess_exec(
                "unshare",
                "--mount",
                "--pid",
                "--uts",
                "--ipc",
                "--net",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                _INSIDE,
                "sh",
                str(self._shape.root.tree),
                str(self._folder / "mnt"),
                str(self._folder / "volumes"),
                *GUEST_ARGV,
                stdin=read,
                stdout=write,
                stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        finally:
            for fd in (read, write, log):
                os.close(fd)
        # Between exec and the guest's own open of the pipes there is always this process, so nobody sees an end of file.
        instance = BareInstance(spec.id, spec.limits, self._folder, process, self._faults)
        self._made.append(instance)
        return instance

    async def warm(self) -> None:
        raise UnsupportedError("no snapshot", code=ErrorCode.UNSUPPORTED)

    async def restore(self, snapshot: Path, spec: SandboxSpec, *, headroom_bytes: int) -> BareInstance:
        raise UnsupportedError(f"no {snapshot} {spec} {headroom_bytes}", code=ErrorCode.UNSUPPORTED)

    async def destroy(self) -> None:
        await self._faults.at("destroy")
        shutil.rmtree(self._folder, ignore_errors=True)


class BareDriver:
    """It.

    Args:
        folder: Where its sandboxes' files go; count what is left there.
    """

    name = "gvisor"
    volume_view = VolumeView.TREE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults = Faults()
        self.booted: list[BareInstance] = []
        self.kept_in_sweeps: list[frozenset[str]] = []

    def probe(self) -> Capabilities:
        verdict = ProbeResult(ok=not self.faults.why_not, reason=self.faults.why_not)
        return Capabilities("gvisor", RuntimeInfo("none", "0"), dict.fromkeys(_ABILITIES, verdict))

    def fingerprint(self) -> str:
        return "bare"

    def max_resources(self, limits: Limits) -> Resources:
        return Resources(memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)

    def restorable(self, snapshot: Path) -> ProbeResult:
        return ProbeResult(ok=False, reason=f"no snapshot {snapshot}")

    async def restore_headroom(self, snapshot: Path, limits: Limits) -> HeadroomRange:
        del snapshot, limits
        return HeadroomRange()

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> BareBlank:
        del snapshot
        await self.faults.at("prepare")
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "mnt").mkdir()
        make_pipes(folder)
        return BareBlank(shape, folder, self.faults, self.booted)

    async def adopt(self, ref: str) -> BareInstance:
        """One that the service before left; this driver outlives the services of a test."""
        await self.faults.at("adopt")
        for instance in self.booted:
            if instance.ref == ref and instance.process.returncode is None:
                return instance
        raise NotFoundError(f"no {ref}", code=ErrorCode.SANDBOX_NOT_FOUND)

    async def sweep(self, keep: Collection[str]) -> int:
        self.kept_in_sweeps.append(frozenset(keep))
        await self.faults.at("sweep")
        return 0

    def leftovers(self) -> list[str]:
        """What is left of sandboxes that were destroyed: folders and processes."""
        alive = [f"process {pid}" for pid in _holders(self.folder)]
        return [*alive, *(str(path) for path in self.folder.iterdir())]

    def restart(self) -> None:
        """Do nothing: what an earlier service left is found by its ref."""


def _members(spaces: Collection[str]) -> list[int]:
    """Processes of some pid namespaces."""
    pids = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdecimal()]
    return [pid for pid in pids if _pid_space(pid) in spaces]


def _holders(folder: Path) -> list[int]:
    """Processes that hold a file below a folder open: guests, whose log and pipes lie there."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(str(fd.readlink()).startswith(f"{folder}/") for fd in (process / "fd").iterdir()):
                    found.append(int(process.name))
    return found


def _pid_space(pid: int, name: str = "pid") -> str:
    """The namespace of a process's pid (pid_namespaces(7)), or of its children's; empty where there is none any more."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")  # noqa: PTH115 - not a path to follow
    except OSError:
        return ""


def _threads(pid: int) -> list[Thread]:
    found = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            found.append(Thread(int(task.name), fields[0], int(fields[11]) + int(fields[12])))
    return found
