"""Disk space that is left free for the host and the service by programs that write outside of the service's reservations."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandlot.model.errors import ErrorCode, LimitError

RESERVE_DIVISOR: Final = 20
"""The default reserve is a twentieth of the disk, at least ``MIN_RESERVE_BYTES`` and at most ``MAX_RESERVE_BYTES``."""
MIN_RESERVE_BYTES: Final = 1 << 30
MAX_RESERVE_BYTES: Final = 4 << 30
POLL_S: Final = 0.2
"""Seconds between two readings of the free space. A disk that takes 1 GB/s loses a fifth of the least reserve meanwhile."""


class FreeSpace:
    """Free space of the disk of a folder.

    Args:
        folder: The folder; it must exist when a method is called.
        reserve_bytes: Bytes to leave free. None: the default reserve.
    """

    def __init__(self, folder: Path, reserve_bytes: int | None = None) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def check(self) -> None:
        """Refuse to write while no more than the reserve is free.

        Raises:
            LimitError: No more than the reserve is free (``node_disk_full``).
        """
        disk = os.statvfs(self._folder)
        default = min(max(disk.f_blocks * disk.f_frsize // RESERVE_DIVISOR, MIN_RESERVE_BYTES), MAX_RESERVE_BYTES)
        reserve, free = default if self._reserve_bytes is None else self._reserve_bytes, disk.f_bavail * disk.f_frsize
        if free < reserve:
            raise LimitError(
                f"The disk of {self._folder} has {free >> 20} MiB free; {reserve >> 20} MiB are reserved for the host.",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Free space, set SANDLOT_CACHE_DIR to a folder on another disk, or lower SANDLOT_DISK_RESERVE_BYTES.",
                fields={"free": free, "reserve": reserve},
            )

    @contextmanager
    def watched(self, stop: Callable[[], None]) -> Iterator[None]:
        """Check the free space every ``POLL_S`` seconds while the body of the ``with`` block runs.

        Args:
            stop: Function that ends the body. Called in another thread, once, when no more than the reserve is free.

        Raises:
            LimitError: No more than the reserve was free (``node_disk_full``).
        """
        ended = threading.Event()
        found: list[LimitError] = []

        def watch() -> None:
            while not ended.wait(POLL_S):
                try:
                    self.check()
                except LimitError as error:
                    found.append(error)
                    stop()
                    return

        watcher = threading.Thread(target=watch, name="free-space", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            if found:
                raise found[0]
