"""Template snapshots on disk: ``snapshots`` in the cache directory, shared by any number of services.

===================  ==================================================================================================================
``KEY/image/``       the driver's snapshot
``KEY/made.json``    manifest of the snapshot; each service holds a shared flock(2) on this file while it uses the snapshot
``tmp/``             locked folders with the snapshots that are being made or removed
``locks/KEY``        file that is locked by the service that makes the snapshot
===================  ==================================================================================================================

Invariants, in addition to those of :mod:`sandlot.host.locked_folder`:
- A snapshot in ``KEY`` has been verified: a sandbox was restored from it.
- Only one service at a time makes the snapshot of a key. Other services wait and use the finished snapshot.
- A snapshot is not removed while a service uses it.
- If the caller is cancelled while a thread takes a lock, the lock is released (:func:`take_in_thread`).
- Only root can read the snapshots, because they contain the memory of a sandbox. No tenant has used this sandbox, but the start command of a template
  that a user has built may run in it. The key of such a snapshot depends on the owner.

All methods do blocking disk I/O. Call them in a thread, and call the methods that take a lock with :func:`take_in_thread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sandlot.host import durable, locked_folder
from sandlot.host.locked_folder import LockedFolder, try_lock_file

IMAGE: Final = "image"
MANIFEST: Final = "made.json"
UNUSED_S: Final = 7 * 24 * 3600.0
"""Seconds since the last use after which a snapshot is removed from the disk."""

ResultT = TypeVar("ResultT")

_KEY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TemplateSnapshot:
    """A template snapshot that this service uses. The snapshot cannot be removed from the disk until it is released.

    Args:
        image: Folder of the driver's snapshot.
        manifest: Content of ``made.json``.
        descriptors: Open descriptor of ``made.json``, which holds the shared lock; empty once the snapshot is released.
    """

    key: str
    image: Path
    manifest: Mapping[str, Any]
    descriptors: list[int]

    @property
    def runs_programs(self) -> bool:
        """True if the start command of a template runs in the snapshot."""
        return "start" in self.manifest.get("inputs", {})

    @property
    def is_of_build(self) -> bool:
        """True if sandboxes of a template that a user has built are restored from the snapshot, whether or not it has a pool."""
        return "node" in self.manifest

    @property
    def size_bytes(self) -> int:
        """Size of the snapshot in bytes."""
        return int(self.manifest.get("size_bytes", 0))

    def release(self) -> None:
        """Stop using the snapshot, so that it can be removed. Idempotent: the number of a closed descriptor may soon be that of another file."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class TemplateSnapshotCache:
    """Template snapshots of a cache directory."""

    __slots__ = ("_folder", "_locks", "_scratch")

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir.absolute() / "snapshots"
        self._scratch = self._folder / "tmp"
        self._locks = self._folder / "locks"

    def take(self, key: str) -> TemplateSnapshot | None:
        """Return the snapshot of a key and lock it, so that it cannot be removed. Return None if the key has no snapshot."""
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
                        return TemplateSnapshot(key, self._folder / key / IMAGE, manifest, [descriptor])
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the snapshot was removed or replaced before the lock was taken

    def lock(self, key: str) -> int | None:
        """Lock a key, so that only this service makes its snapshot.

        Returns:
            Descriptor of the lock, which the caller closes to release the lock. None if another service has locked the key.
        """
        for folder in (self._folder, self._locks):  # one by one, because `parents=True` creates parents with the default mode
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock_file(self._locks / key)

    def begin(self, key: str) -> LockedFolder:
        """Create and return a locked folder for a new snapshot, which is written to ``content/image`` in this folder.

        The caller must lock the key before the call, and must close the folder at the end.
        """
        return LockedFolder(self._scratch, prefix=f"{key[:16]}-")

    def publish(self, key: str, folder: LockedFolder, manifest: Mapping[str, Any]) -> None:
        """Move a complete snapshot to the folder of its key, where all services find it. The caller has locked the key.

        Args:
            key: Key of the snapshot.
            folder: Folder in which the snapshot was made and verified.
            manifest: Content of ``made.json``.
        """
        durable.write_file(folder.content / MANIFEST, json.dumps(manifest, indent=1).encode())
        folder.publish(self._folder / key)

    def remove(self, key: str) -> bool:
        """Remove a snapshot unless a service uses it. Return False if the snapshot still exists."""
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
        """Remove the snapshots that a new snapshot replaces, except those that a service uses. Return the number of removed snapshots.

        Args:
            key: Key of the new snapshot.
            spec: Spec in the manifest of the new snapshot. All other snapshots with an equal spec are outdated.
        """
        return sum(1 for other, manifest in self._all() if other != key and manifest.get("spec") == dict(spec) and self.remove(other))

    def remove_unneeded(self, node: str, needed: Collection[str]) -> int:
        """Remove the snapshots of builds that are gone, except those that a service uses. Return the number of removed snapshots.

        Args:
            node: Node that made the snapshots.
            needed: ``models.content_of`` all builds of this node.
        """
        found = [key for key, manifest in self._all() if manifest.get("node") == node and manifest["spec"].get("content") not in needed]
        return sum(self.remove(key) for key in found)

    def sweep(self) -> int:
        """Remove folders that killed services left in ``tmp``, and snapshots not used for ``UNUSED_S``. Return the number of removed folders."""
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
    """Take a lock in a thread. If the caller is cancelled meanwhile, release the lock as soon as the thread has taken it.

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
