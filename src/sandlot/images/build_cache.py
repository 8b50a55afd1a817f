"""Cache of build results of one kind, such as images. Each result is a folder that is named by its key. Only :meth:`BuildCache.rebuild` replaces one.

Invariants, in addition to those of :mod:`sandlot.host.locked_folder`:
- Each key is built once. If another process is building the key already, this process waits for it and uses its result.
- Only root can read the folders, because images contain files of uid 1000, which may be the uid of a user of the host.

All kinds use the same folders ``tmp/``, for incomplete builds, and ``locks/``, with one lock file for each kind and key.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.host import durable, locked_folder
from sandlot.host.free_space import FreeSpace
from sandlot.host.locked_folder import LockedFolder
from sandlot.model.errors import ErrorCode, HostError, LimitError

KEY = re.compile(r"[0-9a-f]{64}")

Build = Callable[[Path, int], None]
"""Fills the empty folder in the first argument. The second argument is the descriptor of the folder's lock.

Commands that write into the folder must inherit the descriptor, so that the folder stays locked until all of them have ended.
"""


class BuildCache:
    """Cache of the build results of one kind.

    Args:
        cache: The cache directory. The first build creates it if it does not exist.
        kind: Name of the kind, such as ``images``. The folder with the results in the cache directory has this name.
        space: Free space of the disk of the cache directory. No build begins while no more than the reserve is free.
    """

    __slots__ = ("_cache", "_folder", "_space", "kind")

    def __init__(self, cache: Path, kind: str, space: FreeSpace) -> None:
        self._cache = cache
        self._space = space
        self.kind = kind
        self._folder = cache / kind

    def find(self, key: str) -> Path | None:
        """Return the folder of the build result with a key, or None if there is no such result."""
        folder = self._folder / key
        return folder if folder.is_dir() else None

    def keys(self) -> list[str]:
        """Return the keys of all results of this kind, sorted."""
        return sorted(folder.name for folder in self._folder.iterdir() if KEY.fullmatch(folder.name)) if self._folder.is_dir() else []

    def ensure(self, key: str, build: Build, waiting: Callable[[], None]) -> Path:
        """Return the folder of the build result with a key. Build the result first if it does not exist.

        Args:
            key: Key of the build: a SHA-256 in hexadecimal.
            build: Function that fills an empty folder with the result. It may write temporary files into the parent folder.
            waiting: Function that is called if this call must wait for another process that is building the same key.

        Raises:
            HostError: The cache directory is not writable.
            LimitError: The disk of the cache directory is full, or no more than the reserve is free.
        """
        with translated_errors(self._cache):
            found = self.find(key)
            if found is not None:
                return found
            self._make_folders()
            with self._lock(key, waiting):
                found = self.find(key)
                if found is not None:
                    return found
                self._build(key, build)
        return self._folder / key

    def rebuild(self, key: str, build: Build, waiting: Callable[[], None]) -> Path:
        """Build the result with a key again. The new result replaces the present one once it is complete. Arguments and errors as for :meth:`ensure`.

        Paths into the old result become invalid; files that were linked from it stay.
        """
        with translated_errors(self._cache):
            self._make_folders()
            with self._lock(key, waiting):
                self._build(key, build)
        return self._folder / key

    def _build(self, key: str, build: Build) -> None:
        self.sweep()
        self._space.check()
        with LockedFolder(self._cache / "tmp", prefix=f"{self.kind}-") as temporary:
            build(temporary.content, temporary.descriptor)
            durable.sync_file_system(temporary.content)
            # Between the two renames, another process that looks for the result waits for the lock.
            with suppress(FileNotFoundError):
                (self._folder / key).rename(self._cache / "tmp" / f"old-{key}-{secrets.token_hex(4)}")
            temporary.publish(self._folder / key)
        self.sweep()

    def remove(self, key: str) -> bool:
        """Remove the build result with a key. Return False if there is no such result.

        The folder is moved away before its files are removed, so that no process finds an incomplete result.
        """
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
        """Remove incomplete builds, of all kinds, that dead processes left behind. Return the number of removed folders."""
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
def translated_errors(cache: Path) -> Iterator[None]:
    """Translate OSErrors that report a full disk or missing permissions into Sandlot's errors, with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LimitError(
                f"The disk of the image cache {cache} is full.",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Free space, or set SANDLOT_CACHE_DIR to a folder on another disk.",
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise HostError(
                f"The image cache {cache} cannot be written: {error.strerror}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Run as root, or set SANDLOT_CACHE_DIR to a folder that you can write to.",
            ) from error
        raise
