"""crun, the runtime of containers: finding the program, and its command lines.

crun is used instead of runc, because crun can leave control groups alone (``--cgroup-manager=disabled``). The stage, which is the process that
starts crun, is in the sandbox's control group already. So crun moves no process, and the host's layout of control groups does not matter. If crun
1.8 manages control groups itself, it refuses hosts that use both cgroup versions. runc creates control groups whose names could not be found after
a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sandlot.drivers.oci.container.config import oci_config
from sandlot.drivers.oci.container.plan import group_limits, stage_plan
from sandlot.drivers.oci.paths import VIEW_DISK, VIEW_FOLDER
from sandlot.drivers.oci.runtime import Engine, LastSnapshot, Program, RuntimePlanInputs
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import GroupMemory
from sandlot.host.id_ranges import IDS
from sandlot.host.launcher import Operation, Started
from sandlot.host.network_card import find_card_problem
from sandlot.host.programs import content_sha256, find_programs, find_source
from sandlot.model.errors import HostError, InternalError, UnsupportedError
from sandlot.model.ports import Attachment, DriverCapability, HeadroomRange, ProbeResult
from sandlot.model.specs import Limits, SandboxSpec, Shape

MIN_RELEASE = (1, 8)
"""The oldest supported release, which is in Debian 12."""
INSTALL_HINT = "apt-get install crun. In a checkout, scripts/setup does it."
_VERSION = re.compile(r"crun version (\d+)\.(\d+)")

_UNSUPPORTED: Mapping[DriverCapability, str] = MappingProxyType(
    {
        DriverCapability.SNAPSHOT: (
            "the memory of a container belongs to the host's kernel. Saving it takes CRIU, which Sandlot does not use because it ties a snapshot to "
            "one kernel; use isolation gvisor for snapshots"
        ),
        DriverCapability.BOOT_IMAGE: "the host's kernel would have to mount the image, which could attack the kernel",
        DriverCapability.CONFIGURE_VOLUMES: "the mounts of a container are fixed when it starts",
        DriverCapability.SHOW_LIMITS: "a container sees the host's memory and processors in /proc; its limits apply nevertheless",
    }
)


def find_crun(search_path: str | None = None) -> Program:
    """Return the newest crun on PATH. Takes some milliseconds.

    Args:
        search_path: Folders, separated by colons. None: PATH of this process.

    Raises:
        HostError: No crun is installed, or all installed versions are too old.
    """
    found = [((int(match[1]), int(match[2])), line, file) for file, line in find_programs("crun", search_path) if (match := _VERSION.match(line))]
    if not found:
        raise HostError("The container runtime, crun, is not installed.", hint=INSTALL_HINT)
    # max() returns the first of equal candidates, which is the first on PATH.
    number, line, file = max(found, key=lambda candidate: candidate[0])
    version = line.removeprefix("crun version ")
    if number < MIN_RELEASE:
        raise HostError(f"{file} is version {version}; at least {MIN_RELEASE[0]}.{MIN_RELEASE[1]} is needed.", hint=INSTALL_HINT)
    return Program("crun", file, content_sha256(file), version, find_source(file))


@dataclass(frozen=True, slots=True)
class Crun:
    """The runtime crun.

    Args:
        locate: Function that returns the newest crun on this host, or raises HostError.
    """

    locate: Callable[[], Program] = find_crun
    own_ids: bool = True
    hub: str | None = None
    """None, because crun itself mounts the volumes at their paths."""
    bytes_per_inode: int | None = 16 * 1024
    """The default of mke2fs, because every file that is written inside the sandbox is a file on this disk."""
    oom_statuses: frozenset[int] = frozenset((-signal.SIGKILL,))
    """Status of a guest that was killed by SIGKILL. crun itself ended when the guest was running."""

    @property
    def unsupported(self) -> Mapping[DriverCapability, str]:
        """Capabilities that the runtime lacks on every host, each with the reason."""
        return _UNSUPPORTED

    def find(self) -> Program:
        """Return the newest crun.

        Raises:
            HostError: No crun is installed, or all installed versions are too old.
        """
        return self.locate()

    def probe_card(self, program: Program) -> ProbeResult:  # noqa: ARG002 - part of the interface
        """Return whether this host can create the network card."""
        problem = find_card_problem()
        return ProbeResult(ok=not problem, reason=problem)

    def boots_with_engine(self, program: Program) -> bool:  # noqa: ARG002 - part of the interface
        """Return False: one command of crun boots a sandbox."""
        return False

    def group_limits(self, limits: Limits) -> GroupLimits:
        """Return the limits of the control group that enforce a sandbox's limits."""
        return group_limits(limits)

    def snapshot_headroom(
        self,
        memory: GroupMemory,  # noqa: ARG002 - part of the interface
        limit_bytes: int,  # noqa: ARG002
        last: LastSnapshot | None,  # noqa: ARG002
    ) -> HeadroomRange:
        """Return an empty range, because crun does not support snapshots."""
        return HeadroomRange()

    def uncollected_bytes(self, memory: GroupMemory) -> int:  # noqa: ARG002 - part of the interface
        """Return 0, because crun keeps no memory of a snapshot."""
        return 0

    def restore_headroom(self, state_bytes: int, memory_bytes: int, limit_bytes: int) -> HeadroomRange:  # noqa: ARG002 - part of the interface
        """Return an empty range, because crun does not support snapshots."""
        return HeadroomRange()

    def plan(self, inputs: RuntimePlanInputs) -> tuple[Operation, ...]:
        """Return the operations that the stage process carries out before it starts crun."""
        return stage_plan(inputs)

    def config(
        self,
        program: Program,  # noqa: ARG002 - part of the interface
        shape: Shape,
        spec: SandboxSpec | None,
        first_id: int | None,
        volumes: Sequence[Attachment] = (),
        *,
        has_card: bool,
    ) -> dict[str, Any]:
        """Return the ``config.json`` of the sandbox's OCI bundle, not yet encoded."""
        if first_id is None or spec is None:
            raise InternalError("The container was prepared without a range of user ids, or is started without a spec.")
        return oci_config(shape, spec, first_id, IDS, volumes, has_card=has_card)

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:  # noqa: ARG002 - the disk is a file system
        """Return the command that starts a sandbox. The command ends as soon as the sandbox is running."""
        return (
            str(program.path),
            f"--root={VIEW_FOLDER}/runtime",
            f"--log={VIEW_FOLDER}/runtime.log",
            "--log-format=json",
            "--cgroup-manager=disabled",
            "run",
            "--detach",
            f"--bundle={VIEW_FOLDER}/bundle",
            f"--pid-file={VIEW_FOLDER}/pid",
            ref,
        )

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:  # noqa: ARG002 - part of the interface
        """Raise UnsupportedError, because only a runtime that supports snapshots creates a sandbox before it starts the guest."""
        raise _no_snapshots_error()

    def engine(self, program: Program) -> Engine:  # noqa: ARG002 - part of the interface
        """Raise UnsupportedError, because crun does not support snapshots."""
        raise _no_snapshots_error()

    def after_start(self, started: Started) -> None:
        """Do nothing: crun itself completes the start."""

    def disk_bytes(self, started: Started) -> int:
        """Return the number of bytes used in the file system of the sandbox's disk, including data that is not written to the disk yet.

        The number is read through the keeper, a process outside of the sandbox: no process inside can change the mounts that the keeper sees.
        """
        with contextlib.suppress(OSError):
            stat = os.statvfs(f"/proc/{started.keeper.pid}/root{VIEW_DISK}")
            return (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return 0


def _no_snapshots_error() -> UnsupportedError:
    return UnsupportedError(_UNSUPPORTED[DriverCapability.SNAPSHOT])
