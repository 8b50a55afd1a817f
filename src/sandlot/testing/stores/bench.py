"""What the suites of stores stand on: a store that can be opened again, also by another process, and records to keep in it."""

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
from sandlot.model.ids import NodeId, SandboxId, new_file_id, new_node_id, new_process_id, new_sandbox_id, new_snapshot_id
from sandlot.model.records import EventRecord, ExecutionId, ExecutionRecord, FileRecord, KeyRecord, NewEvent, SandboxRecord, SnapshotRecord
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.states import State
from sandlot.model.storage import Store
from sandlot.store.store import open_store

OURS = f"{__name__}:open_ours"
"""The opener of Sandlot's own store: of a file of SQLite's, or by the URL of a PostgreSQL database."""

ALICE, BOB = OwnerId("a11ce0a11ce0"), OwnerId("b0bb0bb0bb0b")
NODE = NodeId("node")
BEGINNING = datetime(2026, 1, 1, 12, tzinfo=UTC)

NASTY = "a\0b \ud800 \u2028 ü 🐢 '); DROP TABLE sandboxes; -- %s :name ?"
"""What code in a sandbox may write, and a store must give back as it was."""


def open_ours(where: str) -> AbstractAsyncContextManager[Store]:
    """Open Sandlot's own store."""
    return open_store(Path(where) if where.startswith("/") else where)


class StoreOpener(Protocol):
    """A store for one test alone, empty at first. It can be opened several times."""

    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, as a process that starts would."""
        ...


@dataclass(frozen=True, slots=True)
class StoreBench:
    """One store, to be tried; empty at first, and for one test alone.

    Args:
        opener: ``module:function`` of what opens it: a function from a text to an async context manager that gives the store.
        where: That text.
    """

    opener: str
    where: str

    def open(self) -> AbstractAsyncContextManager[Store]:
        """Open it, as a process that starts would."""
        module, _, name = self.opener.partition(":")
        return cast("AbstractAsyncContextManager[Store]", getattr(importlib.import_module(module), name)(self.where))

    def writer(self, *arguments: str) -> subprocess.Popen[str]:
        """Another process on it: :mod:`sandlot.testing.stores.writer`. The caller ends it."""
        command = [sys.executable, "-m", "sandlot.testing.stores.writer", self.opener, self.where, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def moment(seconds: float) -> datetime:
    """So many seconds after the beginning."""
    return BEGINNING + timedelta(seconds=seconds)


def sandbox(**changes: Any) -> SandboxRecord:  # noqa: ANN401 - any field of the record
    """Somebody's, just asked for."""
    node = changes.pop("node", NODE)
    spec = changes.pop("spec", None) or SandboxSpec(id=new_sandbox_id(node), metadata=changes.pop("metadata", {}))
    values = {"owner": ALICE, "name": None, "state": State.CREATING, "created_at": BEGINNING, **changes}
    return SandboxRecord(spec=spec, node=node, **values)


def ended(at_s: float, **changes: Any) -> SandboxRecord:  # noqa: ANN401
    """One that was asked for then, and ended a second later."""
    return sandbox(**{"state": State.STOPPED, "created_at": moment(at_s), "ended_at": moment(at_s + 1), "exit_reason": "killed", **changes})


def snapshot(at_s: float = 0, **changes: Any) -> SnapshotRecord:  # noqa: ANN401
    """A snapshot that was asked for then, and is ready."""
    node = changes.pop("node", NODE)
    values = {"owner": ALICE, "name": None, "kind": SnapshotKind.MEMORY, "spec": SandboxSpec(id=new_sandbox_id(node)), "ready": True, **changes}
    return SnapshotRecord(**{"id": new_snapshot_id(node), "node": node, "created_at": moment(at_s), **values})


def key(name: str, **changes: Any) -> KeyRecord:  # noqa: ANN401
    """A key of that name."""
    values = {"id": OwnerId(secrets.token_hex(6)), "sha256": secrets.token_hex(32), "operator": False, "quota": Quota(), "created_at": BEGINNING}
    return KeyRecord(name=name, **{**values, **changes})


def file(at_s: float = 0, **changes: Any) -> FileRecord:  # noqa: ANN401
    """A file that was uploaded then."""
    values = {"id": new_file_id(), "owner": ALICE, "filename": "data.csv", "media_type": "text/csv", "size_bytes": 1 << 40, "sha256": "ab" * 32}
    return FileRecord(**{**values, "created_at": moment(at_s), **changes})


def execution(at_s: float = 0, **changes: Any) -> ExecutionRecord:  # noqa: ANN401
    """A run that was begun then."""
    values = {"id": ExecutionId(new_process_id()), "owner": ALICE, "sandbox": SandboxId("sb-node-aaaaaaaaaaaaaaaa"), "kind": "code"}
    return ExecutionRecord(**{**values, "created_at": moment(at_s), "status": "ok", **changes})


def event(at_s: float = 0, **changes: Any) -> NewEvent:  # noqa: ANN401
    """Something that happened then."""
    return NewEvent(**{"type": "sandbox.created", "at": moment(at_s), "owner": ALICE, **changes})


def fresh_node() -> NodeId:
    """A node that nobody has."""
    return new_node_id()


async def every_event(store: Store, page: int = 1000) -> list[EventRecord]:
    """All of them, page by page."""
    found: list[EventRecord] = []
    while more := await store.events.page(owner=None, sandbox=None, after=found[-1].sequence if found else 0, limit=page):
        found += more
    return found
