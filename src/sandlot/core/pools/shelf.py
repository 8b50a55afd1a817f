"""Where template snapshots lie: ``snapshots`` in the cache directory, shared by any number of services.

==================  ===================================================================================================================
``KEY/image/``      the driver's snapshot
``KEY/made.json``   what it was made of and how long that took, for people; whoever uses the snapshot holds a shared lock on it (flock(2))
``.making-KEY/``    one that is being made
``.lock-KEY``       held by whoever makes it
==================  ===================================================================================================================

Laws:
- A folder that has its name is complete and was restored from once: it was made under another name, synced, tried, then renamed.
- Of two that want one key, the second waits for the first and takes what that made.
- What a killed service left half made is never used, and removed by the next one that looks.
- Nothing is removed that a service uses: the locks go with their holder, however it ends.
- Nobody but root looks in: it is a sandbox's memory, though nobody's.

Everything here blocks for as long as a disk does; call it in a thread, and what takes a lock by :func:`in_thread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sandlot.host import durable

IMAGE, MADE = "image", "made.json"
UNUSED_S: Final = 7 * 24 * 3600.0
"""What nobody has used for so long is removed."""

_Lock = TypeVar("_Lock")

_KEY = re.compile(r"[0-9a-f]{64}")
_MAKING, _LOCK, _OLD = ".making-", ".lock-", ".old-"


@dataclass(frozen=True, slots=True)
class Held:
    """A snapshot that this service uses; it stays until it is released.

    Args:
        key: What it is made of.
        image: The driver's folder.
        made: What is written of it.
        descriptor: Of the lock.
    """

    key: str
    image: Path
    made: Mapping[str, Any]
    descriptor: int

    def release(self) -> None:
        """Use it no more."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class Shelf:
    """Template snapshots of a cache directory.

    Args:
        cache: The cache directory.
    """

    __slots__ = ("_folder",)

    def __init__(self, cache: Path) -> None:
        self._folder = cache.absolute() / "snapshots"

    def take(self, key: str) -> Held | None:
        """A snapshot by its key, and keep it from being removed; None where there is none."""
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
                        os.utime(descriptor)  # used now
                        return Held(key, self._folder / key / IMAGE, made, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was removed, or made anew, in between

    def lock(self, key: str) -> int | None:
        """The right to make a key, as a descriptor to close in the end; None while somebody else has it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / f"{_LOCK}{key}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def begin(self, key: str) -> Path:
        """An empty folder to make a key in; its lock is held."""
        making = self._folder / f"{_MAKING}{key}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        return making

    def publish(self, key: str, made: Mapping[str, Any]) -> None:
        """Let what was made appear under its name, whole; its lock is held."""
        making = self._folder / f"{_MAKING}{key}"
        durable.write_file(making / MADE, json.dumps(made, indent=1).encode())
        durable.publish_folder(making, self._folder / key)

    def discard(self, key: str) -> None:
        """Remove what was begun and came to nothing; its lock is held."""
        shutil.rmtree(self._folder / f"{_MAKING}{key}", ignore_errors=True)

    def remove(self, key: str) -> bool:
        """Remove a snapshot that nobody uses; whether it is gone."""
        folder = self._folder / key
        try:
            descriptor = os.open(folder / MADE, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            return not folder.exists()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            old = self._folder / f"{_OLD}{key}-{os.getpid()}-{time.monotonic_ns()}"
            folder.rename(old)
        except (BlockingIOError, FileNotFoundError):
            return False
        finally:
            os.close(descriptor)
        shutil.rmtree(old, ignore_errors=True)
        return True

    def replaced(self, key: str, look: Mapping[str, Any]) -> int:
        """Remove what a new snapshot takes the place of, where nobody uses it; how many.

        Args:
            key: The new one's.
            look: What it is of: what is of the same and has another key is stale.
        """
        return sum(1 for other, made in self._all() if other != key and made.get("look") == dict(look) and self.remove(other))

    def sweep(self) -> int:
        """Remove what killed services left half made, and what nobody has used for long; how many."""
        swept = 0
        for name in self._names():
            if name.startswith(_OLD):
                shutil.rmtree(self._folder / name, ignore_errors=True)
                swept += 1
            elif name.startswith(_MAKING):
                descriptor = self.lock(name.removeprefix(_MAKING))
                if descriptor is not None:
                    try:
                        shutil.rmtree(self._folder / name, ignore_errors=True)
                        swept += 1
                    finally:
                        os.close(descriptor)
        for key, _ in self._all():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - (self._folder / key / MADE).stat().st_mtime > UNUSED_S:
                    swept += self.remove(key)
        return swept

    def _names(self) -> list[str]:
        return [entry.name for entry in self._folder.iterdir()] if self._folder.is_dir() else []

    def _all(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name in self._names():
            if _KEY.fullmatch(name):
                with contextlib.suppress(OSError, ValueError):
                    yield name, json.loads((self._folder / name / MADE).read_text("utf-8"))


async def in_thread(take: Callable[[str], _Lock | None], key: str, let_go: Callable[[_Lock], None]) -> _Lock | None:
    """Take a lock in a thread; whoever is cancelled meanwhile leaves none behind.

    Args:
        take: Takes it, or gives None.
        key: Of what.
        let_go: Gives it back.
    """
    taking = asyncio.ensure_future(asyncio.to_thread(take, key))

    def given_back(done: asyncio.Future[_Lock | None]) -> None:
        if not done.cancelled() and done.exception() is None and (lock := done.result()) is not None:
            let_go(lock)

    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(given_back)
        raise
