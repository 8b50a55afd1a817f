"""Which build of a runtime a sandbox runs on: the newest that is installed, or the one that its snapshot was written by.

A package may be replaced or removed at any time, and an image of gVisor's memory is read by the build that wrote it alone. So every
build that a sandbox of a runtime with snapshots is started on is copied once to ``<state directory>/runtimes/<sha256>/``, and run
from there.

Laws:
- A folder below ``runtimes`` appears whole, by rename, and its content is looked at before it is run for the first time by a service:
  what is not what its name says is not run.
- What neither a sandbox nor a snapshot names any more, and is not the newest, is removed by the next sweep.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from sandlot.drivers.oci.runtime import Program, Runtime, content_sha256
from sandlot.host import durable
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ports import DriverCapability

_FACTS = "program.json"


class Programs:
    """The builds of one runtime. Any thread may call its methods; all of them block for up to some tenths of a second.

    Args:
        runtime: Whose.
        folder: Where builds are kept; made when it is needed.
    """

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._lock = threading.Lock()
        self._newest: tuple[Program, tuple[int, ...]] | None = None
        self._kept: dict[str, tuple[Program, tuple[int, ...]]] = {}

    def newest(self) -> Program:
        """The one that is installed, as it is installed. Blocks for a stat where it is known.

        Raises:
            HostError: It is not installed, or too old.
        """
        with self._lock:
            if self._newest is not None:
                known, seen = self._newest
                with contextlib.suppress(FileNotFoundError):
                    if _stamp(known.path) == seen:
                        return known
            found = self._runtime.find()
            self._newest = found, _stamp(found.path)
            return found

    def current(self) -> Program:
        """The one to start sandboxes on: the newest, kept where there may be snapshots.

        Raises:
            HostError: It is not installed, too old, or cannot be kept.
        """
        newest = self.newest()
        if DriverCapability.SNAPSHOT in self._runtime.absent:
            return newest
        try:
            with self._lock:
                if self._look(newest.sha256):
                    self._keep(newest)
        except OSError as error:
            raise HostError(
                f"{newest.path} could not be copied to {self._folder}: {error.strerror or error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Free some space where the service keeps its state (SANDLOT_DATA_DIR).",
            ) from error
        return self.kept(newest.sha256)

    def kept(self, sha256: str) -> Program:
        """One that was kept.

        Raises:
            HostError: It is not there any more, or not what it was.
        """
        if why_not := self.why_not(sha256):
            raise HostError(
                f"The build of the runtime that this depends on cannot be used: {why_not}.",
                code=ErrorCode.HOST_NOT_READY,
                hint=f"Put the very same program back to {self._folder / sha256}, or give up what depends on it.",
            )
        return self._kept[sha256][0]

    def why_not(self, sha256: str) -> str:
        """Why a build cannot be used; empty if it can. The newest one is kept by that, where it was not yet."""
        with self._lock:
            reason = self._look(sha256)
        if reason:
            # Of a snapshot that another service wrote, for one: templates' are in a cache that services may share.
            with contextlib.suppress(HostError, OSError):
                newest = self.newest()
                with self._lock:
                    if newest.sha256 == sha256:
                        self._keep(newest)
                    reason = self._look(sha256)
        return reason

    def prune(self, needed: Collection[str]) -> None:
        """Remove the builds that nothing needs. The newest stays."""
        with contextlib.suppress(HostError):
            needed = {*needed, self.newest().sha256}
        with self._lock, contextlib.suppress(FileNotFoundError):
            for entry in self._folder.iterdir():
                if entry.name not in needed:
                    self._kept.pop(entry.name, None)
                    shutil.rmtree(entry, ignore_errors=True)

    def _look(self, sha256: str) -> str:
        folder = self._folder / sha256
        try:
            program = _load((folder / _FACTS).read_text(encoding="utf-8"), folder)
            stamp = _stamp(program.path)
        except FileNotFoundError:
            return f"the build {sha256[:12]} is not kept in {self._folder}"
        except (OSError, ValueError, TypeError, KeyError):
            return f"what is in {folder} cannot be read"
        known = self._kept.get(sha256)
        if known is None or known[1] != stamp:
            if content_sha256(program.path) != sha256:
                return f"{program.path} was altered"
            self._kept[sha256] = program, stamp
        return ""

    def _keep(self, program: Program) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            copy = beside / program.name
            shutil.copyfile(program.path, copy)
            copy.chmod(0o755)
            if content_sha256(copy) != program.sha256:
                self._newest = None
                raise OSError(0, "it was replaced meanwhile")
            (beside / _FACTS).write_text(json.dumps({**asdict(program), "path": program.name}), encoding="utf-8")
            durable.fsync_files(beside)
            kept = self._folder / program.sha256
            if kept.exists():  # altered: it is ours to mend, nothing else has that name
                shutil.rmtree(kept)
            durable.publish_folder(beside, kept)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _load(text: str, folder: Path) -> Program:
    fields = json.loads(text)
    program = Program(**fields)
    return replace(program, path=folder / Path(program.path).name)


def _stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
