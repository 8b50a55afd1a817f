"""gVisor's runtime: found, asked what it can do, and how it is called.

Laws:
- The newest runsc on PATH is taken; one older than :data:`FLOOR` is refused, because what it lacks is needed.
- What a program can do is found by trying, once per content.
- No flag weakens the boundary: no host network, no host sockets, no direct access to host files, no flag overrides.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sandlot.drivers.oci.checkpoint.cli import CliEngine
from sandlot.drivers.oci.checkpoint.control import ControlEngine
from sandlot.drivers.oci.gvisor.config import HUB, oci_config
from sandlot.drivers.oci.gvisor.plan import KERNEL_OOM_SCORE, group_limits, stage_plan
from sandlot.drivers.oci.places import VIEW_DISK, VIEW_FOLDER, VIEW_PROGRAM
from sandlot.drivers.oci.runtime import Engine, Place, Program, ask, content_sha256, programs
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.launch import Operation, Started
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ports import Attachment, DriverCapability
from sandlot.model.specs import Limits, SandboxSpec, Shape

FLOOR = 20240729
"""The oldest release, by date, that this is written for: Debian backports' for Debian 12."""
INSTALL_HINT = (
    "Install gVisor: on Debian 12 `apt-get install -t bookworm-backports runsc`, or an official release from "
    "https://gvisor.dev/docs/user_guide/install/. In a checkout, scripts/setup does it."
)
_DATE = re.compile(r"(?:^|[-~.])(20\d{6})(?:\.|$)")

CONTROL_RELEASES = frozenset((20240729,))
"""Releases whose control socket was tried; it is runsc's own affair, and may change with any other."""

_ABSENT: Mapping[DriverCapability, str] = MappingProxyType({})


def release_date(version: str) -> int:
    """The date in a version such as ``0.0~20240729.0`` or ``release-20260817.0``; 0 if there is none."""
    found = _DATE.search(version)
    return int(found[1]) if found else 0


def find_runsc(search_path: str | None = None) -> Program:
    """The newest runsc on PATH, and what it can do. Takes some ten milliseconds.

    Args:
        search_path: Folders separated by colons; None is this process's PATH.

    Raises:
        HostError: There is none, or none that is new enough.
    """
    versions = [
        (release_date(version), version, file)
        for file, line in programs("runsc", search_path)
        if (version := line.removeprefix("runsc version ").strip())
    ]
    if not versions:
        raise HostError("gVisor's runtime, runsc, is not installed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    # max() keeps the first of equals: the one that comes first on PATH.
    date, version, file = max(versions, key=lambda candidate: candidate[0])
    if date < FLOOR:
        raise HostError(f"{file} is version {version}; at least {FLOOR} is needed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    # With "memory" on purpose: an old one takes everything after "dir=" for a path, and would not object.
    tried = ask(file, "--overlay2=root:memory,size=16777216", "--version")
    return Program(
        "runsc", file, content_sha256(file), version, limits_disk=tried.returncode == 0, has_control=release_date(version) in CONTROL_RELEASES
    )


@dataclass(frozen=True, slots=True)
class Runsc:
    """gVisor's runtime.

    Args:
        locate: Finds its program.
    """

    locate: Callable[[], Program] = find_runsc
    own_ids: bool = False
    hub: str | None = HUB
    bytes_per_inode: int | None = None
    """It keeps all that is written in one file."""
    oom_statuses: frozenset[int] = frozenset((1, 128 + signal.SIGKILL, -signal.SIGKILL))
    """It answers a loss of its own parts with code 1 or 137."""

    @property
    def absent(self) -> Mapping[DriverCapability, str]:
        """What it cannot do anywhere, and why."""
        return _ABSENT

    def find(self) -> Program:
        """The newest runsc.

        Raises:
            HostError: There is none, or none that is new enough.
        """
        return self.locate()

    def group_limits(self, limits: Limits) -> GroupLimits:
        """What the whole sandbox may use on the host."""
        return group_limits(limits)

    def plan(self, place: Place) -> tuple[Operation, ...]:
        """What the stage does before it starts runsc."""
        return stage_plan(place)

    def config(
        self,
        shape: Shape,
        spec: SandboxSpec | None,  # noqa: ARG002 - the port's
        first_id: int | None,  # noqa: ARG002
        volumes: Sequence[Attachment] = (),  # noqa: ARG002 - they come through the hub
    ) -> dict[str, Any]:
        """The bundle's ``config.json``."""
        return oci_config(shape, group_limits(shape.limits), has_hub=(shape.root.path / HUB.strip("/")).is_dir())

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts a sandbox and returns once it runs."""
        return (*flags(program, disk_bytes), "run", "-detach", *_BUNDLE, ref)

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts its own processes with nothing in them."""
        return (*flags(program, disk_bytes), "create", *_BUNDLE, ref)

    def engine(self, program: Program) -> Engine:
        """By its control socket where that is known, else by its command line."""
        return ControlEngine() if program.has_control else CliEngine(flags)

    def settle(self, started: Started) -> None:
        """Let the kernel take its own kernel first when memory is short (``plan.py``), as its command line would."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, which others notice
            Path(f"/proc/{started.sandbox.pid}/oom_score_adj").write_text(str(KERNEL_OOM_SCORE), encoding="ascii")

    def disk_bytes(self, started: Started) -> int:
        """What its one file takes: deleted and held open by the runtime, it is what the disk limit counts."""
        folder = Path(f"/proc/{started.sandbox.pid}/fd")
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if "/runsc-filestore-" in os.readlink(entry.path):  # noqa: PTH115 - a link that points nowhere
                        return os.stat(entry.path).st_blocks * 512  # noqa: PTH116 - the file itself, through the link
        return 0


_BUNDLE = (f"-bundle={VIEW_FOLDER}/bundle", f"-pid-file={VIEW_FOLDER}/pid")


def flags(program: Program, disk_bytes: int) -> tuple[str, ...]:
    """The program as its stage sees it, and what is said to it before any command.

    Args:
        program: To run.
        disk_bytes: The limit of the sandbox's disk.
    """
    size = f",size={disk_bytes}" if program.limits_disk else ""
    return (
        f"{VIEW_PROGRAM}/{program.path.name}",
        f"--root={VIEW_FOLDER}/runtime",
        f"--log={VIEW_FOLDER}/runtime.log",
        "--log-format=json",
        f"--panic-log={VIEW_FOLDER}/panic.log",
        "--platform=systrap",
        "--network=none",
        # The process that runs the tenant's system calls gets no access to host files of its own, and uid 65534.
        "--directfs=false",
        "--host-uds=none",
        "--host-fifo=none",
        f"--overlay2=root:dir={VIEW_DISK}{size}",
        # What a sandbox sees of the host's processors follows its limit, as far as the runtime goes (at least 2).
        "--cpu-num-from-quota",
    )
