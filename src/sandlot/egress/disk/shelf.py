"""The store on the disk: files that never change, named by what they hold, and small files that say what an index said.

Laws:
- A file that has its name is whole: it is written under another one in ``tmp/``, then renamed. What a killed process left there is swept.
- Any number of processes share a shelf. No lock is held while anything is waited for; whoever renames last wins, with the same bytes.
- What lies here takes no more than the bound. The longest unused goes first; what somebody reads or writes stays.
- Nothing here is needed: whoever removes it costs a download.

Layout::

    files/ab/sha256-abcd...     a verified file; the algorithm and digest that its index vouched for
    bodies/ab/abcd...           a document as it is served, by its SHA-256
    index/ab/abcd...            what is known of one index page, by the SHA-256 of its key; JSON
    tmp/                        being written; locked by flock(2) for as long as its writer lives

All of it blocks, and is called in threads.
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

from sandlot.egress.counters import Counters
from sandlot.egress.disk.eviction import Kept, plan
from sandlot.egress.disk.opened import Draft, Opened
from sandlot.model.errors import ErrorCode, HostError

BLOCK_BYTES = 512
"""What stat(2) counts in, whatever the file system."""
PAGE_BYTES = 4096
"""What the smallest file takes of a disk."""
RESERVE_BYTES = 64 * 1024 * 1024
"""Free space that is left to the disk's other users; a twentieth of a small disk."""
_PRIVATE = 0o700
_TOUCH_S = 60.0
"""A use is noted that often: one write to a file's times is as dear as reading it."""
_YOUNG_S = 60.0
"""A file in tmp/ may be that old before its writer has locked it."""
_SCAN_S = 10.0
"""How long the count of what other processes added is believed."""
_FULL_S = 1.0
"""How long it is believed that nothing more can go: a full shelf or disk must not be counted anew for everybody who asks."""

_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """The folders."""

    FILES = "files"
    BODIES = "bodies"
    INDEX = "index"


class Shelf:
    """One shelf.

    Args:
        folder: Where; made where it is missing.
        max_bytes: What it may take of the disk.
        counters: Where evictions are counted.
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

    def prepare(self) -> None:
        """Make the folders, and sweep what dead writers left.

        Raises:
            HostError: It cannot be written.
        """
        try:
            for folder in (self._folder, self._tmp, *(self._folder / kind for kind in Kind)):
                folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self.sweep()
        except OSError as error:
            raise HostError(
                f"The package cache {self._folder} cannot be written: {error.strerror}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Make it writable, or set SANDLOT_CACHE_DIR to another folder.",
            ) from error

    def open(self, kind: Kind, name: str) -> Opened | None:
        """A file, noted as used; None if it is not there."""
        try:
            opened = Opened(os.open(self._path(kind, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):
            fcntl.flock(opened.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if abs(time.time() - opened.modified_s) > _TOUCH_S:
                os.utime(opened.descriptor)
        return opened

    def read(self, kind: Kind, name: str) -> bytes | None:
        """A small file, noted as used; None if it is not there."""
        opened = self.open(kind, name)
        if opened is None:
            return None
        try:
            return opened.read(opened.size_bytes, 0)
        finally:
            opened.close()

    def put(self, kind: Kind, name: str, data: bytes) -> bool:
        """Keep some bytes under a name, in place of what had it. False where there is no room."""
        draft = None
        try:
            draft = self.draft()
            if not self.make_room(draft, len(data)):
                return False
            draft.write(data)
            self.keep(draft, kind, name, durable=False)
        except OSError as error:
            _log.warning("the package cache keeps nothing: %s", error.strerror)
            return False
        finally:
            if draft is not None:
                draft.close()
        return True

    def remove(self, kind: Kind, name: str) -> None:
        """Drop a file. Idempotent; who reads it reads it to the end."""
        self._path(kind, name).unlink(missing_ok=True)

    def draft(self) -> Draft:
        """A new file to write.

        Raises:
            OSError: The disk is full, or broken.
        """
        return Draft(self._tmp)

    def keep(self, draft: Draft, kind: Kind, name: str, *, durable: bool = True) -> None:
        """Give a draft its name; it stays open.

        Args:
            draft: It, written to its end.
            kind: Of what it is.
            name: Its name.
            durable: Whether it has to be on the disk first: a name that is a promise must not outlive its bytes when the power fails.

        Raises:
            OSError: The disk is full, or broken.
        """
        path = self._path(kind, name)
        draft.finish(durable=durable)
        try:
            draft.path.rename(path)
        except FileNotFoundError:
            path.parent.mkdir(mode=_PRIVATE, exist_ok=True)
            draft.path.rename(path)
        draft.kept = True

    def make_room(self, draft: Draft, need_bytes: int, whole_bytes: int = 0) -> bool:
        """Give a draft so much more of the disk; what was longest unused goes for it.

        Args:
            draft: Who needs it.
            need_bytes: How much.
            whole_bytes: How much it will be in the end, as far as that is known: for what can never be whole here nothing goes.

        Returns:
            False where it cannot be had: it is more than the shelf may hold, or what there is is in use, or the disk is full.
        """
        need_bytes = -(-need_bytes // PAGE_BYTES) * PAGE_BYTES
        if max(need_bytes, whole_bytes) > self._max_bytes:
            return False
        with self._making_room:
            self._total_bytes += need_bytes
            given = self._is_room(need_bytes)
            try:
                if given:
                    draft.allocate(need_bytes)
            except OSError as error:
                _log.warning("the package cache gets no room on its disk: %s", error.strerror)
                given = False
            if not given:
                self._total_bytes -= need_bytes
            return given

    def _is_room(self, need_bytes: int) -> bool:
        """Whether there is room for what has been counted already, after what can go has gone. Called with the lock."""
        short_bytes, now_s = self._shortage(need_bytes), time.monotonic()
        over = bool(short_bytes) or self._total_bytes > self._max_bytes
        if over and now_s - self._full_s < _FULL_S:
            return False
        if over or now_s - self._scanned_s > _SCAN_S:
            self._evict(need_bytes, short_bytes)
            if self._total_bytes > self._max_bytes or self._shortage(need_bytes):
                self._full_s = time.monotonic()
                return False
        return True

    def sweep(self) -> int:
        """Remove what dead writers left; how many."""
        swept = 0
        for entry in os.scandir(self._tmp):
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _YOUNG_S:
                    continue
                if self._unlink_unused(Path(entry.path)):
                    swept += 1
        return swept

    def total_bytes(self) -> int:
        """What everything here takes of the disk now, drafts included."""
        return sum(each.size_bytes for each in self._scan()) + self._drafts_bytes()

    def _path(self, kind: Kind, name: str) -> Path:
        return self._folder / kind / name.rpartition("-")[2][:2] / name

    def _evict(self, need_bytes: int, short_bytes: int) -> None:
        """Remove what has to go, and count anew. Called with the lock."""
        self.sweep()
        kept, drafts = self._scan(), self._drafts_bytes()
        total = sum(each.size_bytes for each in kept)
        bound = min(self._max_bytes - drafts, total + need_bytes - short_bytes if short_bytes else self._max_bytes)
        excess_bytes, order = plan(kept, max_bytes=max(bound, 0), need_bytes=need_bytes)
        for each in order:
            if excess_bytes <= 0:
                break
            with contextlib.suppress(OSError):
                if self._unlink_unused(each.path):
                    total -= each.size_bytes
                    excess_bytes -= each.size_bytes
                    self._counters.evictions += 1
        self._total_bytes = total + drafts + need_bytes
        self._scanned_s = time.monotonic()

    def _shortage(self, need_bytes: int) -> int:
        found = os.statvfs(self._folder)
        reserve = min(RESERVE_BYTES, found.f_blocks * found.f_frsize // 20)
        return max(0, need_bytes + reserve - found.f_bavail * found.f_frsize)

    def _scan(self) -> list[Kept]:
        return [Kept(Path(entry.path), found.st_blocks * BLOCK_BYTES, found.st_mtime) for kind in Kind for entry, found in _walk(self._folder / kind)]

    def _drafts_bytes(self) -> int:
        return sum(found.st_blocks * BLOCK_BYTES for _, found in _walk(self._tmp))

    @staticmethod
    def _unlink_unused(path: Path) -> bool:
        """Remove a file unless somebody has it open, who holds a lock then. Whether it is gone."""
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
    """Every file in a folder and its folders, as far as they are still there."""
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
