"""Reservation of an owner's quota and of the node's disk space for a file that is being stored.

Invariants:
- Files that are being stored count in the quotas ``stored_files`` and ``stored_file_bytes`` before their first byte is written, so that uploads at
  the same time cannot exceed a quota together. A file counts twice for a moment when its record has been committed; this never exceeds a quota.
- The store is read only if the quota could be exceeded. What was in use at the last read and all that was granted since is the most that can be in
  use.
- No byte is written without a reservation in the ledger of the node (:mod:`sandlot.core.resources.reservations`). A file of unknown size is reserved
  in steps of ``STEP_BYTES``, each before it is written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from sandlot.core.access.quotas import check_stored
from sandlot.core.ports import Clock
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations
from sandlot.model.access import OwnerId, Quota
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, UnavailableError
from sandlot.model.ports import Resources
from sandlot.model.repositories import FileRepository, Stored
from sandlot.model.specs import KIB, MIB

STEP_BYTES: Final = 8 * MIB
"""Bytes by which the reservation of a file grows. The parts that are still being written take 3 MiB at most (``store/blobs.py``)."""
READ_INTERVAL_S: Final = 10.0
"""Seconds for which a read of the store is used. Files of other nodes that share the database are seen with this delay."""
FORM_BYTES: Final = 64 * KIB
"""Bytes by which the announced size of a form may exceed the size of the file in it. They count in a quota only if the file really has them."""


_NONE: Final = Stored(0, 0)


@dataclass(slots=True)
class _Use:
    """Use of an owner's quota on this node.

    Args:
        files: Number of files that are being stored.
        bytes: Bytes that are granted to these files.
        granted: All that was ever granted. Only grows.
        seen: Use of the quota when the store was last read, with the files that were being stored; None: the store was not read yet.
        seen_granted: Value of ``granted`` at this time.
        seen_monotonic_s: Time of the read.
    """

    files: int = 0
    bytes: int = 0
    granted: Stored = _NONE
    seen: Stored | None = None
    seen_granted: Stored = _NONE
    seen_monotonic_s: float = 0.0

    def grant(self, more: Stored) -> None:
        """Count a new file, or more bytes of a file."""
        self.granted = Stored(self.granted.rows + more.rows, self.granted.bytes + more.bytes)

    def most(self, now_monotonic_s: float) -> Stored | None:
        """Return the most that can be in use now, without a read of the store. None: the last read is too old."""
        if self.seen is None or now_monotonic_s - self.seen_monotonic_s > READ_INTERVAL_S:
            return None
        since = Stored(self.granted.rows - self.seen_granted.rows, self.granted.bytes - self.seen_granted.bytes)
        return Stored(self.seen.rows + since.rows, self.seen.bytes + since.bytes)


class FileSpaces:
    """Spaces of all files that are being stored on this node."""

    def __init__(self, records: FileRepository, reservations: Reservations, clock: Clock) -> None:
        self.records = records
        self.reservations = reservations
        self.clock = clock
        self.uses: defaultdict[OwnerId, _Use] = defaultdict(_Use)

    def open(self, owner: OwnerId, quota: Quota) -> FileSpace:
        """Return the space of one file, for which nothing is reserved yet. The caller releases the space."""
        return FileSpace(self, owner, quota)


class FileSpace:
    """Quota and disk space of one file. The owner of the space releases it.

    Args:
        quota: Quota of the caller, so that an operator may exceed the quota of the owner.

    Attributes:
        granted_bytes: Size up to which the file may be written.
    """

    __slots__ = ("_is_open", "_owner", "_quota", "_reservation", "_spaces", "granted_bytes")

    def __init__(self, spaces: FileSpaces, owner: OwnerId, quota: Quota) -> None:
        self._spaces = spaces
        self._owner = owner
        self._quota = quota
        self._reservation: Reservation | None = None
        self._is_open = True
        self.granted_bytes = 0
        spaces.uses[owner].files += 1

    async def begin(self, announced_bytes: int | None) -> None:
        """Reserve the quota and the disk space of the file before its first byte is written.

        Args:
            announced_bytes: Size of the file, or of the form with the file. None: unknown.

        Raises:
            LimitError: A quota is exceeded (``quota_exceeded``), or the node has no disk space for the file (``node_disk_full``).
        """
        if announced_bytes is None:
            await self._grow(STEP_BYTES, 0, is_new=True)
        else:
            await self._grow(announced_bytes, max(0, announced_bytes - FORM_BYTES), is_new=True)

    async def extend(self, size_bytes: int) -> None:
        """Reserve more for a file that becomes larger than ``granted_bytes``.

        Args:
            size_bytes: Size of the file after the next write.

        Raises:
            LimitError: As for :meth:`begin`.
        """
        if self._reservation is not None:
            self._reservation.settle(self._reservation.amount.disk_bytes - STEP_BYTES)  # the last step may still be on its way to the disk
        needed_bytes = size_bytes - self.granted_bytes
        await self._grow(max(STEP_BYTES, needed_bytes), needed_bytes, is_new=False)

    def release(self, written_bytes: int = 0) -> None:
        """Give back the quota and the disk space, when the record of the file is committed or its content is removed. Idempotent.

        Args:
            written_bytes: Bytes of the file that stay on the disk.
        """
        if not self._is_open:
            return
        self._is_open = False
        use = self._spaces.uses[self._owner]
        use.files -= 1
        use.bytes -= self.granted_bytes
        if self._reservation is not None:
            self._reservation.settle(written_bytes)
            self._reservation.release()

    async def _grow(self, wanted_bytes: int, needed_bytes: int, *, is_new: bool) -> None:
        """Grant as many of the wanted bytes as the quota allows, at least the needed ones."""
        use, quota, now_monotonic_s = self._spaces.uses[self._owner], self._quota, self._spaces.clock.monotonic_s()
        others, granted_before, most = Stored(use.files - int(is_new), use.bytes), use.granted, use.most(now_monotonic_s)
        # Counted before the store is read: another upload that begins meanwhile counts these bytes.
        use.bytes += wanted_bytes
        use.grant(Stored(int(is_new), wanted_bytes))
        self.granted_bytes += wanted_bytes
        if not _fits(quota, most, wanted_bytes):
            files, size_bytes = await self._spaces.records.totals(self._owner)
            used = Stored(files + others.rows, size_bytes + others.bytes)
            use.seen, use.seen_granted, use.seen_monotonic_s = used, granted_before, now_monotonic_s
            check_stored(quota, "stored_file", used.rows if is_new else 0, used.bytes, needed_bytes)
            if quota.stored_file_bytes is not None:
                surplus_bytes = max(0, used.bytes + wanted_bytes - quota.stored_file_bytes)
                use.bytes -= surplus_bytes
                self.granted_bytes -= surplus_bytes
                wanted_bytes -= surplus_bytes
        await self._reserve_disk(max(1, wanted_bytes))

    async def _reserve_disk(self, disk_bytes: int) -> None:
        reservations, amount = self._spaces.reservations, Resources(memory_bytes=0, disk_bytes=disk_bytes, pids=0)
        try:
            reading = await reservations.make_room(amount)
            if self._reservation is None:
                self._reservation = reservations.reserve(Purpose.FILE, amount, reading, owner=self._owner)
            else:
                self._reservation.grow(amount, reading)
        except (InvalidRequestError, UnavailableError) as error:
            raise LimitError(
                f"The file cannot be stored. {error.message}",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Delete files or sandboxes that are no longer needed, or retry later.",
                fields={name: error.fields[name] for name in ("needed", "free") if name in error.fields},
            ) from error


def _fits(quota: Quota, most: Stored | None, wanted_bytes: int) -> bool:
    """Return whether a quota certainly has room for one more file of a size. ``most`` is the most that can be in use; None: unknown."""
    if quota.stored_files is None and quota.stored_file_bytes is None:
        return True
    if most is None:
        return False
    has_files = quota.stored_files is None or most.rows < quota.stored_files
    return has_files and (quota.stored_file_bytes is None or most.bytes + wanted_bytes <= quota.stored_file_bytes)
