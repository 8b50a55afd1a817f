"""End of all builds of an image store, for the stop of a service: a build takes minutes, and mkfs.erofs reports no progress meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from sandlot.model.errors import ErrorCode, UnavailableError


class BuildStop:
    """Stop of builds. All methods can be called in any thread."""

    __slots__ = ("_ends", "_is_set", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = threading.Event()
        self._ends: dict[object, Callable[[], object]] = {}

    @property
    def is_set(self) -> bool:
        """True if builds end."""
        return self._is_set.is_set()

    def set(self) -> None:
        """End all running builds, and refuse further ones. Idempotent."""
        with self._lock:
            self._is_set.set()
            for end in self._ends.values():
                end()
            self._ends.clear()

    def check(self, wait_s: float = 0.0) -> None:
        """Raise an error if builds end.

        Args:
            wait_s: Seconds to wait before the check. A stop ends the wait.

        Raises:
            UnavailableError: The service is stopping (``service_unavailable``).
        """
        if self._is_set.wait(wait_s):
            raise UnavailableError(
                "The service is stopping.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint="Retry when the service has restarted.",
                fields={"retry_after_s": 1},
            )

    @contextlib.contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Call a function, such as one that kills a process, if builds are stopped while the body of the ``with`` block runs, or were before.

        Args:
            end: Function that ends the body. It must not block.

        Raises:
            UnavailableError: Builds were stopped (``service_unavailable``), after the body has ended.
        """
        key = object()
        with self._lock:
            if self.is_set:
                end()
            else:
                self._ends[key] = end
        try:
            yield
        finally:
            with self._lock:
                self._ends.pop(key, None)
        self.check()
