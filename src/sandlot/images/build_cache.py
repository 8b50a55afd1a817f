"""Build results of one kind in the image cache. Each result has a folder named by its key and never changes.

Invariants, beside those of :mod:`sandlot.host.locked_folder`:
- A key is built once: a second builder waits for the first and uses its result.
- Only root can read the folders: images contain files of uid 1000, which may be a user of the host.

The kinds share two folders of the cache: ``tmp/`` for incomplete builds, and ``locks/`` with one lock for each key.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot.host import durable, locked_folder
from sandlot.host.locked_folder import LockedFolder
from sandlot.model.errors import ErrorCode, HostError, LimitError

KEY = re.compile(r"[0-9a-f]{64}")

Build = Callable[[Path, int], None]
"""Fills an empty folder. The second argument is the descriptor of its lock; commands that write into the folder inherit it."""


class BuildCache:
    """All results of one kind.

    Args:
        cache: The cache directory; created when it is needed.
        kind: Name of the kind and of its folder.
    """

    __slots__ = ("_cache", "_folder", "kind")

    def __init__(self, cache: Path, kind: str) -> None:
        self._cache = cache
        self.kind = kind
        self._folder = cache / kind

    def find(self, key: str) -> Path | None:
        """Return the folder of a key, or None if it has not been built."""
        folder = self._folder / key
        return folder if folder.is_dir() else None

    def keys(self) -> list[str]:
        """Return the keys of all results, sorted."""
        return sorted(folder.name for folder in self._folder.iterdir() if KEY.fullmatch(folder.name)) if self._folder.is_dir() else []

    def ensure(self, key: str, build: Build, waiting: Callable[[], None]) -> Path:
        """Return the folder of a key. Build it first if it does not exist.

        Args:
            key: SHA-256 in hexadecimal.
            build: Fills the folder. May write scratch files beside it.
            waiting: Called once before waiting for another builder of the same key.

        Raises:
            HostError: The cache cannot be written.
            LimitError: The disk is full.
        """
        with _translated_errors(self._cache):
            found = self.find(key)
            if found is not None:
                return found
            self._make_folders()
            with self._lock(key, waiting):
                found = self.find(key)
                if found is not None:
                    return found
                self.sweep()
                with LockedFolder(self._cache / "tmp", prefix=f"{self.kind}-") as temporary:
                    build(temporary.content, temporary.descriptor)
                    durable.sync_file_system(temporary.content)
                    temporary.publish(self._folder / key)
        return self._folder / key

    def remove(self, key: str) -> bool:
        """Remove the folder of a key: first its name, then its files. Return False if there is none."""
        if self.find(key) is None:
            return False
        self._make_folders()
        with self._lock(key, lambda: None):
            try:
                locked_folder.discard(self._folder / key, self._cache / "tmp")
            except FileNotFoundError:
                return False
        return True

    def sweep(self) -> int:
        """Remove incomplete builds of all kinds whose builders died. Return the number of removed folders."""
        return locked_folder.sweep(self._cache / "tmp")

    def _make_folders(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, self._cache / "locks"):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def _lock(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        file = self._cache / "locks" / f"{self.kind}-{key}"
        descriptor = locked_folder.try_lock_file(file)
        if descriptor is None:
            waiting()
            descriptor = locked_folder.lock_file(file)
        try:
            yield
        finally:
            os.close(descriptor)


@contextmanager
def _translated_errors(cache: Path) -> Iterator[None]:
    """Turn errors of the operating system into errors with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LimitError(
                f"The disk of {cache} is full.", code=ErrorCode.DISK_FULL, hint="Free space, or set SANDLOT_CACHE_DIR to a folder on another disk."
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise HostError(
                f"{cache} cannot be written: {error.strerror}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Run as root, or set SANDLOT_CACHE_DIR to a folder that you can write to.",
            ) from error
        raise
