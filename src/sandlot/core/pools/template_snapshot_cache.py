"""Template snapshots on disk: ``snapshots`` in the cache directory, shared by any number of services.

===================  ==================================================================================================================
``KEY/image/``       the driver's snapshot
``KEY/made.json``    how and of what the snapshot was made, for people; services hold a shared flock(2) on it while they use the snapshot
``tmp/``             locked folders: snapshots that are being made or removed
``locks/KEY``        locked by the service that makes the snapshot
===================  ==================================================================================================================

Invariants, beside those of :mod:`sandlot.host.locked_folder`:
- A snapshot that has its name was tried: a sandbox was restored from it.
- One service at a time makes a key. The others use its snapshot.
- A snapshot is not removed while a service uses it.
- A lock that is taken for a cancelled caller is released (:func:`in_thread`).
- Only root can look in: a snapshot is the memory of a sandbox, although no tenant used it.

All methods block as long as the disk needs; call them in a thread, and those that take a lock by :func:`in_thread`.
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

IMAGE, MADE = "image", "made.json"
UNUSED_S: Final = 7 * 24 * 3600.0
"""Age since the last use after which a snapshot is removed."""

ResultT = TypeVar("ResultT")

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TemplateSnapshot:
    """A snapshot that this service uses. It stays on the disk until it is released.

    Args:
        key: Key of the snapshot.
        image: Folder of the driver's snapshot.
        made: Content of ``made.json``.
        descriptor: Descriptor of the shared lock.
    """

    key: str
    image: Path
    made: Mapping[str, Any]
    descriptor: int

    def release(self) -> None:
        """Stop using the snapshot."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class TemplateSnapshotCache:
    """Template snapshots of a cache directory.

    Args:
        cache: The cache directory.
    """

    __slots__ = ("_folder", "_locks", "_scratch")

    def __init__(self, cache: Path) -> None:
        self._folder = cache.absolute() / "snapshots"
        self._scratch = self._folder / "tmp"
        self._locks = self._folder / "locks"

    def take(self, key: str) -> TemplateSnapshot | None:
        """Return a snapshot and keep it from being removed. Return None if there is none."""
        file = self._folder / key / MADE
        while True:
            try:
                descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), file.stat()):
                        made = json.loads(file.read_text("utf-8"))
                        os.utime(descriptor)  # time of the last use
                        return TemplateSnapshot(key, self._folder / key / IMAGE, made, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # removed or replaced in between

    def lock(self, key: str) -> int | None:
        """Take the right to make a snapshot.

        Returns:
            A descriptor to be closed in the end, or None while another maker has the right.
        """
        for folder in (self._folder, self._locks):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return try_lock_file(self._locks / key)

    def begin(self, key: str) -> LockedFolder:
        """Return a folder to make a snapshot in, as ``content/image``. The caller has locked the key and closes the folder."""
        return LockedFolder(self._scratch, prefix=f"{key[:16]}-")

    def publish(self, key: str, folder: LockedFolder, made: Mapping[str, Any]) -> None:
        """Give a complete snapshot its name. The caller has locked the key.

        Args:
            key: Key of the snapshot.
            folder: Folder in which the snapshot was made and tried.
            made: Content of ``made.json``.
        """
        durable.write_file(folder.content / MADE, json.dumps(made, indent=1).encode())
        folder.publish(self._folder / key)

    def remove(self, key: str) -> bool:
        """Remove a snapshot unless a service uses it. Return True if it is gone."""
        try:
            descriptor = os.open(self._folder / key / MADE, os.O_RDWR | os.O_CLOEXEC)
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

    def replaced(self, key: str, look: Mapping[str, Any]) -> int:
        """Remove the snapshots that a new one replaces, unless a service uses them, and return their number.

        Args:
            key: Key of the new snapshot.
            look: Template, isolation and limits of the new snapshot. Other snapshots of the same look are outdated.
        """
        return sum(1 for other, made in self._all() if other != key and made.get("look") == dict(look) and self.remove(other))

    def sweep(self) -> int:
        """Remove what dead services left in ``tmp``, and snapshots that were not used for `UNUSED_S`. Return the number of removals."""
        swept = locked_folder.sweep(self._scratch)
        for key, _ in self._all():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - (self._folder / key / MADE).stat().st_mtime > UNUSED_S:
                    swept += self.remove(key)
        return swept

    def _all(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for folder in list(self._folder.iterdir()) if self._folder.is_dir() else ():
            if _KEY.fullmatch(folder.name):
                with contextlib.suppress(OSError, ValueError):
                    yield folder.name, json.loads((folder / MADE).read_text("utf-8"))


async def in_thread(take: Callable[[str], ResultT], key: str, release: Callable[[Any], None]) -> ResultT:
    """Take a lock in a thread. If the caller is cancelled meanwhile, the lock is released as soon as the thread has it.

    Args:
        take: Blocking function that takes the lock of a key.
        key: Key to pass to ``take``.
        release: Called with the result of ``take`` to release the lock, unless the result is None.

    Returns:
        The result of ``take``.
    """
    taking = asyncio.ensure_future(asyncio.to_thread(take, key))

    def given_back(done: asyncio.Future[ResultT]) -> None:
        if not done.cancelled() and done.exception() is None and (lock := done.result()) is not None:
            release(lock)

    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(given_back)
        raise
