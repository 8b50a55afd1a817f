"""runsc, the runtime of gVisor: finding the program and its features, and its command lines.

Invariants:
- The newest runsc on PATH is used. A release older than :data:`MIN_RELEASE` is refused, because it lacks required features.
- The features of each build of runsc are detected once: the program is run with a flag that needs the feature, or its release date is compared.
- No flag weakens the isolation: no host network, no host sockets, no direct access to host files, no overriding of flags by a bundle.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sandlot.drivers.oci.gvisor import headroom
from sandlot.drivers.oci.gvisor.config import HUB, oci_config
from sandlot.drivers.oci.gvisor.plan import KERNEL_OOM_SCORE, group_limits, stage_plan
from sandlot.drivers.oci.paths import VIEW_DISK, VIEW_FOLDER, VIEW_PROGRAM
from sandlot.drivers.oci.runtime import Engine, LastSnapshot, Program, RuntimePlanInputs
from sandlot.drivers.oci.snapshots.command_line import CliEngine
from sandlot.drivers.oci.snapshots.control_socket import ControlEngine
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import GroupMemory
from sandlot.host.launcher import Operation, Started
from sandlot.host.network_card import find_card_problem
from sandlot.host.programs import content_sha256, date_of_version, find_programs, find_source, run_program
from sandlot.model.errors import HostError
from sandlot.model.ports import Attachment, DriverCapability, HeadroomRange, ProbeResult
from sandlot.model.specs import Limits, SandboxSpec, Shape

MIN_RELEASE = 20240729
"""Date of the oldest supported release, which is in the backports of Debian 12."""
INSTALL_HINT = (
    "Install gVisor: on Debian 12 `apt-get install -t bookworm-backports runsc`, or an official release from "
    "https://gvisor.dev/docs/user_guide/install/. In a checkout, scripts/setup does it."
)

CONTROL_RELEASES = frozenset((20240729,))
"""Releases whose control socket was tested. Its protocol is internal to runsc and may change with every release."""
NETNS = "/proc/self/ns/net"
"""Network namespace of the stage, in which runsc is started."""
_COPY_FLAGS = ("--network=sandbox", "--reproduce-nat")
"""Flags with which runsc copies the devices of loopback type and the NAT table of its network namespace when it starts or restores a sandbox."""
COPIED_NOTE = (
    "runsc copies the network from a namespace of the host, because the control socket of this release was not tested; "
    "programs that ask for their own address by connecting a UDP socket get the address of the destination"
)
CARD_HINT = "Install a release whose control socket was tested: 20240729, which is in the backports of Debian 12."

_UNSUPPORTED: Mapping[DriverCapability, str] = MappingProxyType({})


def release_date(version: str) -> int:
    """Return the date in a version as a number such as 20240729, or 0 if there is none."""
    return int(date_of_version(version).replace("-", "") or 0)


def find_runsc(search_path: str | None = None, *, control_releases: Collection[int] = CONTROL_RELEASES) -> Program:
    """Return the newest runsc on PATH and its features. Takes some tens of milliseconds.

    Args:
        search_path: Folders, separated by colons. None: PATH of this process.
        control_releases: Releases whose control socket is used.

    Raises:
        HostError: No runsc is installed, or all installed versions are too old.
    """
    versions = [
        (release_date(version), version, file)
        for file, line in find_programs("runsc", search_path)
        if (version := line.removeprefix("runsc version ").strip())
    ]
    if not versions:
        raise HostError("gVisor's runtime, runsc, is not installed.", hint=INSTALL_HINT)
    # max() returns the first of equal candidates, which is the first on PATH.
    date, version, file = max(versions, key=lambda candidate: candidate[0])
    if date < MIN_RELEASE:
        raise HostError(f"{file} is version {version}; at least {MIN_RELEASE} is needed.", hint=INSTALL_HINT)
    # "memory" instead of "dir=": an old release would take everything after "dir=" for a path, and would not refuse it.
    limits_disk = _accepts(file, "--overlay2=root:memory,size=16777216")
    has_control = date in control_releases
    return Program(
        "runsc",
        file,
        content_sha256(file),
        version,
        find_source(file),
        limits_disk=limits_disk,
        has_control=has_control,
        copies_network=not has_control and _accepts(file, *_COPY_FLAGS),
    )


def _accepts(file: Path, *arguments: str) -> bool:
    return run_program(file, *arguments, "--version").returncode == 0


@dataclass(frozen=True, slots=True)
class Runsc:
    """The runtime runsc.

    Args:
        locate: Function that returns the newest runsc on this host, or raises HostError.
    """

    locate: Callable[[], Program] = find_runsc
    own_ids: bool = False
    hub: str | None = HUB
    bytes_per_inode: int | None = None
    """None, because gVisor writes everything to one file."""
    oom_statuses: frozenset[int] = frozenset((1, 128 + signal.SIGKILL, -signal.SIGKILL))
    """Exit codes of gVisor after the kernel killed it or one of its processes."""

    @property
    def unsupported(self) -> Mapping[DriverCapability, str]:
        """Capabilities that the runtime lacks on every host: none."""
        return _UNSUPPORTED

    def find(self) -> Program:
        """Return the newest runsc.

        Raises:
            HostError: No runsc is installed, or all installed versions are too old.
        """
        return self.locate()

    def probe_card(self, program: Program) -> ProbeResult:
        """Return whether sandboxes get a network card.

        The control socket creates the card without help of the host. With other releases, the host creates a namespace that runsc copies.
        """
        if program.has_control:
            return ProbeResult(ok=True)
        if not program.copies_network:
            return ProbeResult(ok=False, reason=f"runsc {program.version} cannot give sandboxes a network card. {CARD_HINT}")
        problem = find_card_problem(is_copied=True)
        return ProbeResult(ok=not problem, reason=problem or COPIED_NOTE)

    def boots_with_engine(self, program: Program) -> bool:
        """Return True if the control socket creates the network card: ``runsc run`` would start the guest without the card."""
        return program.has_control

    def group_limits(self, limits: Limits) -> GroupLimits:
        """Return the limits of the control group that enforce a sandbox's limits."""
        return group_limits(limits)

    def snapshot_headroom(self, memory: GroupMemory, limit_bytes: int, last: LastSnapshot | None) -> HeadroomRange:
        """Return the headroom for a snapshot of a running sandbox (``headroom.py``)."""
        return headroom.for_snapshot(memory, limit_bytes, last)

    def uncollected_bytes(self, memory: GroupMemory) -> int:
        """Return the memory that a sandbox may need until gVisor has collected the garbage of a snapshot or restore (``headroom.py``)."""
        return headroom.until_collected(memory)

    def restore_headroom(self, state_bytes: int, memory_bytes: int, limit_bytes: int) -> HeadroomRange:
        """Return the headroom for a restore (``headroom.py``)."""
        return headroom.for_restore(state_bytes, memory_bytes, limit_bytes)

    def plan(self, inputs: RuntimePlanInputs) -> tuple[Operation, ...]:
        """Return the operations that the stage process carries out before it starts runsc."""
        return stage_plan(inputs)

    def config(
        self,
        program: Program,
        shape: Shape,
        spec: SandboxSpec | None,  # noqa: ARG002 - part of the interface
        first_id: int | None,  # noqa: ARG002
        volumes: Sequence[Attachment] = (),  # noqa: ARG002 - volumes are in the hub
        *,
        has_card: bool,
    ) -> dict[str, Any]:
        """Return the ``config.json`` of the sandbox's OCI bundle, not yet encoded."""
        has_hub = shape.root.tree is None or (shape.root.tree / HUB.strip("/")).is_dir()
        netns = NETNS if program.copies_network else ""
        return oci_config(shape, group_limits(shape.limits), has_hub=has_hub, has_card=has_card, netns=netns)

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """Return the command that starts a sandbox. The command ends as soon as the sandbox is running."""
        return (*flags(program, disk_bytes), "run", "-detach", *_BUNDLE, ref)

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """Return the command that starts the runtime's own processes without a guest."""
        return (*flags(program, disk_bytes), "create", *_BUNDLE, ref)

    def engine(self, program: Program) -> Engine:
        """Return the engine that uses the control socket if Sandlot was tested with this release of runsc, otherwise the one for the command line."""
        return ControlEngine() if program.has_control else CliEngine(flags)

    def after_start(self, started: Started) -> None:
        """Give gVisor's kernel the highest out-of-memory score, so that the host kills it first (``plan.py``). runsc's command line does the same."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the sandbox has ended, which OciInstance detects
            Path(f"/proc/{started.sandbox.pid}/oom_score_adj").write_text(str(KERNEL_OOM_SCORE), encoding="ascii")

    def disk_bytes(self, started: Started) -> int:
        """Return the size of the one file in which gVisor stores the sandbox's disk. The file is deleted, but the runtime keeps it open."""
        folder = Path(f"/proc/{started.sandbox.pid}/fd")
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if "/runsc-filestore-" in os.readlink(entry.path):  # noqa: PTH115 - a link that points nowhere
                        return os.stat(entry.path).st_blocks * 512  # noqa: PTH116 - the file itself, through the link
        return 0


_BUNDLE = (f"-bundle={VIEW_FOLDER}/bundle", f"-pid-file={VIEW_FOLDER}/pid")


def flags(program: Program, disk_bytes: int) -> tuple[str, ...]:
    """Return the path of the program in the stage's mount namespace, followed by runsc's global flags.

    Args:
        program: Program to run.
        disk_bytes: Limit of the sandbox's disk. Has an effect only if the program limits the disk itself.
    """
    size = f",size={disk_bytes}" if program.limits_disk else ""
    return (
        f"{VIEW_PROGRAM}/{program.path.name}",
        f"--root={VIEW_FOLDER}/runtime",
        f"--log={VIEW_FOLDER}/runtime.log",
        "--log-format=json",
        f"--panic-log={VIEW_FOLDER}/panic.log",
        "--platform=systrap",
        *(_COPY_FLAGS if program.copies_network else ("--network=none",)),
        # The process that executes the tenant's system calls has uid 65534 and no direct access to host files.
        "--directfs=false",
        "--host-uds=none",
        "--host-fifo=none",
        f"--overlay2=root:dir={VIEW_DISK}{size}",
        # The number of processors that the sandbox sees is derived from its limit of processor time, and is at least 2.
        "--cpu-num-from-quota",
    )
