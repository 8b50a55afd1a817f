"""What a restore needs known of a snapshot beside the images: pure, but for :func:`read`.

A snapshot belongs to the build of the runtime that wrote it (another refuses it, or worse, does not), to the root file system whose
files its programs have open, and to limits that programs inside have seen.

============  =====================================================================================================================
runtime       the same content. Builds are kept by their content, so an upgrade of the package makes no snapshot unusable.
root          the same digest: below what was written inside lies the root that it was written on.
memory, disk  at least as much: programs have laid themselves out in it, and /dev/shm keeps its size. MemTotal follows the new limit.
cpus, pids    any: how many processors are seen is part of the snapshot, how much of them it gets is the control group's; the number
              of processes is counted by the guest, which is told when it wakes.
============  =====================================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import Limits, Shape

VERSION = 1
"""Of the manifest, and of the bundle's mounts (``gvisor/config.py``): an image has them open, and finds them again by their places."""
NAME = "snapshot.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot.

    Args:
        driver: Whose it is.
        runtime: What the runtime's program is called.
        runtime_sha256: Its content, in hexadecimal.
        runtime_version: What it calls itself, for people.
        root_digest: The root that it stands on.
        limits: What the sandbox was allowed when it was written.
        files: Size of each image by its name.
    """

    driver: str
    runtime: str
    runtime_sha256: str
    runtime_version: str
    root_digest: str
    limits: Limits
    files: Mapping[str, int]

    def dump(self) -> str:
        """As JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)

    def misfit(self, shape: Shape, driver: str, runtime_sha256: str) -> str:
        """Why it cannot be restored into a sandbox of that shape on that runtime; empty if it can."""
        if self.driver != driver:
            return f"it was written by the {self.driver} driver, and this is {driver}"
        if self.runtime_sha256 != runtime_sha256:
            wrote = f"{self.runtime_version}, {self.runtime_sha256[:12]}"
            return f"it was written by another build of {self.runtime} ({wrote}), and this is {runtime_sha256[:12]}"
        if self.root_digest != shape.root.digest:
            return f"it stands on the root file system {self.root_digest[:19]}, and this is {shape.root.digest[:19]}"
        for name in ("memory_bytes", "disk_bytes"):
            had, gets = getattr(self.limits, name), getattr(shape.limits, name)
            if gets < had:
                return f"it was written with {had // 2**20} MiB of {name.removesuffix('_bytes')}, and would get {gets // 2**20} MiB"
        return ""


def load(text: str) -> Manifest | None:
    """A manifest from JSON; None if it is none that this version reads."""
    try:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            return None
        fields["limits"] = Limits(**fields["limits"])
        fields["files"] = {str(name): int(size) for name, size in fields["files"].items()}
        return Manifest(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidRequestError):
        return None


def read(snapshot: Path) -> Manifest | None:
    """The manifest of a snapshot's folder; None if there is none, or none that can be read."""
    try:
        return load((snapshot / NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
