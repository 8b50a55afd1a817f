"""Open files of the shelf: one that is read, one that is being written.

Law: Both may be closed while another thread is in the middle of a read or a write; that ends first, because the descriptor's number may be
another file's a moment later.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path


class Opened:
    """A file of the shelf, or of the host, open for reading. It stays readable whatever becomes of its name.

    Args:
        descriptor: It; closed by :meth:`close`.
    """

    __slots__ = ("_lock", "descriptor", "modified_s", "size_bytes")

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._lock = threading.Lock()
        self.descriptor = descriptor
        self.size_bytes = found.st_size
        self.modified_s = found.st_mtime

    def read(self, length: int, offset: int) -> bytes:
        """Some of it; less only at its end."""
        with self._lock:
            return os.pread(self.descriptor, length, offset)

    def close(self) -> None:
        """Idempotent. A read that is under way in another thread ends first: its number may be another file's then."""
        with self._lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1


class Draft:
    """A file that is being written. Close it, kept or not.

    Args:
        folder: Where.
    """

    __slots__ = ("_lock", "allocated_bytes", "descriptor", "kept", "path", "size_bytes")

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self.descriptor, path = tempfile.mkstemp(dir=folder)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        self.path = Path(path)
        self.size_bytes = self.allocated_bytes = 0
        self.kept = False

    def write(self, data: bytes) -> None:
        """Append.

        Raises:
            OSError: The disk is full, or broken.
        """
        view = memoryview(data)
        with self._lock:
            while view:
                written = os.write(self.descriptor, view)
                self.size_bytes += written
                view = view[written:]

    def allocate(self, more_bytes: int) -> None:
        """Take so much more of the disk at once: a disk that is too full says so now, and others see what is promised.

        Raises:
            OSError: The disk is full, or broken.
        """
        with self._lock:
            os.posix_fallocate(self.descriptor, self.allocated_bytes, more_bytes)
            self.allocated_bytes += more_bytes

    def finish(self, *, durable: bool) -> None:
        """Cut off what was allocated and not written; with ``durable`` it is on the disk then.

        Raises:
            OSError: The disk is broken, or it was closed.
        """
        with self._lock:
            if self.allocated_bytes > self.size_bytes:
                os.ftruncate(self.descriptor, self.size_bytes)
            if durable:
                os.fdatasync(self.descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """Some of what was written."""
        with self._lock:
            return os.pread(self.descriptor, min(length, self.size_bytes - offset), offset)

    def close(self) -> None:
        """Idempotent. What was not kept is gone."""
        with self._lock:
            if self.descriptor >= 0:
                if not self.kept:
                    self.path.unlink(missing_ok=True)
                os.close(self.descriptor)
                self.descriptor = -1
