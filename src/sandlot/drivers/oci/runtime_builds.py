"""Builds of a runtime: the installed build, and copies of all builds that sandboxes and snapshots depend on.

A package may be replaced or removed at any time, and gVisor reads a snapshot only with the build that wrote the snapshot. If a runtime
supports snapshots, each of its builds is therefore copied to ``<state directory>/runtimes/<sha256>/`` before the first sandbox is started with
the build. Sandboxes run the copy.

Invariants:
- A folder below ``runtimes`` appears as a whole, by rename. Its content is verified before a service runs it for the first time: a program whose
  digest differs from the folder's name is not run.
- A build that no sandbox and no snapshot names, and that is not the installed build, is removed by the next sweep.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from sandlot.drivers.oci.runtime import Program, Runtime
from sandlot.host import durable, locked_folder
from sandlot.host.locked_folder import LockedFolder
from sandlot.host.programs import content_sha256
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ports import DriverCapability

_DESCRIPTION = "program.json"
_SCRATCH = ".new"
"""Folder of incomplete copies."""


class RuntimeBuilds:
    """Builds of one runtime. All methods are thread-safe, and may block for some tenths of a second.

    Args:
        runtime: Runtime whose builds are found and copied.
        folder: Folder of the copies, created when the first copy is made.
    """

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._lock = threading.Lock()
        self._installed: tuple[Program, tuple[int, ...]] | None = None
        self._kept: dict[str, tuple[Program, tuple[int, ...]]] = {}

    def installed(self) -> Program:
        """Return the installed build at its installed path. Takes one call of stat(2) if the file has not changed since the previous call.

        Raises:
            HostError: The runtime is not installed, or is too old.
        """
        with self._lock:
            if self._installed is not None:
                known, version = self._installed
                with contextlib.suppress(FileNotFoundError):
                    if _file_version(known.path) == version:
                        return known
            found = self._runtime.find()
            self._installed = found, _file_version(found.path)
            return found

    def current(self) -> Program:
        """Return the build for new sandboxes: the installed build, or its copy if the runtime supports snapshots.

        Raises:
            HostError: The runtime is not installed, is too old, or cannot be copied.
            LimitError: The runtime cannot be copied, because the disk is full (``node_disk_full``).
        """
        installed = self.installed()
        if DriverCapability.SNAPSHOT in self._runtime.unsupported:
            return installed
        try:
            with self._lock:
                if self._check_copy(installed.sha256):
                    self._copy(installed)
        except OSError as error:
            raise durable.state_dir_error(f"{installed.path} could not be copied to {self._folder}", error) from error
        return self.get(installed.sha256)

    def get(self, sha256: str) -> Program:
        """Return the copy of a build. If there is no usable copy and the build is installed, copy the build first.

        Raises:
            HostError: The copy is missing or was altered, and the build is not installed.
        """
        if reason := self.unusable_reason(sha256):
            raise HostError(
                f"The required build of the runtime cannot be used: {reason}.",
                code=ErrorCode.HOST_NOT_READY,
                hint=f"Put the same program back into {self._folder / sha256}, or delete the sandboxes and snapshots that need this build.",
            )
        return self._kept[sha256][0]

    def unusable_reason(self, sha256: str) -> str:
        """Return the reason why a build cannot be used, or an empty text. If the build is installed but has no usable copy, copy the build first."""
        with self._lock:
            reason = self._check_copy(sha256)
        if reason:
            # For example, there is no copy if another service wrote the snapshot, because services may share the cache of template snapshots.
            with contextlib.suppress(HostError, OSError):
                installed = self.installed()
                with self._lock:
                    if installed.sha256 == sha256:
                        self._copy(installed)
                    reason = self._check_copy(sha256)
        return reason

    def prune(self, needed: Collection[str]) -> None:
        """Remove all copies except those of the needed builds and the installed build. Also remove the incomplete copies of killed services."""
        with contextlib.suppress(HostError):
            needed = {*needed, self.installed().sha256}
        with self._lock, contextlib.suppress(FileNotFoundError):
            for entry in self._folder.iterdir():
                if entry.name not in needed and entry.name != _SCRATCH:
                    self._kept.pop(entry.name, None)
                    shutil.rmtree(entry, ignore_errors=True)
            locked_folder.sweep(self._folder / _SCRATCH)

    def _check_copy(self, sha256: str) -> str:
        folder = self._folder / sha256
        try:
            program = _load((folder / _DESCRIPTION).read_text(encoding="utf-8"), folder)
            version = _file_version(program.path)
        except FileNotFoundError:
            return f"the build {sha256[:12]} is not kept in {self._folder}"
        except (OSError, ValueError, TypeError, KeyError):
            return f"the files in {folder} cannot be read"
        known = self._kept.get(sha256)
        if known is None or known[1] != version:
            if content_sha256(program.path) != sha256:
                return f"{program.path} was altered"
            self._kept[sha256] = program, version
        return ""

    def _copy(self, program: Program) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with LockedFolder(self._folder / _SCRATCH) as draft:
            copy = draft.content / program.name
            shutil.copyfile(program.path, copy)
            copy.chmod(0o755)
            if content_sha256(copy) != program.sha256:
                self._installed = None
                raise OSError(0, "the program was replaced while it was copied")
            (draft.content / _DESCRIPTION).write_text(json.dumps({**asdict(program), "path": program.name}), encoding="utf-8")
            durable.fsync_files(draft.content)
            kept = self._folder / program.sha256
            if kept.exists():  # this copy was altered; nothing else uses its name, so it may be replaced
                shutil.rmtree(kept)
            draft.publish(kept)


def _load(text: str, folder: Path) -> Program:
    fields = json.loads(text)
    program = Program(**fields)
    return replace(program, path=folder / Path(program.path).name)


def _file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes when a file is replaced or written."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
