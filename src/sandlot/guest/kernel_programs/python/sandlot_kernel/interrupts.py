"""Handler of SIGINT, which raises KeyboardInterrupt only where raising is safe.

- In user code of a cell, SIGINT raises KeyboardInterrupt at once.
- In kernel code that must not be interrupted, SIGINT is remembered as pending. KeyboardInterrupt is raised when user code runs again.
- While a cell awaits something in the event loop, SIGINT cancels the cell.
- Between cells, SIGINT is ignored, unless a callback of the event loop is running: KeyboardInterrupt is then raised in the callback.
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
"""Paths, or beginnings of paths, of source files whose code only waits for events or calls callbacks. Frames of these files are not user code."""


class Interrupts:
    """The kernel's handler of SIGINT, and the state that decides what SIGINT does. Only the main thread may change the attributes.

    Attributes:
        in_cell: True if a cell runs.
        in_user_code: True while user code runs, in which SIGINT may raise KeyboardInterrupt.
        depth: Number of nested calls of kernel code in which SIGINT must not raise KeyboardInterrupt.
        pending: True if SIGINT has arrived while KeyboardInterrupt must not be raised, so that KeyboardInterrupt must be raised later.
        cancel: Function that cancels the cell and returns True, or returns False if the cell has ended. None if the running cell does not
            run in the event loop.
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
        """Install this object's handler of SIGINT if the handler may have been replaced. Called before each cell.

        Python does not notice if C code of a module replaces the handler. The handler is therefore also installed again if modules were imported
        since the last call.

        Args:
            anew: True to install the handler in any case.
        """
        known = len(sys.modules)
        if anew or known != self._known or signal.getsignal(signal.SIGINT) != self._on_sigint:
            self._known = known
            signal.signal(signal.SIGINT, self._on_sigint)
        if sys.unraisablehook != self._on_unraisable:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable

    def enter(self) -> None:
        """Record that user code begins.

        Raises:
            KeyboardInterrupt: An interrupt was pending.
        """
        self.in_user_code = True
        self.check()

    def leave(self) -> None:
        """Record that user code has ended: from now on, SIGINT does not raise KeyboardInterrupt."""
        self.in_user_code = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt is pending and the calling code is user code that may be interrupted."""
        if self.pending and self.in_user_code and not self.depth:
            self.pending = False
            raise KeyboardInterrupt

    def _on_unraisable(self, what: Any) -> None:
        """Interrupt the main thread again if KeyboardInterrupt was raised in a finalizer, where Python ignores exceptions.

        Other exceptions are passed to the previous ``sys.unraisablehook``.
        """
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
