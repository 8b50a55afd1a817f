"""Manifest of a snapshot: the properties that are compared before a restore. Pure except for :func:`read`.

A snapshot depends on the build of the runtime that wrote the snapshot, because another build refuses or misreads the files of the snapshot. It also
depends on the root file system, whose files the saved programs have open, and on limits that these programs have seen. A sandbox into which the
snapshot is restored needs:

============  =======================================================================================================================
runtime       The same build, compared by SHA-256. Copies of old builds are kept, so an upgrade of the package makes no snapshot unusable.
root          The same digest and kind, because the files that the sandbox has written are stored as changes of this root. A snapshot of a
              sandbox with another kind of root would not answer: the file server of a folder is part of the snapshot, an image needs none.
memory, disk  At least as much as before: programs have laid out their data for the old amount, and /dev/shm keeps its size. MemTotal
              shows the new limit.
cpus, pids    Any value. The number of processors inside is part of the snapshot, and the control group limits the processor time. The
              guest itself limits the number of processes and shows programs fewer processors. It receives both numbers when it wakes.
============  =======================================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import Limits, RootKind, Shape

VERSION = 1
"""Version of the manifest and of the list of mounts in ``gvisor/config.py``: a restored sandbox finds the mounts in the snapshot by their paths."""
NAME = "snapshot.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of one snapshot.

    Args:
        driver: Name of the driver that wrote the snapshot.
        runtime: Name of the runtime's program.
        runtime_sha256: SHA-256 of the runtime's program, in hexadecimal.
        runtime_version: Version of the runtime, for error messages.
        root_digest: Digest of the root file system.
        limits: Limits of the sandbox when the snapshot was written.
        files: Size in bytes of each file of the snapshot except the manifest, by file name.
        root_kind: Form of the root file system.
    """

    driver: str
    runtime: str
    runtime_sha256: str
    runtime_version: str
    root_digest: str
    limits: Limits
    files: Mapping[str, int]
    root_kind: RootKind = RootKind.TREE

    def dump(self) -> str:
        """Return the manifest as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)

    def misfit(self, shape: Shape, driver: str, runtime_sha256: str) -> str:
        """Return the reason why a sandbox with these properties cannot be started from the snapshot, or an empty text if it can be started."""
        if self.driver != driver:
            return f"it was written by the {self.driver} driver, but this sandbox uses the {driver} driver"
        if self.runtime_sha256 != runtime_sha256:
            writer = f"{self.runtime_version}, {self.runtime_sha256[:12]}"
            return f"it was written by another build of {self.runtime} ({writer}), but this sandbox uses build {runtime_sha256[:12]}"
        if self.root_kind is not shape.root.kind:
            return f"it was written with a root file system of kind {self.root_kind}, but that of this sandbox is of kind {shape.root.kind}"
        if self.root_digest != shape.root.digest:
            return f"it was written with the root file system {self.root_digest[:19]}, but this sandbox has {shape.root.digest[:19]}"
        for name in ("memory_bytes", "disk_bytes"):
            before, now = getattr(self.limits, name), getattr(shape.limits, name)
            if now < before:
                return f"it was written with {before // 2**20} MiB of {name.removesuffix('_bytes')}, but this sandbox has {now // 2**20} MiB"
        return ""


def load(text: str) -> Manifest | None:
    """Parse a manifest from JSON. Return None if this version of Sandlot cannot read the text."""
    try:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            return None
        fields["limits"] = Limits(**fields["limits"])
        fields["root_kind"] = RootKind(fields.get("root_kind", RootKind.TREE))  # absent in snapshots of earlier versions
        fields["files"] = {str(name): int(size) for name, size in fields["files"].items()}
        return Manifest(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidRequestError):
        return None


def read(snapshot: Path) -> Manifest | None:
    """Read the manifest of a snapshot. Return None if there is no manifest, or if this version of Sandlot cannot read it."""
    try:
        return load((snapshot / NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
