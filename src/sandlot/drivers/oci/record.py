"""What the service intends with a sandbox, written before it is done.

A record is never the proof that something exists: groups, processes and mounts are found by the sandbox's ref. It says
what the folder is for, so that the next service knows what it may take over.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import Limits

VERSION = 1


class Step(StrEnum):
    """How far the service meant to go."""

    PREPARE = "prepare"
    BOOT = "boot"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox as the driver knows it.

    Args:
        ref: Its name.
        step: What is being done, or was done last.
        driver: Who made it.
        runtime: Path of the runtime.
        runtime_sha256: Content of the runtime, in hexadecimal.
        root_digest: What it was started from.
        limits: What it may use, as last changed.
    """

    ref: str
    step: Step
    driver: str
    runtime: str
    runtime_sha256: str
    root_digest: str
    limits: Limits

    def dump(self) -> str:
        """As JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)


def load(text: str) -> Record | None:
    """A record from JSON; None if it is none that this version reads."""
    try:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            return None
        fields["step"] = Step(fields["step"])
        fields["limits"] = Limits(**fields["limits"])
        return Record(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidRequestError):
        return None


def read(path: Path) -> Record | None:
    """The record at a path; None if there is none, or none that can be read."""
    try:
        return load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write(path: Path, record: Record) -> None:
    """Put a record in place of the one before: readers see one or the other (rename(2)).

    Not synced to the disk: what it describes does not outlive the machine's running either.
    """
    draft(path, record)
    issue(path)


def draft(path: Path, record: Record) -> None:
    """Write a record beside the one that is in place."""
    path.with_suffix(".new").write_text(record.dump(), encoding="utf-8")


def issue(path: Path) -> None:
    """Put the draft in place of the one before."""
    os.replace(path.with_suffix(".new"), path)  # noqa: PTH105 - atomic, which Path.replace says less clearly
