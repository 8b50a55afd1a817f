"""Folders that are filled under a lock and appear under their final name only when they are complete.

Several processes may share one cache. Each creates its locked folders in the cache's scratch folder and publishes their content.

Invariants:
- A folder that has its final name is complete: its content was written under another name, synced, then renamed.
- A locked folder is not removed while its maker lives, or while a command that inherited the descriptor of the lock still runs.
- A folder whose maker died is never published. The next `sweep` removes it.
- Only the owner of a locked folder can enter it.

Locks are flock(2). The kernel releases a lock when its last descriptor is closed, however the process ends.

All functions block as long as the disk needs, and until a lock is free; call them in a thread from async code. If the caller may be
cancelled meanwhile, release what the thread returns.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from sandlot.host import durable

_REMOVE_ATTEMPTS = 20
_REMOVE_PAUSE_S = 0.1

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FILE = os.O_RDWR | os.O_CREAT

_log = logging.getLogger(__name__)


class LockedFolder:
    """A new temporary folder, locked until it is closed. Closing removes everything that was not published.

    A folder may be closed while another thread publishes it, which happens if the task that waits for the thread is cancelled. The content is
    then published as a whole before the folder is closed, or not at all.

    Args:
        scratch: The scratch folder, on the file system of the final names; created if it does not exist.
        prefix: Start of the temporary name, for people who look into the scratch folder.

    Attributes:
        path: The folder. It has room for scratch files beside the content.
        content: An empty subfolder, to be filled and published.
        descriptor: Descriptor of the lock. Commands that write into the folder inherit it.
    """

    __slots__ = ("_publishing", "content", "descriptor", "path")

    def __init__(self, scratch: Path, prefix: str = "") -> None:
        self._publishing = threading.Lock()
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = lock_folder(scratch)  # a sweep would remove a folder that is not locked yet
        try:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch))
            self.descriptor = lock_folder(self.path)
        finally:
            os.close(parent)
        self.content = self.path / "content"
        try:
            self.content.mkdir(mode=0o700)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, path: Path) -> None:
        """Give the content its final name. The files in it must have been synced.

        Args:
            path: The final name, which does not exist yet.

        Raises:
            OSError: The content cannot be renamed, or the folder was closed.
        """
        with self._publishing:
            if self.descriptor < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
            durable.publish_folder(self.content, path)

    def close(self) -> None:
        """Remove the folder and release the lock. Can be repeated. The next sweep removes what cannot be removed now."""
        with self._publishing:
            if self.descriptor >= 0:
                _remove_or_log(self.path)
                os.close(self.descriptor)
                self.descriptor = -1


def sweep(scratch: Path) -> int:
    """Remove the locked folders whose makers died.

    Args:
        scratch: The scratch folder; nothing is done if it does not exist.

    Returns:
        Number of removed folders.
    """
    try:
        parent = lock_folder(scratch)
    except FileNotFoundError:
        return 0
    abandoned = []
    with contextlib.ExitStack() as locks:
        try:
            for path in scratch.iterdir():
                descriptor = _lock_abandoned(path)
                if descriptor is not None:
                    locks.callback(os.close, descriptor)
                    abandoned.append(path)
        finally:
            os.close(parent)  # other processes need not wait for the removal
        return sum(_remove_or_log(path) for path in abandoned)


def discard(folder: Path, scratch: Path) -> None:
    """Remove a published folder: first its name, then its files. The next sweep finishes an interrupted removal.

    Args:
        folder: The folder.
        scratch: The scratch folder, on the same file system; created if it does not exist.

    Raises:
        OSError: The folder cannot be renamed. FileNotFoundError: it does not exist.
    """
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = scratch / f"old-{folder.name}-{secrets.token_hex(4)}"
    folder.rename(old)
    _remove_or_log(old)


def lock_folder(path: Path) -> int:
    """Wait for the lock of an existing folder and take it.

    Returns:
        A descriptor. Close it to release the lock.
    """
    return _open_locked(path, _FOLDER)


def lock_file(path: Path) -> int:
    """Wait for the lock of a file and take it.

    Args:
        path: The file; created if it does not exist.

    Returns:
        A descriptor. Close it to release the lock.
    """
    return _open_locked(path, _FILE)


def try_lock_file(path: Path) -> int | None:
    """Take the lock of a file, or return None if the lock is taken.

    Args:
        path: The file; created if it does not exist.

    Returns:
        A descriptor. Close it to release the lock.
    """
    with contextlib.suppress(BlockingIOError):
        return _open_locked(path, _FILE, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return None


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if killed programs that write into it have not ended yet. Can be repeated.

    Raises:
        OSError: The folder could not be removed in 2 s.
    """
    for attempts_left in reversed(range(_REMOVE_ATTEMPTS)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not folder.exists():
                return
        except OSError:
            if not attempts_left:
                raise
            time.sleep(_REMOVE_PAUSE_S)
        else:
            return


def _remove_or_log(folder: Path) -> bool:
    try:
        remove_tree(folder)
    except OSError as error:
        _log.warning("%s cannot be removed: %s", folder, error)
        return False
    return True


def _lock_abandoned(path: Path) -> int | None:
    """Lock a folder whose maker died and return the descriptor. Return None if the maker lives or has just removed the folder."""
    try:
        descriptor = _open_locked(path, _FOLDER | os.O_NOFOLLOW, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return None
    if path.exists():
        return descriptor
    os.close(descriptor)
    return None


def _open_locked(path: Path, flags: int, operation: int = fcntl.LOCK_EX) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
