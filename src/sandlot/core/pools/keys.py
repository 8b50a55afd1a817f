"""What a template snapshot is made of, and the key that stands for it. Pure.

Everything that a restore depends on, or that those inside could tell by, is in the key; where anything of it changes, the key does, and what lies
under the old one is never used again:

=============  ========================================================================================================================
isolation      the driver's name
fingerprint    what its snapshots depend on: the content of the runtime's program, and how it is told to run
root           the image and the guest in it: the digest covers the recipe, every package, the guest's sources and its interpreter
env            what the template gives every process: what was imported ahead was imported with it
memory, cpus   what those inside see of their limits
disk           the least that a sandbox restored from it may have
version        Sandlot's: how a sandbox is laid out around the root
=============  ========================================================================================================================

Not in it: the network and the limit of processes, which the host and the guest set when a sandbox becomes somebody's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sandlot.core.pools.kinds import PoolSpec
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.specs import GIB, Limits

FORMAT = 2
"""Raised when what is done to a sandbox before its snapshot is taken changes."""

DISK_BYTES = 1 * GIB
"""Of the sandbox that a snapshot is taken of, unless a sandbox of that kind has less: one restored from it may have as much or more."""


@dataclass(frozen=True, slots=True)
class TemplateSnapshotSpec:
    """What a template snapshot is of: kinds that look the same from inside share one.

    Args:
        template: What it is made from.
        isolation: The driver's name.
        limits: Of the sandbox that it is taken of.
    """

    template: str
    isolation: str
    limits: Limits

    def words(self) -> dict[str, Any]:
        """For the manifest: two of one look replace each other."""
        return {"template": self.template, "isolation": self.isolation, "memory_bytes": self.limits.memory_bytes, "cpus": self.limits.cpus}


def snapshot_spec(kind: PoolSpec) -> TemplateSnapshotSpec:
    """What a kind looks like from inside."""
    limits = Limits(
        cpus=kind.limits.cpus,
        memory_bytes=kind.limits.memory_bytes,
        disk_bytes=min(kind.limits.disk_bytes, DISK_BYTES),
    )
    return TemplateSnapshotSpec(kind.template, kind.isolation, limits)


def fits(of: TemplateSnapshotSpec, limits: Limits) -> bool:
    """Whether a sandbox of these limits can be restored from a snapshot of that look, and looks like it."""
    return replace(limits, disk_bytes=of.limits.disk_bytes, pids=of.limits.pids) == of.limits and limits.disk_bytes >= of.limits.disk_bytes


def made_of(of: TemplateSnapshotSpec, base: ResolvedTemplate, fingerprint: str, version: str) -> Mapping[str, Any]:
    """Everything that a snapshot depends on, as the manifest tells it.

    Args:
        of: What it is of.
        base: What the template gives.
        fingerprint: The driver's.
        version: Sandlot's.
    """
    return {
        "format": FORMAT,
        "version": version,
        "isolation": of.isolation,
        "fingerprint": fingerprint,
        "root": base.root.digest,
        "env": dict(sorted(base.env.items())),
        "memory_bytes": of.limits.memory_bytes,
        "cpus": of.limits.cpus,
        "disk_bytes": of.limits.disk_bytes,
    }


def key(parts: Mapping[str, Any]) -> str:
    """SHA-256 in hexadecimal of what :func:`made_of` gives."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
