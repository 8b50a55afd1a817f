"""SIGINT, and when it may raise KeyboardInterrupt.

- In user code of a cell it raises at once.
- In kernel code that must not be broken off, it is remembered and raised on the way back to user code.
- While a cell awaits something in the event loop, it cancels the cell.
- Between cells it is ignored, except in a callback of the event loop that does not end.
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
"""Files of code that only waits or calls callbacks: a frame of theirs is no code of a cell."""


class Interrupts:
    """The handler of SIGINT. Its attributes belong to the main thread.

    Attributes:
        in_cell: True if a cell runs.
        in_user_code: True if code of the user runs, in which an interrupt may raise.
        depth: Nesting of kernel code, called by user code, that an interrupt must not break off.
        pending: True if an interrupt waits until it may raise.
        cancel: Cancels a cell that awaits something; returns whether it was still running. None if the cell does not run in the event loop.
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
        """Handle SIGINT, also after user code has installed another handler.

        Args:
            anew: True to do so even if Python knows of no other handler: C code may have installed one. New imports have the same effect.
        """
        known = len(sys.modules)
        if anew or known != self._known or signal.getsignal(signal.SIGINT) != self._on_sigint:
            self._known = known
            signal.signal(signal.SIGINT, self._on_sigint)
        if sys.unraisablehook != self._on_unraisable:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable

    def enter(self) -> None:
        """Begin user code; an interrupt that came before raises now."""
        self.in_user_code = True
        self.check()

    def leave(self) -> None:
        """End user code."""
        self.in_user_code = False

    def check(self) -> None:
        """Raise a pending interrupt, if it may raise here."""
        if self.pending and self.in_user_code and not self.depth:
            self.pending = False
            raise KeyboardInterrupt

    def _on_unraisable(self, what: Any) -> None:
        """Repeat an interrupt that struck in a finalizer, where Python cannot raise it."""
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
