"""The container runtime: crun found, and how it is called.

crun rather than runc, because it can be told to leave control groups alone (``--cgroup-manager=disabled``): the stage is in
the sandbox's group already, so nothing is moved, and a host's own arrangement does not matter. (crun 1.8 refuses hybrid
hosts otherwise, and runc makes groups that no name would find after a crash.)
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
from sandlot.drivers.oci.places import VIEW_DISK, VIEW_FOLDER
from sandlot.drivers.oci.runtime import Engine, Place, Program, content_sha256, programs
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.idranges import IDS
from sandlot.host.launch import Operation, Started
from sandlot.model.errors import ErrorCode, HostError, InternalError, UnsupportedError
from sandlot.model.ports import Attachment, DriverCapability
from sandlot.model.specs import Limits, SandboxSpec, Shape

FLOOR = (1, 8)
"""The oldest release that this is written for: Debian 12's."""
INSTALL_HINT = "apt-get install crun. In a checkout, scripts/setup does it."
_VERSION = re.compile(r"crun version (\d+)\.(\d+)")

_ABSENT: Mapping[DriverCapability, str] = MappingProxyType(
    {
        DriverCapability.SNAPSHOT: (
            "a container's memory is in the hands of the host's kernel: writing it down takes CRIU, which is no part of Sandlot and would tie the "
            "snapshot to this very kernel; choose gvisor for that"
        ),
        DriverCapability.CONFIGURE_VOLUMES: "what a container has mounted is settled when it starts",
        DriverCapability.SHOW_LIMITS: "a container reads the host's memory and processors in /proc; its limits hold all the same",
    }
)


def find_crun(search_path: str | None = None) -> Program:
    """The newest crun on PATH. Takes some milliseconds.

    Args:
        search_path: Folders separated by colons; None is this process's PATH.

    Raises:
        HostError: There is none, or none that is new enough.
    """
    found = [((int(match[1]), int(match[2])), line, file) for file, line in programs("crun", search_path) if (match := _VERSION.match(line))]
    if not found:
        raise HostError("The container runtime, crun, is not installed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    # max() keeps the first of equals: the one that comes first on PATH.
    number, line, file = max(found, key=lambda candidate: candidate[0])
    version = line.removeprefix("crun version ")
    if number < FLOOR:
        raise HostError(f"{file} is version {version}; at least {FLOOR[0]}.{FLOOR[1]} is needed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    return Program("crun", file, content_sha256(file), version)


@dataclass(frozen=True, slots=True)
class Crun:
    """The container runtime.

    Args:
        locate: Finds its program.
    """

    locate: Callable[[], Program] = find_crun
    own_ids: bool = True
    hub: str | None = None
    """Its volumes are put into their places by the runtime itself."""
    bytes_per_inode: int | None = 16 * 1024
    """mke2fs's own default; every file written is one of this disk."""
    oom_statuses: frozenset[int] = frozenset((-signal.SIGKILL,))
    """The guest itself was killed: it is no child of crun's, which has long left."""

    @property
    def absent(self) -> Mapping[DriverCapability, str]:
        """What it cannot do anywhere, and why."""
        return _ABSENT

    def find(self) -> Program:
        """The newest crun.

        Raises:
            HostError: There is none, or none that is new enough.
        """
        return self.locate()

    def group_limits(self, limits: Limits) -> GroupLimits:
        """What the whole sandbox may use on the host."""
        return group_limits(limits)

    def plan(self, place: Place) -> tuple[Operation, ...]:
        """What the stage does before it starts crun."""
        return stage_plan(place)

    def config(self, shape: Shape, spec: SandboxSpec | None, first_id: int | None, volumes: Sequence[Attachment] = ()) -> dict[str, Any]:
        """The bundle's ``config.json``."""
        if first_id is None or spec is None:
            raise InternalError("A container needs ids of its own, and a name.")
        return oci_config(shape, spec, first_id, IDS, volumes)

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:  # noqa: ARG002 - its disk is a file system
        """The command that starts a sandbox and returns once it runs."""
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

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:  # noqa: ARG002 - the port's
        """It has no such command: what would follow is a restore."""
        raise _no_snapshots()

    def engine(self, program: Program) -> Engine:  # noqa: ARG002 - the port's
        """There is none."""
        raise _no_snapshots()

    def settle(self, started: Started) -> None:
        """Nothing."""

    def disk_bytes(self, started: Started) -> int:
        """What its file system holds, that which is not written out yet included; seen by the keeper, whose view nobody inside changes."""
        with contextlib.suppress(OSError):
            stat = os.statvfs(f"/proc/{started.keeper.pid}/root{VIEW_DISK}")
            return (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return 0


def _no_snapshots() -> UnsupportedError:
    return UnsupportedError(_ABSENT[DriverCapability.SNAPSHOT], code=ErrorCode.UNSUPPORTED)
