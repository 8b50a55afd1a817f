"""Cache of artifacts of one kind, such as images or guest layers. An *artifact* is what one build has made: a folder that is named by its key.

Only :meth:`ArtifactCache.rebuild` replaces an artifact.

Invariants, in addition to those of :mod:`sandlot.host.locked_folder`:
- Each key is built once. If another process is building the key already, this process waits for it and uses its artifact.
- Only root can read the folders, because images contain files of uid 1000, which may be the uid of a user of the host.

All kinds use the same folders ``tmp/``, for incomplete builds, and ``locks/``, with one lock file for each kind and key.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sandlot.host import durable, locked_folder
from sandlot.host.free_space import FreeSpace
from sandlot.host.locked_folder import LockedFolder
from sandlot.images.build_stop import BuildStop
from sandlot.model.errors import ErrorCode, HostError, LimitError

KEY = re.compile(r"[0-9a-f]{64}")
_POLL_S = 0.2
"""Seconds between two attempts to take the lock of another process."""

Build = Callable[[Path, int], None]
"""Fills the empty folder in the first argument. The second argument is the descriptor of the folder's lock.

Commands that write into the folder must inherit the descriptor, so that the folder stays locked until all of them have ended.
"""

_Context = Callable[[], AbstractContextManager[None]]


class ArtifactCache:
    """Finds, builds, replaces and removes the artifacts of one kind.

    Args:
        cache: The cache directory. The first build creates it if it does not exist.
        kind: Name of the kind, such as ``images``. The folder with the artifacts in the cache directory has this name.
        space: Free space of the disk of the cache directory. No build begins while no more than the reserve is free.
        stop: Ends the wait for other processes, and refuses further builds, when the service stops. None: nothing does.
    """

    __slots__ = ("_cache", "_folder", "_space", "_stop", "kind")

    def __init__(self, cache: Path, kind: str, space: FreeSpace, stop: BuildStop | None = None) -> None:
        self._cache = cache
        self._space = space
        self._stop = stop or BuildStop()
        self.kind = kind
        self._folder = cache / kind

    def find(self, key: str) -> Path | None:
        """Return the folder of the artifact with a key, or None if there is none."""
        folder = self._folder / key
        return folder if folder.is_dir() else None

    def keys(self) -> list[str]:
        """Return the keys of all artifacts of this kind, sorted."""
        return sorted(folder.name for folder in self._folder.iterdir() if KEY.fullmatch(folder.name)) if self._folder.is_dir() else []

    def ensure(self, key: str, build: Build, waiting: Callable[[], None]) -> Path:
        """Return the folder of the artifact with a key. Build the artifact first if it does not exist.

        Args:
            key: Key of the build: a SHA-256 in hexadecimal.
            build: Function that fills an empty folder with the artifact. It may write temporary files into the parent folder.
            waiting: Function that is called if this call must wait for another process that is building the same key.

        Raises:
            HostError: The cache directory is not writable.
            LimitError: The disk of the cache directory is full, or no more than the reserve is free.
            UnavailableError: The service is stopping.
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

    def rebuild(self, key: str, build: Build, waiting: Callable[[], None], replacing: _Context = nullcontext) -> Path:
        """Build the artifact with a key again. The new artifact replaces the present one, in one step, once it is complete.

        Arguments and errors are those of :meth:`ensure`. Paths into the old artifact become invalid; files that were linked from it stay. The old
        artifact is replaced in the context of ``replacing``.
        """
        with translated_errors(self._cache):
            self._make_folders()
            with self._lock(key, waiting):
                self._build(key, build, replacing)
        return self._folder / key

    def _build(self, key: str, build: Build, publishing: _Context = nullcontext) -> None:
        self.sweep()
        self._space.check()
        with LockedFolder(self._cache / "tmp", prefix=f"{self.kind}-") as temporary:
            build(temporary.content, temporary.descriptor)
            self._stop.check()
            durable.sync_file_system(temporary.content)
            with publishing():
                temporary.publish(self._folder / key, replaces=True)

    def remove(self, key: str) -> bool:
        """Remove the artifact with a key. Return False if there is none.

        The folder is moved away before its files are removed, so that no process finds an incomplete artifact.
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
            while descriptor is None:
                self._stop.check(_POLL_S)
                descriptor = locked_folder.try_lock_file(file)
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
