"""The package store: verified files, index pages and records of index pages on disk, within a size limit.

Invariants:
- A file in its final folder is complete: it was written in ``tmp/`` and then renamed. ``sweep`` removes the incomplete files of killed processes.
- Any number of processes may share a store. If two processes write the same file, the file that is renamed last replaces the other.
- The store never uses more disk space than its limit, and leaves the disk space free that others have reserved. The least recently used files are
  removed first. Files that are being read or written are not removed.
- Every file can be downloaded again. The store may be removed at any time.

Layout::

    files/ab/sha256-abcd...     a verified file, named by the digest in its index
    urls/ab/abcd...             a file that its client verifies, named by the SHA-256 of its URL
    pages/ab/abcd...            an index page as it is served, named by its SHA-256
    records/ab/abcd...          the record of an index page, named by the SHA-256 of its key; JSON
    tmp/                        incomplete files, each locked with flock(2) while its writer lives

Files in use are locked with flock(2) and are not removed. :mod:`sandlot.host.locked_folder` cannot be used here: it publishes whole folders, and the
store publishes and removes single files.

All methods but ``read_disk`` block. Call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.store.eviction import StoredFile, plan_eviction
from sandlot.egress.packages.store.open_files import DraftFile, OpenFile
from sandlot.model.errors import ErrorCode, HostError

BLOCK_BYTES = 512
"""Bytes in one unit of ``st_blocks`` (stat(2)), the same on every file system."""
PAGE_BYTES = 4096
"""Smallest unit in which disk space is allocated."""
RESERVE_BYTES = 64 * 1024 * 1024
"""Disk space that the store leaves free for other programs. On disks smaller than 1.25 GiB, a twentieth of the disk is left free."""
_PRIVATE = 0o700
_TOUCH_S = 60.0
"""Seconds after a recorded use of a file during which no other use is recorded, because recording a use takes as long as reading the file."""
_YOUNG_S = 60.0
"""Age in seconds below which `sweep` keeps a file in ``tmp/``: its writer may not have locked it yet."""
_SCAN_S = 10.0
"""Seconds after which the size of the store is measured again, because other processes may have added files."""
_FULL_S = 1.0
"""Seconds after a failed eviction in which new files are refused at once, so that not every request lists all files of a full store."""

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """Kind of a stored file. The value is the name of the folder that contains all files of this kind."""

    FILES = "files"
    URLS = "urls"
    PAGES = "pages"
    RECORDS = "records"


class SharedDisk(Protocol):
    """Disk that the store shares with others."""

    async def disk_to_leave(self) -> int:
        """Return the free disk space in bytes that the store must leave.

        Raises:
            HostError: The disk cannot be read.
        """
        ...


class PackageStore:
    """Store of downloaded files and index pages in one folder.

    Args:
        folder: Folder of the store. :meth:`prepare` creates it if it does not exist.
        max_bytes: Maximum disk space of the folder.
        counters: Counters of the package cache. The store updates the number of evictions.
    """

    def __init__(self, folder: Path, max_bytes: int, counters: Counters) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._counters = counters
        self._tmp = folder / "tmp"
        self._making_room = threading.Lock()
        self._total_bytes = 0
        self._scanned_s = float("-inf")
        self._full_s = float("-inf")
        self._disk: SharedDisk | None = None
        self._leave_bytes = 0

    def share_disk(self, disk: SharedDisk) -> None:
        """Leave disk space free that others have reserved, as read by :meth:`read_disk`. ``RESERVE_BYTES`` are left free in any case."""
        self._disk = disk

    async def read_disk(self) -> None:
        """Read how much disk space others have reserved. If it cannot be read, the last value stays. The only method that does not block."""
        if self._disk is not None:
            with contextlib.suppress(HostError):
                self._leave_bytes = await self._disk.disk_to_leave()

    def prepare(self) -> None:
        """Create the store's folders and remove incomplete files that killed processes left.

        Raises:
            HostError: The folder of the store is not writable.
        """
        try:
            for folder in (self._folder, self._tmp, *(self._folder / kind for kind in Kind)):
                folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self.sweep()
        except OSError as error:
            raise HostError(
                f"The package cache {self._folder} cannot be written: {error.strerror}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Make the folder writable, or set SANDLOT_CACHE_DIR to another folder.",
            ) from error

    def open(self, kind: Kind, name: str) -> OpenFile | None:
        """Open a stored file for reading and record its use. Return None if there is no such file.

        Args:
            kind: Kind of the file.
            name: Name of the file, unique among the files of its kind.
        """
        try:
            opened = OpenFile(os.open(self._path(kind, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):
            fcntl.flock(opened.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if abs(time.time() - opened.modified_s) > _TOUCH_S:
                os.utime(opened.descriptor)
        return opened

    def read(self, kind: Kind, name: str) -> bytes | None:
        """Return the whole content of a stored file and record its use. Return None if there is no such file.

        Args:
            kind: Kind of the file.
            name: Name of the file, unique among the files of its kind.
        """
        opened = self.open(kind, name)
        if opened is None:
            return None
        try:
            return opened.read(opened.size_bytes, 0)
        finally:
            opened.close()

    def put(self, kind: Kind, name: str, data: bytes, *, durable: bool = False) -> bool:
        """Store ``data`` as a file, replacing an existing file of that name. Return False if the disk space does not suffice or the disk failed.

        Args:
            kind: Kind of the file.
            name: Name of the file, unique among the files of its kind.
            data: Content.
            durable: As for :meth:`publish`.
        """
        draft = None
        try:
            draft = self.create_draft()
            if not self.make_room(draft, len(data)):
                return False
            draft.write(data)
            self.publish(draft, kind, name, durable=durable)
        except OSError as error:
            _log.warning("the package cache cannot store a document: %s", error.strerror)
            return False
        finally:
            if draft is not None:
                draft.close()
        return True

    def remove(self, kind: Kind, name: str) -> None:
        """Remove a stored file. Readers that have the file open can still read it. Idempotent."""
        self._path(kind, name).unlink(missing_ok=True)

    def create_draft(self) -> DraftFile:
        """Create an empty file in ``tmp/``, to be written and published. The caller must close it.

        Raises:
            OSError: The disk is full or failed.
        """
        return DraftFile(self._tmp)

    def publish(self, draft: DraftFile, kind: Kind, name: str, *, durable: bool = True) -> None:
        """Move a completely written file from ``tmp/`` to its final name. The file stays open.

        Args:
            draft: The written file.
            kind: Kind of the file.
            name: Name of the file, unique among the files of its kind.
            durable: True: wait until the data is on disk before the file gets its name. Required for files whose readers do not verify the
                content: after a power failure, the name must not exist without the data.

        Raises:
            OSError: The disk is full or failed.
        """
        path = self._path(kind, name)
        draft.finish(durable=durable)
        try:
            draft.path.rename(path)
        except FileNotFoundError:
            path.parent.mkdir(mode=_PRIVATE, exist_ok=True)
            draft.path.rename(path)
        draft.is_published = True

    def make_room(self, draft: DraftFile, needed_bytes: int, final_bytes: int = 0) -> bool:
        """Allocate disk space for a file that is being written. If the space does not suffice, remove the least recently used files of the store.

        Args:
            draft: The file that is being written.
            needed_bytes: Bytes to allocate, in addition to those allocated before.
            final_bytes: Size of the complete file in bytes; 0 if unknown. If it exceeds the limit of the store, no other file is removed.

        Returns:
            True if the space was allocated. False if the file exceeds the limit of the store, all other files are in use, or the disk is full.
        """
        needed_bytes = -(-needed_bytes // PAGE_BYTES) * PAGE_BYTES
        if max(needed_bytes, final_bytes) > self._max_bytes:
            return False
        with self._making_room:
            self._total_bytes += needed_bytes
            has_room = self._evict_if_needed(needed_bytes)
            try:
                if has_room:
                    draft.allocate(needed_bytes)
            except OSError as error:
                _log.warning("the package cache cannot allocate disk space: %s", error.strerror)
                has_room = False
            if not has_room:
                self._total_bytes -= needed_bytes
            return has_room

    def reclaim(self, wanted_bytes: int) -> int:
        """Remove the least recently used files to free disk space for others. Return the freed bytes. If all files are too few, remove none."""
        with self._making_room:
            files = self._scan()
            if sum(file.size_bytes for file in files) < wanted_bytes:
                return 0
            freed = 0
            for file in sorted(files, key=lambda file: file.used_s):
                if freed >= wanted_bytes:
                    break
                freed += self._remove_unused(file)
            self._total_bytes -= freed
            return freed

    def sweep(self) -> int:
        """Remove incomplete files that dead processes left in ``tmp/``. Return the number of removed files."""
        swept = 0
        for entry in os.scandir(self._tmp):
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _YOUNG_S:
                    continue
                if _unlink_unused(Path(entry.path)):
                    swept += 1
        return swept

    def total_bytes(self) -> int:
        """Return the disk space in bytes that the store uses now, including files that are being written."""
        return sum(file.size_bytes for file in self._scan()) + self._drafts_bytes()

    def _path(self, kind: Kind, name: str) -> Path:
        return self._folder / kind / name.rpartition("-")[2][:2] / name

    def _evict_if_needed(self, needed_bytes: int) -> bool:
        """Remove files if the store is over its limit or the disk is short of space. Return whether ``needed_bytes`` more can be allocated.

        The caller must hold ``_making_room`` and must have added ``needed_bytes`` to ``_total_bytes``.
        """
        short_bytes, now_s = self._shortage(needed_bytes), time.monotonic()
        is_over = bool(short_bytes) or self._total_bytes > self._max_bytes
        if is_over and now_s - self._full_s < _FULL_S:
            return False
        if is_over or now_s - self._scanned_s > _SCAN_S:
            self._evict(needed_bytes, short_bytes)
            if self._total_bytes > self._max_bytes or self._shortage(needed_bytes):
                self._full_s = time.monotonic()
                return False
        return True

    def _evict(self, needed_bytes: int, short_bytes: int) -> None:
        """Remove the least recently used files until there is room, and measure the size of the store again. The caller must hold ``_making_room``.

        Args:
            needed_bytes: Number of bytes that must fit in the store beside the remaining files.
            short_bytes: Number of bytes that must become free on the disk.
        """
        self.sweep()
        files, drafts = self._scan(), self._drafts_bytes()
        total = sum(file.size_bytes for file in files)
        limit = min(self._max_bytes - drafts, total + needed_bytes - short_bytes if short_bytes else self._max_bytes)
        excess_bytes, order = plan_eviction(files, max_bytes=max(limit, 0), needed_bytes=needed_bytes)
        for file in order:
            if excess_bytes <= 0:
                break
            removed = self._remove_unused(file)
            total -= removed
            excess_bytes -= removed
        self._total_bytes = total + drafts + needed_bytes
        self._scanned_s = time.monotonic()

    def _remove_unused(self, file: StoredFile) -> int:
        """Remove a file unless it is in use. Return the freed bytes."""
        with contextlib.suppress(OSError):
            if _unlink_unused(file.path):
                self._counters.evictions += 1
                return file.size_bytes
        return 0

    def _shortage(self, needed_bytes: int) -> int:
        """Return how many bytes must become free on the disk to allocate ``needed_bytes`` and leave the reserve free; 0 if enough are free now."""
        found = os.statvfs(self._folder)
        reserve = max(self._leave_bytes, min(RESERVE_BYTES, found.f_blocks * found.f_frsize // 20))
        return max(0, needed_bytes + reserve - found.f_bavail * found.f_frsize)

    def _scan(self) -> list[StoredFile]:
        return [
            StoredFile(Path(entry.path), found.st_blocks * BLOCK_BYTES, found.st_mtime)
            for kind in Kind
            for entry, found in _walk(self._folder / kind)
        ]

    def _drafts_bytes(self) -> int:
        return sum(found.st_blocks * BLOCK_BYTES for _, found in _walk(self._tmp))


def _unlink_unused(path: Path) -> bool:
    """Remove a file unless a reader or writer has locked it. Return whether this call removed the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.ENOENT}:
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def _walk(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield every file below a folder with its stat(2) result. Files that other processes remove meanwhile are left out."""
    folders = [str(folder)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry, entry.stat(follow_symlinks=False)
