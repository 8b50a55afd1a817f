"""A shelf of the cache: things built once, each in a folder named by its key, never changed afterwards.

Laws:
- A folder that has its name is complete: it was built under another name, synced, then renamed.
- Two builders of one key: the second waits for the first and takes what that made.
- A builder that died leaves nothing that is ever used; the next one sweeps it.
- Nobody but root looks in: images hold files of uid 1000, and that may be a person on the host.

Locks are flock(2) on ``locks/`` and on the temporary folders themselves; they go with their holder, however it dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot.host import durable
from sandlot.images import tree
from sandlot.model.errors import ErrorCode, HostError, LimitError

KEY = re.compile(r"[0-9a-f]{64}")

Build = Callable[[Path, int], None]
"""Fills a new, empty folder. The number is the descriptor that locks it: commands that write in it inherit it."""


class Shelf:
    """One kind of thing in a cache.

    Args:
        cache: The cache directory; made where it is missing.
        kind: The kind's name, which is its folder's.
    """

    __slots__ = ("_cache", "_folder", "kind")

    def __init__(self, cache: Path, kind: str) -> None:
        self._cache = cache
        self.kind = kind
        self._folder = cache / kind

    def find(self, key: str) -> Path | None:
        """The folder of a key, if it is there."""
        folder = self._folder / key
        return folder if folder.is_dir() else None

    def held(self) -> list[str]:
        """Every key that is there."""
        return sorted(folder.name for folder in self._folder.iterdir() if KEY.fullmatch(folder.name)) if self._folder.is_dir() else []

    def ensure(self, key: str, build: Build, waiting: Callable[[], None]) -> Path:
        """The folder of a key, built if it is not there.

        Args:
            key: SHA-256 in hexadecimal.
            build: Fills the folder.
            waiting: Called once if somebody else is building it, before waiting for that.

        Raises:
            HostError: The cache cannot be written.
            LimitError: The disk is full.
        """
        with _storage(self._cache):
            found = self.find(key)
            if found is not None:
                return found
            self._make_folders()
            with self._lock(key, waiting):
                found = self.find(key)
                if found is not None:
                    return found
                with self._temporary() as (temporary, descriptor):
                    fresh = temporary / "fresh"
                    fresh.mkdir(mode=0o755)
                    build(fresh, descriptor)
                    tree.sync(fresh)
                    durable.publish_folder(fresh, self._folder / key)
        return self._folder / key

    def remove(self, key: str) -> bool:
        """Remove a key's folder: gone at once, its files then. Whether it was there."""
        if self.find(key) is None:
            return False
        self._make_folders()
        with self._lock(key, lambda: None), self._temporary() as (temporary, _):
            try:
                (self._folder / key).rename(temporary / "old")
            except FileNotFoundError:
                return False
        return True

    def sweep(self) -> int:
        """Remove what dead builders left, of every kind; how many."""
        scratch = self._cache / "tmp"
        if not scratch.is_dir():
            return 0
        swept = 0
        with self._locked(self._cache / "locks" / "tmp"):
            for folder in scratch.iterdir():
                try:
                    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # its builder has just finished
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                else:
                    tree.remove(folder)
                    swept += 1
                finally:
                    os.close(descriptor)
        return swept

    def _make_folders(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, self._cache / "tmp", self._cache / "locks"):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[Path, int]]:
        """A folder on the cache's own file system, locked for as long as it is used and removed afterwards."""
        self.sweep()
        # Between its making and its locking a sweep would take it for a dead one's.
        with self._locked(self._cache / "locks" / "tmp"):
            folder = Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=self._cache / "tmp"))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield folder, descriptor
        finally:
            try:
                tree.remove(folder)
            finally:
                os.close(descriptor)

    @contextmanager
    def _lock(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        with self._locked(self._cache / "locks" / f"{self.kind}-{key}", waiting):
            yield

    @contextmanager
    def _locked(self, path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def _storage(cache: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LimitError(
                f"The disk of {cache} is full.", code=ErrorCode.DISK_FULL, hint="Make room, or set SANDLOT_CACHE_DIR to a folder on another disk."
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise HostError(
                f"{cache} cannot be written: {error.strerror}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Run as root, or set SANDLOT_CACHE_DIR to a folder of yours.",
            ) from error
        raise
