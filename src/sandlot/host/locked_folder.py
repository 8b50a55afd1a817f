"""Folders that are filled under a lock and appear under their final name only when they are complete.

Several processes may share one cache. Each creates its locked folders in the cache's scratch folder and publishes their content.

Invariants:
- A folder that has its final name is complete: its content was written under another name, synced, then renamed.
- No sweep removes a locked folder while the process that created the folder lives, or while a command that inherited the descriptor of the lock runs.
- A folder whose creating process died is never published. The next `sweep` removes the folder.
- Only the user that owns a locked folder, and root, can enter the folder.

Locks are taken with flock(2). The kernel releases a lock when its last descriptor is closed, however the process ends.

All functions block until the disk has done the work and until a lock is free. Async code must call them in a thread. If async code is cancelled
meanwhile, it must close the lock or folder that the thread returns.
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
    """A new temporary folder that is locked until :meth:`close`. Closing removes the folder and all content that was not published.

    One thread may call :meth:`close` while another thread calls :meth:`publish`, for example because the task that waits for the second thread was
    cancelled. The content is then either published as a whole before the folder is removed, or not published at all.

    Args:
        scratch: Scratch folder, on the same file system as the final names; created if it does not exist.
        prefix: Prefix of the temporary folder's name, by which people can recognize the folder. No code depends on the prefix.

    Attributes:
        path: Path of the temporary folder. The caller may write scratch files here, which are not published.
        content: Path of a subfolder, empty at first. The caller fills the subfolder; :meth:`publish` publishes it.
        descriptor: Descriptor of the lock; -1 after :meth:`close`. Commands that write into the folder must inherit this descriptor.
    """

    __slots__ = ("_publishing", "content", "descriptor", "path")

    def __init__(self, scratch: Path, prefix: str = "") -> None:
        self._publishing = threading.Lock()
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = lock_folder(scratch)  # keeps a sweep from removing the new folder before it is locked
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

    def publish(self, path: Path, *, replaces: bool = False) -> None:
        """Move the folder :attr:`content` to its final path. The caller must have synced the files in this folder.

        Args:
            path: Final path of the content.
            replaces: True if the path may exist. Its folder is replaced in one step, and removed by :meth:`close`.

        Raises:
            OSError: The content cannot be synced or renamed, or :meth:`close` was called before.
        """
        with self._publishing:
            if self.descriptor < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
            (durable.replace_folder if replaces else durable.publish_folder)(self.content, path)

    def close(self) -> None:
        """Remove the temporary folder and release its lock. Idempotent. The next sweep removes files that cannot be removed now."""
        with self._publishing:
            if self.descriptor >= 0:
                _remove_or_log(self.path)
                os.close(self.descriptor)
                self.descriptor = -1


def sweep(scratch: Path) -> int:
    """Remove each folder in a scratch folder if the process that created it has died.

    Args:
        scratch: Path of the scratch folder. Nothing is done if there is no such folder.

    Returns:
        Number of folders that were removed.
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
            os.close(parent)  # other processes can create locked folders during the removal below
        return sum(_remove_or_log(path) for path in abandoned)


def discard(folder: Path, scratch: Path) -> None:
    """Remove a published folder: move it to the scratch folder, then remove its files. The next sweep finishes an interrupted removal.

    Args:
        folder: Path of the published folder.
        scratch: Path of the scratch folder, on the same file system as ``folder``; created if it does not exist.

    Raises:
        FileNotFoundError: ``folder`` does not exist.
        OSError: ``folder`` cannot be renamed.
    """
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = scratch / f"old-{folder.name}-{secrets.token_hex(4)}"
    folder.rename(old)
    _remove_or_log(old)


def lock_folder(path: Path) -> int:
    """Wait until the lock of an existing folder is free, and take the lock.

    Returns:
        Descriptor of the folder. Close the descriptor to release the lock.
    """
    return _open_locked(path, _FOLDER)


def try_lock_file(path: Path) -> int | None:
    """Take the lock of a file if the lock is free. Does not wait.

    Args:
        path: Path of the file, which is created if it does not exist.

    Returns:
        Descriptor of the file, or None if the lock is not free. Close the descriptor to release the lock.
    """
    with contextlib.suppress(BlockingIOError):
        return _open_locked(path, _FILE, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return None


def remove_tree(folder: Path) -> None:
    """Remove a folder with its content. Retries for 2 s, because killed programs that write into the folder may not have ended yet. Idempotent.

    Raises:
        OSError: The folder could not be removed within 2 s.
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
    """Lock a folder if the process that created it has died, and return the descriptor. Return None if that process lives or the folder is gone."""
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
