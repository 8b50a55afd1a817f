"""Handling of SIGINT, which raises KeyboardInterrupt only where that is safe.

- In user code of a cell, it raises at once.
- In kernel code that must not be interrupted, it is remembered, and raises on the return to user code.
- While a cell awaits something in the event loop, it cancels the cell.
- Between cells, it is ignored, except in a callback of the event loop that does not end.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import selectors
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_THIS_FILE = (lambda: None).__code__.co_filename
WAITING_CODE = (
    os.path.dirname(asyncio.__file__) + os.sep,
    selectors.__file__,
    _THIS_FILE,
    os.path.join(os.path.dirname(_THIS_FILE), "event_loop.py"),
)
"""Paths of code that only waits or calls callbacks. A frame of this code is not code of a cell."""


class Interrupts:
    """The handler of SIGINT. Its attributes belong to the main thread.

    Attributes:
        in_cell: True if a cell runs.
        in_user_code: True while user code runs, in which an interrupt may raise.
        depth: Number of nested calls of kernel code in which an interrupt must not raise.
        pending: True if an interrupt waits until it may raise.
        cancel: Cancels the cell, and returns True if it was still running. None if the cell does not run in the event loop.
        cancelled: True if the running cell was cancelled.
    """

    __slots__ = ("_known", "_unraisable", "cancel", "cancelled", "depth", "in_cell", "in_user_code", "pending")

    def __init__(self) -> None:
        self._unraisable: Any = None
        self._known = 0
        self.in_cell = False
        self.in_user_code = False
        self.depth = 0
        self.pending = False
        self.cancel: Callable[[], bool] | None = None
        self.cancelled = False

    def install(self, *, anew: bool = False) -> None:
        """Install the handler of SIGINT, if user code may have replaced it.

        Args:
            anew: True to install it in any case, because C code may have installed a handler that Python does not know of. New imports have
                the same effect.
        """
        known = len(sys.modules)
        if anew or known != self._known or signal.getsignal(signal.SIGINT) != self._on_sigint:
            self._known = known
            signal.signal(signal.SIGINT, self._on_sigint)
        if sys.unraisablehook != self._on_unraisable:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable

    def enter(self) -> None:
        """Begin user code. A pending interrupt raises now."""
        self.in_user_code = True
        self.check()

    def leave(self) -> None:
        """End user code."""
        self.in_user_code = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt is pending and may raise here."""
        if self.pending and self.in_user_code and not self.depth:
            self.pending = False
            raise KeyboardInterrupt

    def _on_unraisable(self, what: Any) -> None:
        """Repeat an interrupt that was raised in a finalizer, where Python ignores exceptions."""
        if self.in_cell and what.exc_type is KeyboardInterrupt:
            _thread.interrupt_main()
        elif callable(self._unraisable):
            self._unraisable(what)

    def _on_sigint(self, _number: int, frame: FrameType | None) -> None:
        is_waiting = frame is not None and frame.f_code.co_filename.startswith(WAITING_CODE)
        if not self.in_cell:
            if is_waiting or self.depth or not self.in_user_code:
                return  # no cell runs
            raise KeyboardInterrupt
        if self.depth or not self.in_user_code:
            self.pending = True
        elif is_waiting and not self.cancelled and self.cancel is not None and self.cancel():
            self.cancelled = True
        else:
            raise KeyboardInterrupt
