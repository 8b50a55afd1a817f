"""The runtime's program: found, told apart by its content, asked what it can do, and how it is called.

Laws:
- The newest runsc on PATH is taken; one older than :data:`FLOOR` is refused, because what it lacks is needed.
- What a program can do is found by trying, once per content: a package may be replaced while the service runs.
- No flag weakens the boundary: no host network, no host sockets, no direct access to host files, no flag overrides.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandlot.drivers.oci.places import VIEW_DISK, VIEW_FOLDER
from sandlot.model.errors import ErrorCode, HostError

FLOOR = 20240729
"""The oldest release, by date, that this is written for: Debian backports' for Debian 12."""
INSTALL_HINT = (
    "Install gVisor: on Debian 12 `apt-get install -t bookworm-backports runsc`, or an official release from "
    "https://gvisor.dev/docs/user_guide/install/. In a checkout, scripts/setup does it."
)
_ASK_TIMEOUT_S = 30.0
_DATE = re.compile(r"(?:^|[-~.])(20\d{6})(?:\.|$)")


class Runtime(Protocol):
    """An OCI runtime as the driver needs it."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def path(self) -> Path:
        """Its program, absolute."""
        ...

    @property
    def sha256(self) -> str:
        """Of its content, in hexadecimal."""
        ...

    @property
    def version(self) -> str:
        """What it calls itself."""
        ...

    @property
    def limits_disk(self) -> bool:
        """Whether it limits the disk itself; otherwise it is given a file system of the right size."""
        ...

    def run_argv(self, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts a sandbox and returns once it runs, having written its pid to ``VIEW_FOLDER/pid``."""
        ...


@dataclass(frozen=True, slots=True)
class Runsc:
    """gVisor's runtime.

    Args:
        path: Its program, absolute.
        sha256: Of its content, in hexadecimal.
        version: What it calls itself.
        limits_disk: Whether ``--overlay2`` takes ``size=``.
    """

    path: Path
    sha256: str
    version: str
    limits_disk: bool
    name: str = "runsc"

    def run_argv(self, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts a sandbox and returns once it runs.

        Args:
            ref: Its name to the runtime, which has a state folder for this one sandbox alone.
            disk_bytes: The limit of its disk.
        """
        size = f",size={disk_bytes}" if self.limits_disk else ""
        return (
            str(self.path),
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
            "run",
            "-detach",
            f"-bundle={VIEW_FOLDER}/bundle",
            f"-pid-file={VIEW_FOLDER}/pid",
            ref,
        )


def release_date(version: str) -> int:
    """The date in a version such as ``0.0~20240729.0`` or ``release-20260817.0``; 0 if there is none."""
    found = _DATE.search(version)
    return int(found[1]) if found else 0


def find_runsc(search_path: str | None = None) -> Runsc:
    """The newest runsc on PATH, and what it can do. Takes some ten milliseconds.

    Args:
        search_path: Folders separated by colons; None is this process's PATH.

    Raises:
        HostError: There is none, or none that is new enough.
    """
    folders = (search_path if search_path is not None else os.environ.get("PATH", os.defpath)).split(":")
    candidates = {file.resolve(): None for folder in folders if (file := Path(folder, "runsc")).is_file() and os.access(file, os.X_OK)}
    versions = [(release_date(version), version, file) for file in candidates if (version := _ask_version(file))]
    if not versions:
        raise HostError("gVisor's runtime, runsc, is not installed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    # max() keeps the first of equals: the one that comes first on PATH.
    date, version, file = max(versions, key=lambda candidate: candidate[0])
    if date < FLOOR:
        raise HostError(f"{file} is version {version}; at least {FLOOR} is needed.", code=ErrorCode.HOST_NOT_READY, hint=INSTALL_HINT)
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    # With "memory" on purpose: an old one takes everything after "dir=" for a path, and would not object.
    tried = _ask(file, "--overlay2=root:memory,size=16777216", "--version")
    return Runsc(file, sha256, version, limits_disk=tried.returncode == 0)


def _ask_version(file: Path) -> str:
    try:
        answer = _ask(file, "--version")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = answer.stdout.decode(errors="replace").partition("\n")[0]
    return first.removeprefix("runsc version ").strip() if answer.returncode == 0 else ""


def _ask(file: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(file), *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=_ASK_TIMEOUT_S, check=False, env={})
