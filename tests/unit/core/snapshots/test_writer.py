"""How much disk is promised for what is written of a sandbox, and how a full disk is told from other failures."""

from __future__ import annotations

import errno

import pytest

from sandlot.core.snapshots import writer
from sandlot.model.errors import ErrorCode, HostError, LimitError, SandlotError
from sandlot.model.ports import Usage
from sandlot.model.specs import SnapshotKind

USED = Usage(cpu_s=1.0, memory_bytes=100, memory_peak_bytes=1000, pids=3, disk_bytes=10)


@pytest.mark.parametrize(
    "usage, kind, most",
    [(USED, SnapshotKind.MEMORY, 110), (USED, SnapshotKind.FILES, 10), (None, SnapshotKind.MEMORY, 0)],
)
def test_what_is_written_is_no_more_than_what_is_used(usage: Usage | None, kind: SnapshotKind, most: int) -> None:
    assert writer.most_bytes(usage, kind) == most


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
        (LimitError("full", code=ErrorCode.DISK_FULL), True),
    ],
)
def test_a_full_disk_is_told_from_other_failures(error: Exception, full: bool) -> None:  # noqa: FBT001 - a table's column
    assert writer.is_full(error) is full


def test_a_full_disk_is_said_in_words() -> None:
    with pytest.raises(LimitError) as told, writer.explained():
        raise HostError("no space left on device")
    assert (told.value.code, told.value.status) == (ErrorCode.DISK_FULL, 507)
    assert told.value.hint
