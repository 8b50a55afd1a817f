"""Template snapshots on disk: ``snapshots`` in the cache directory, shared by any number of services.

===================  ==================================================================================================================
``KEY/image/``       the driver's snapshot
``KEY/made.json``    manifest, for people; services hold a shared flock(2) on it while they use the snapshot
``tmp/``             locked folders: snapshots that are being made or removed
``locks/KEY``        locked by the service that makes the snapshot
===================  ==================================================================================================================

Invariants, beside those of :mod:`sandlot.host.locked_folder`:
- A snapshot that has its name was verified: a sandbox was restored from it.
- One service at a time makes a key. The others use its snapshot.
- A snapshot is not removed while a service uses it.
- A lock that is taken for a cancelled caller is released (:func:`take_in_thread`).
- Only root can read the snapshots: a snapshot is the memory of a sandbox, although no tenant used the sandbox.

All methods block as long as the disk needs. Call them in a thread, and the methods that take a lock with :func:`take_in_thread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sandlot.host import durable, locked_folder
from sandlot.host.locked_folder import LockedFolder, try_lock_file

IMAGE: Final = "image"
MANIFEST: Final = "made.json"
UNUSED_S: Final = 7 * 24 * 3600.0
"""Age since the last use after which a snapshot is removed."""

ResultT = TypeVar("ResultT")

_KEY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TemplateSnapshot:
    """A snapshot that this service uses. It stays on disk until it is released.

    Args:
        key: Key of the snapshot.
        image: Folder of the driver's snapshot.
        manifest: Content of ``made.json``.
        descriptor: Descriptor of the shared lock.
    """

    key: str
    image: Path
    manifest: Mapping[str, Any]
    descriptor: int

    def release(self) -> None:
        """Stop using the snapshot."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class TemplateSnapshotCache:
    """Template snapshots of a cache directory.

    Args:
        cache_dir: The cache directory.
    """

    __slots__ = ("_folder", "_locks", "_scratch")

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir.absolute() / "snapshots"
        self._scratch = self._folder / "tmp"
        self._locks = self._folder / "locks"

    def take(self, key: str) -> TemplateSnapshot | None:
        """Return a snapshot and keep it from being removed. Return None if there is none."""
        file = self._folder / key / MANIFEST
        while True:
            try:
                descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), file.stat()):
                        manifest = json.loads(file.read_text("utf-8"))
                        os.utime(descriptor)  # time of the last use
                        return TemplateSnapshot(key, self._folder / key / IMAGE, manifest, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # removed or replaced in between

    def lock(self, key: str) -> int | None:
        """Take the right to make a snapshot.

        Returns:
            A descriptor to close in the end, or None while another service has the right.
        """
        for folder in (self._folder, self._locks):  # `mkdir` would give parents the default mode
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock_file(self._locks / key)

    def begin(self, key: str) -> LockedFolder:
        """Return a folder in which to make a snapshot as ``content/image``. The caller has locked the key and closes the folder."""
        return LockedFolder(self._scratch, prefix=f"{key[:16]}-")

    def publish(self, key: str, folder: LockedFolder, manifest: Mapping[str, Any]) -> None:
        """Give a complete snapshot its name. The caller has locked the key.

        Args:
            key: Key of the snapshot.
            folder: Folder in which the snapshot was made and verified.
            manifest: Content of ``made.json``.
        """
        durable.write_file(folder.content / MANIFEST, json.dumps(manifest, indent=1).encode())
        folder.publish(self._folder / key)

    def remove(self, key: str) -> bool:
        """Remove a snapshot unless a service uses it. Return whether the snapshot is gone."""
        try:
            descriptor = os.open(self._folder / key / MANIFEST, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked_folder.discard(self._folder / key, self._scratch)
        except (BlockingIOError, FileNotFoundError):
            return False
        finally:
            os.close(descriptor)
        return True

    def remove_replaced(self, key: str, spec: Mapping[str, Any]) -> int:
        """Remove the snapshots that a new one replaces, unless a service uses them, and return their number.

        Args:
            key: Key of the new snapshot.
            spec: Spec in the manifest of the new snapshot. Other snapshots of an equal spec are outdated.
        """
        return sum(1 for other, manifest in self._all() if other != key and manifest.get("spec") == dict(spec) and self.remove(other))

    def sweep(self) -> int:
        """Remove what killed services left in ``tmp``, and snapshots that were not used for `UNUSED_S`. Return the number of removals."""
        swept = locked_folder.sweep(self._scratch)
        for key, _ in self._all():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - (self._folder / key / MANIFEST).stat().st_mtime > UNUSED_S:
                    swept += self.remove(key)
        return swept

    def _all(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for folder in list(self._folder.iterdir()) if self._folder.is_dir() else ():
            if _KEY.fullmatch(folder.name):
                with contextlib.suppress(OSError, ValueError):
                    yield folder.name, json.loads((folder / MANIFEST).read_text("utf-8"))


async def take_in_thread(take: Callable[[str], ResultT], key: str, release: Callable[[Any], None]) -> ResultT:
    """Take a lock in a thread. If the caller is cancelled meanwhile, the lock is released as soon as the thread has it.

    Args:
        take: Blocking function that takes the lock of a key.
        key: Key to pass to ``take``.
        release: Called with the result of ``take`` to release the lock, unless the result is None.

    Returns:
        The result of ``take``.
    """
    taking = asyncio.ensure_future(asyncio.to_thread(take, key))

    def release_late(done: asyncio.Future[ResultT]) -> None:
        if not done.cancelled() and done.exception() is None and (lock := done.result()) is not None:
            release(lock)

    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(release_late)
        raise
