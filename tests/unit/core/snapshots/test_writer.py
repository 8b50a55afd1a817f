"""Size limits of snapshots, and errors that a full disk causes."""

from __future__ import annotations

import errno

import pytest

from sandlot.core.snapshots import writer
from sandlot.model.errors import ErrorCode, HostError, LimitError, SandlotError
from sandlot.model.ports import Usage
from sandlot.model.specs import SnapshotKind

USAGE = Usage(cpu_s=1.0, memory_bytes=100, memory_peak_bytes=1000, pids=3, disk_bytes=10)


@pytest.mark.parametrize(
    "usage, kind, expected",
    [(USAGE, SnapshotKind.MEMORY, 110), (USAGE, SnapshotKind.FILES, 10), (None, SnapshotKind.MEMORY, 0)],
)
def test_snapshot_takes_at_most_what_the_sandbox_uses(usage: Usage | None, kind: SnapshotKind, expected: int) -> None:
    assert writer.max_size_bytes(usage, kind) == expected


def caused(error: SandlotError, cause: Exception) -> SandlotError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, full",
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (HostError("The runtime failed: write pages.img: no space left on device"), True),
        (HostError("The runtime failed."), False),
        (caused(HostError("The host failed."), RuntimeError("statefile error: no space left on device")), True),
        (caused(HostError("The host failed."), OSError(errno.ENOSPC, "No space left on device")), True),
        (LimitError("full", code=ErrorCode.NODE_DISK_FULL), True),
    ],
)
def test_full_disk_is_recognized(error: Exception, full: bool) -> None:  # noqa: FBT001 - a parameter
    assert writer.is_full(error) is full


def test_full_disk_is_reported_as_such() -> None:
    with pytest.raises(LimitError) as error, writer.explain_full_disk():
        raise HostError("no space left on device")
    assert (error.value.code, error.value.status) == (ErrorCode.NODE_DISK_FULL, 507)
    assert error.value.hint
