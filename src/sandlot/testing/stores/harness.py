"""Objects that the suites of stores use: the store under test, and records that the tests save in the store."""

from __future__ import annotations

import importlib
import os
import secrets
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast

from sandlot.model.access import OwnerId, Quota
from sandlot.model.ids import NodeId, SandboxId, new_file_id, new_process_id, new_sandbox_id, new_snapshot_id
from sandlot.model.records import EventRecord, ExecutionId, ExecutionRecord, FileRecord, KeyRecord, NewEvent, SandboxRecord, SnapshotRecord
from sandlot.model.repositories import Store
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.states import State
from sandlot.store.store import open_store

SANDLOT_STORE = f"{__name__}:open_sandlot_store"
"""Opener of Sandlot's own store. The location of this store is the absolute path of an SQLite file or the URL of a PostgreSQL database."""

ALICE, BOB = OwnerId("a11ce0a11ce0"), OwnerId("b0bb0bb0bb0b")
NODE = NodeId("node")
BEGINNING = datetime(2026, 1, 1, 12, tzinfo=UTC)

HOSTILE_TEXT = "a\0b \ud800 \u2028 ü 🐢 '); DROP TABLE sandboxes; -- %s :name ?"
"""Text that code in a sandbox may produce. A store must return it unchanged."""


def open_sandlot_store(location: str) -> AbstractAsyncContextManager[Store]:
    """Open Sandlot's own store at the absolute path of an SQLite file or at the URL of a PostgreSQL database."""
    return open_store(Path(location) if location.startswith("/") else location)


class StoreOpener(Protocol):
    """Opener of the store of one test. The store is empty at first, and can be opened several times."""

    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, as a service does when it starts."""
        ...


@dataclass(frozen=True, slots=True)
class StoreHarness:
    """The store under test. The store is empty at first, and is used by only one test, which may open it in several processes.

    Args:
        opener: Function that opens the store, as ``module:function``. Takes the location, returns an async context manager of the store.
        location: Location of the store, in the form that the opener expects.
    """

    opener: str
    location: str

    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, as a service does when it starts."""
        module, _, name = self.opener.partition(":")
        return cast("AbstractAsyncContextManager[Store]", getattr(importlib.import_module(module), name)(self.location))

    def writer(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program :mod:`sandlot.testing.stores.writer`, which writes to the store. The caller must end the process.

        Args:
            arguments: Mode of the program and the arguments of the mode.
        """
        command = [sys.executable, "-m", "sandlot.testing.stores.writer", self.opener, self.location, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def moment(seconds: float) -> datetime:
    """Return the time ``seconds`` seconds after ``BEGINNING``, a fixed time in 2026."""
    return BEGINNING + timedelta(seconds=seconds)


def sandbox(**changes: Any) -> SandboxRecord:  # noqa: ANN401 - any field of the record
    """Return the record of a sandbox that is being created.

    Args:
        changes: Values that replace fields of the record. ``metadata`` replaces the metadata in the record's spec.
    """
    node = changes.pop("node", NODE)
    spec = changes.pop("spec", None) or SandboxSpec(id=new_sandbox_id(node), metadata=changes.pop("metadata", {}))
    values = {"owner": ALICE, "name": None, "state": State.CREATING, "created_at": BEGINNING, **changes}
    return SandboxRecord(spec=spec, node=node, **values)


def ended(at_s: float, **changes: Any) -> SandboxRecord:  # noqa: ANN401
    """Return the record of a sandbox that was created ``at_s`` seconds after ``BEGINNING`` and ended a second later."""
    return sandbox(**{"state": State.STOPPED, "created_at": moment(at_s), "ended_at": moment(at_s + 1), "exit_reason": "killed", **changes})


def snapshot(at_s: float = 0, **changes: Any) -> SnapshotRecord:  # noqa: ANN401
    """Return the record of a complete snapshot that was created ``at_s`` seconds after ``BEGINNING``."""
    node = changes.pop("node", NODE)
    values = {"owner": ALICE, "name": None, "kind": SnapshotKind.MEMORY, "spec": SandboxSpec(id=new_sandbox_id(node)), "ready": True, **changes}
    return SnapshotRecord(**{"id": new_snapshot_id(node), "node": node, "created_at": moment(at_s), **values})


def key(name: str, **changes: Any) -> KeyRecord:  # noqa: ANN401
    """Return the record of a new API key with a random id and a random secret. ``changes`` replaces fields of the record."""
    values = {"id": OwnerId(secrets.token_hex(6)), "sha256": secrets.token_hex(32), "operator": False, "quota": Quota(), "created_at": BEGINNING}
    return KeyRecord(name=name, **{**values, **changes})


def file(at_s: float = 0, **changes: Any) -> FileRecord:  # noqa: ANN401
    """Return the record of a file that was uploaded ``at_s`` seconds after ``BEGINNING``."""
    values = {"id": new_file_id(), "owner": ALICE, "filename": "data.csv", "media_type": "text/csv", "size_bytes": 1 << 40, "sha256": "ab" * 32}
    return FileRecord(**{**values, "created_at": moment(at_s), **changes})


def execution(at_s: float = 0, **changes: Any) -> ExecutionRecord:  # noqa: ANN401
    """Return the record of an execution that began ``at_s`` seconds after ``BEGINNING``."""
    values = {"id": ExecutionId(new_process_id()), "owner": ALICE, "sandbox": SandboxId("sb-node-aaaaaaaaaaaaaaaa"), "kind": "code"}
    return ExecutionRecord(**{**values, "created_at": moment(at_s), "status": "ok", **changes})


def event(at_s: float = 0, **changes: Any) -> NewEvent:  # noqa: ANN401
    """Return an event that occurred ``at_s`` seconds after ``BEGINNING``."""
    return NewEvent(**{"type": "sandbox.created", "at": moment(at_s), "owner": ALICE, **changes})


async def every_event(store: Store, page: int = 1000) -> list[EventRecord]:
    """Read all events of a store in pages of at most ``page`` events, and return the events."""
    found: list[EventRecord] = []
    while more := await store.events.page(owner=None, sandbox=None, after=found[-1].sequence if found else 0, limit=page):
        found += more
    return found
