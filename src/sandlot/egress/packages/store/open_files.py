"""Open files of the store: :class:`OpenFile` for reading, :class:`DraftFile` for writing.

Invariant: ``close`` may be called while another thread reads or writes the file. It waits until the read or write has returned, because the kernel
reuses the number of a closed descriptor for other files.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path


class OpenFile:
    """A file of the store or of this machine, open for reading. The content stays readable after the file is removed from its folder.

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
        """Return ``length`` bytes from ``offset`` on, or fewer at the end of the file."""
        with self._lock:
            return os.pread(self.descriptor, length, offset)

    def close(self) -> None:
        """Close the file. If another thread reads from it, wait until that read has returned. Idempotent."""
        with self._lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1


class DraftFile:
    """A new file of the store that is being written. It must be closed, even if it was published.

    Args:
        folder: Folder in which the file is created; the store's folder for incomplete files.
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
        """Append data to the file.

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
        """Allocate ``more_bytes`` of disk space for data that is written later.

        A full disk is therefore noticed before the data is downloaded. The allocated space no longer counts as free space for other writers.

        Raises:
            OSError: The disk is full or failed, or the file was closed.
        """
        with self._lock:
            os.posix_fallocate(self.descriptor, self.allocated_bytes, more_bytes)
            self.allocated_bytes += more_bytes

    def finish(self, *, durable: bool) -> None:
        """End the writing of the file: free the disk space that was allocated but not written.

        Args:
            durable: True: wait until the data is on disk (fdatasync(2)).

        Raises:
            OSError: The disk failed, or the file was closed.
        """
        with self._lock:
            if self.allocated_bytes > self.size_bytes:
                os.ftruncate(self.descriptor, self.size_bytes)
            if durable:
                os.fdatasync(self.descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, or fewer if the file does not have that many bytes yet."""
        with self._lock:
            return os.pread(self.descriptor, min(length, self.size_bytes - offset), offset)

    def close(self) -> None:
        """Close the file. If it was not published, remove it from the disk. Idempotent."""
        with self._lock:
            if self.descriptor >= 0:
                if not self.is_published:
                    self.path.unlink(missing_ok=True)
                os.close(self.descriptor)
                self.descriptor = -1
