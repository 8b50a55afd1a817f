"""Record of a sandbox: its limits, and the last step that the service began. The record is written before the step begins.

A record does not prove that anything exists: control groups, processes and mounts are found by the ref of the sandbox. After a restart, the service
learns from the records which sandboxes it may adopt.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import Limits, RootKind

VERSION = 1


class Step(StrEnum):
    """Last step that the service began for a sandbox."""

    PREPARE = "prepare"
    BOOT = "boot"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Record:
    """Record of one sandbox.

    Args:
        ref: Ref of the sandbox: the id of its node and 16 random characters.
        step: Step that is being carried out, or was carried out last.
        driver: Name of the driver that created the sandbox.
        runtime: Path of the runtime's program.
        runtime_sha256: SHA-256 of the runtime's program, in hexadecimal.
        root_digest: Digest of the root file system.
        limits: Current limits of the sandbox.
        root_kind: Form of the root file system.
    """

    ref: str
    step: Step
    driver: str
    runtime: str
    runtime_sha256: str
    root_digest: str
    limits: Limits
    root_kind: RootKind = RootKind.TREE

    def dump(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)


def load(text: str) -> Record | None:
    """Parse a record from JSON. Return None if this version of Sandlot cannot read the text."""
    try:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            return None
        fields["step"] = Step(fields["step"])
        fields["limits"] = Limits(**fields["limits"])
        fields["root_kind"] = RootKind(fields.get("root_kind", RootKind.TREE))  # absent in records of earlier versions
        return Record(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidRequestError):
        return None


def read(path: Path) -> Record | None:
    """Read a record. Return None if there is no record, or if this version of Sandlot cannot read it."""
    try:
        return load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write(path: Path, record: Record) -> None:
    """Replace the record in a file. Readers see the whole old record or the whole new record (rename(2)).

    The record is not synced to the disk: the processes that it describes do not survive a loss of power either.
    """
    stage(path, record)
    commit(path)


def stage(path: Path, record: Record) -> None:
    """Write the next record to a second file next to the current record."""
    path.with_suffix(".new").write_text(record.dump(), encoding="utf-8")


def commit(path: Path) -> None:
    """Replace the current record by the record that :func:`stage` wrote."""
    os.replace(path.with_suffix(".new"), path)  # noqa: PTH105 - atomic, which Path.replace says less clearly
