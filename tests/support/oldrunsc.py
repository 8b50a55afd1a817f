"""Debian bookworm's own runsc, of December 2022, as a second build of the runtime for tests. Sandlot itself refuses a release this old.

This release has no systrap and no directfs, and writes one image file instead of three. Only the flags and commands that differ are replaced here;
everything else is Sandlot's own code.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandlot.drivers.oci.gvisor import runtime as gvisor
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.paths import VIEW_FOLDER
from sandlot.drivers.oci.runtime import Engine, EngineError, Program, RunningOciRuntime
from sandlot.drivers.oci.snapshots.command_line import CliEngine
from sandlot.drivers.oci.snapshots.image_files import STATE
from sandlot.host.programs import content_sha256, run_program

VERSION = "0.0~20221219.0-2+b3"
_UNKNOWN = ("--directfs=", "--host-fifo=")


def download(folder: Path) -> Program | None:
    """Download the old runsc from Debian's archive with apt. Return None if the archive does not have it or apt is not installed."""
    folder.mkdir()
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    if subprocess.run(["apt-get", "download", f"runsc={VERSION}"], cwd=folder, capture_output=True, timeout=120, check=False).returncode != 0:
        return None
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "tree"], check=True, timeout=60)
    file = folder / "tree" / "usr" / "bin" / "runsc"
    version = run_program(file, "--version").stdout.decode().partition("\n")[0].removeprefix("runsc version ")
    return Program("runsc", file, content_sha256(file), version)


def flags(program: Program, disk_bytes: int) -> tuple[str, ...]:
    """Return the global flags for a build of runsc, old or new."""
    told = gvisor.flags(program, disk_bytes)
    if not is_old(program):
        return told
    instead = {"--platform": "--platform=ptrace", "--overlay2": "--overlay2=root:memory"}
    return tuple(instead.get(word.partition("=")[0], word) for word in told if not word.startswith(_UNKNOWN))


def is_old(program: Program) -> bool:
    """Return True if a program is older than the oldest release that Sandlot accepts."""
    return gvisor.release_date(program.version) < gvisor.MIN_RELEASE


class OldEngine(CliEngine):
    """Commands of the old runsc: a checkpoint writes one image file and ends the sandbox, and only the control socket can restore."""

    async def save(self, running: RunningOciRuntime, image: Path) -> None:
        await self._run(running, "checkpoint", image=image)

    async def restore(self, running: RunningOciRuntime, image: Path) -> None:
        await asyncio.to_thread(_restore, running.folder.ref, image)


def _restore(ref: str, image: Path) -> None:
    message = json.dumps({"method": "containerManager.Restore", "arg": {"SandboxID": ref}}).encode()
    with (image / STATE).open("rb") as state, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0runsc-sandbox.{ref}\0")
        socket.send_fds(connection, [message], [state.fileno()])
        answer = json.loads(connection.recv(1 << 16))
    if not answer["success"]:
        raise EngineError(answer["err"])


@dataclass(frozen=True, slots=True)
class EitherRunsc(Runsc):
    """Runtime that starts old and new builds, each with the flags that the build accepts."""

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        return (*flags(program, disk_bytes), "run", "-detach", *_BUNDLE, ref)

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        return (*flags(program, disk_bytes), "create", *_BUNDLE, ref)

    def engine(self, program: Program) -> Engine:
        return OldEngine(flags) if is_old(program) else super(EitherRunsc, self).engine(program)


_BUNDLE = (f"-bundle={VIEW_FOLDER}/bundle", f"-pid-file={VIEW_FOLDER}/pid")
