"""Open files of the store: a file being read and a file being written.

Invariant: a file may be closed while another thread reads or writes it. The close waits for that thread, because the number of the descriptor
may belong to another file a moment later.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path


class OpenFile:
    """A file of the store or of this machine, open for reading. It stays readable after its name is removed.

    Args:
        descriptor: Descriptor of the file; ownership passes to this object.
    """

    __slots__ = ("_lock", "descriptor", "modified_s", "size_bytes")

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._lock = threading.Lock()
        self.descriptor = descriptor
        self.size_bytes = found.st_size
        self.modified_s = found.st_mtime

    def read(self, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file."""
        with self._lock:
            return os.pread(self.descriptor, length, offset)

    def close(self) -> None:
        """Close the file after a read in another thread has ended. Idempotent."""
        with self._lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1


class DraftFile:
    """A new file of the store that is being written. Close it, whether it was published or not.

    Args:
        folder: Folder for incomplete files.
    """

    __slots__ = ("_lock", "allocated_bytes", "descriptor", "is_published", "path", "size_bytes")

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self.descriptor, path = tempfile.mkstemp(dir=folder)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        self.path = Path(path)
        self.size_bytes = self.allocated_bytes = 0
        self.is_published = False

    def write(self, data: bytes) -> None:
        """Append data.

        Raises:
            OSError: The disk is full or failed, or the file was closed.
        """
        view = memoryview(data)
        with self._lock:
            while view:
                written = os.write(self.descriptor, view)
                self.size_bytes += written
                view = view[written:]

    def allocate(self, more_bytes: int) -> None:
        """Allocate more disk space at once, so that a full disk is noticed now and other writers see the reservation.

        Raises:
            OSError: The disk is full or failed, or the file was closed.
        """
        with self._lock:
            os.posix_fallocate(self.descriptor, self.allocated_bytes, more_bytes)
            self.allocated_bytes += more_bytes

    def finish(self, *, durable: bool) -> None:
        """Free the space that was allocated but not written.

        Args:
            durable: Sync the data to the disk.

        Raises:
            OSError: The disk failed, or the file was closed.
        """
        with self._lock:
            if self.allocated_bytes > self.size_bytes:
                os.ftruncate(self.descriptor, self.size_bytes)
            if durable:
                os.fdatasync(self.descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """Return up to ``length`` of the bytes written so far."""
        with self._lock:
            return os.pread(self.descriptor, min(length, self.size_bytes - offset), offset)

    def close(self) -> None:
        """Close the file, and remove it unless it was published. Idempotent."""
        with self._lock:
            if self.descriptor >= 0:
                if not self.is_published:
                    self.path.unlink(missing_ok=True)
                os.close(self.descriptor)
                self.descriptor = -1
