"""What the service says about sandboxes and files, parsed."""

from __future__ import annotations

from datetime import UTC, datetime

from sandlot.model.specs import MIB, Limits
from sandlot.sdk.info import Entry, SandboxInfo, Usage


def test_a_sandbox() -> None:
    info = SandboxInfo.parse(
        {
            "id": "sb-abcd-abcdefghijklmnop",
            "state": "stopped",
            "template": "base",
            "name": None,
            "metadata": {"a": "b"},
            "isolation": "gvisor",
            "network": "none",
            "limits": {"cpus": 2, "memory_bytes": 512 * MIB, "disk_bytes": 64 * MIB, "pids": 100, "of a later version": 1},
            "timeout": 300,
            "created_at": "2026-11-21T10:00:00Z",
            "expires_at": "2026-11-21T10:05:00+00:00",
            "exit": {"reason": "oom", "detail": "memory"},
        }
    )
    assert info.limits == Limits(cpus=2, memory_bytes=512 * MIB, disk_bytes=64 * MIB, pids=100)
    assert info.created_at == datetime(2026, 11, 21, 10, tzinfo=UTC)
    assert (info.exit_reason, info.exit_detail, info.metadata, info.name) == ("oom", "memory", {"a": "b"}, None)


def test_a_sandbox_of_another_version() -> None:
    assert SandboxInfo.parse({"id": "x", "state": "running", "shape": "round"}).limits == Limits()


def test_usage() -> None:
    raw = {"cpu_s": 1, "memory_bytes": 2, "memory_peak_bytes": 3, "disk_bytes": 4, "pids": None, "host_tasks": 5, "limits": {"pids": 100}, "gpu_s": 9}
    used = Usage.parse(raw)
    assert used == Usage(1.0, 2, 3, 4, None, 5, Limits(pids=100))
    assert Usage.parse({**raw, "pids": 7}).pids == 7


def test_an_entry() -> None:
    entry = Entry.parse({"name": "a", "path": "/a", "kind": "directory", "modified_at": None})
    assert entry.is_dir
    assert entry.modified_at is None
    assert not Entry.parse({"name": "a", "path": "/a", "kind": "symlink", "target": "b"}).is_dir
