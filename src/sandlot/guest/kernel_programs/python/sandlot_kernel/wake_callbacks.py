"""Wake callbacks: functions of cells that are called after each restore, fork or wake of the sandbox.

A callback can reseed a random number generator of a cell. Otherwise, two sandboxes with the same memory would get the same numbers. Generators of
common libraries are reseeded by ``randomness``.
"""

from __future__ import annotations

import hashlib
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .interrupts import Interrupts

TIMEOUT_S = 2.0
"""Seconds after which a callback is interrupted."""
INTERRUPT_AGAIN_S = 1.0
"""Seconds until a callback that still runs is interrupted again."""
MAX_CALLBACKS = 256


class WakeCallbacks:
    """The callbacks of a kernel, in the order in which they were added."""

    def __init__(self) -> None:
        self._callbacks: list[Any] = []

    def add(self, callback: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Call a function after each restore, fork or wake of the sandbox, before the next cell.

        A function replaces an earlier one with the same name and module, so that a cell may be run again. Works as a decorator. A callback
        that raises, or that is interrupted after 2 s, is reported on the stderr of the next cell.

        Args:
            callback: Function of one argument: 64 random bytes that no other callback, kernel or sandbox receives.

        Returns:
            The callback.

        Raises:
            TypeError: ``callback`` is not callable.
            RuntimeError: There are 256 callbacks, the maximum.
        """
        if not callable(callback):
            raise TypeError("on_wake() takes a function of one argument, 64 random bytes")
        name = _qualified_name(callback)
        for number, known in enumerate(self._callbacks):
            if known is callback or (name is not None and _qualified_name(known) == name):
                self._callbacks[number] = callback
                return callback
        if len(self._callbacks) >= MAX_CALLBACKS:
            raise RuntimeError(f"on_wake() has {MAX_CALLBACKS} functions, the maximum")
        self._callbacks.append(callback)
        return callback

    def call(self, entropy: bytes, interrupts: Interrupts) -> str:
        """Call all callbacks.

        Args:
            entropy: Random bytes of this wake for this kernel.
            interrupts: The handler of SIGINT, so that a callback can be interrupted.

        Returns:
            One line for each callback that failed.
        """
        failures = []
        for number, callback in enumerate(list(self._callbacks)):
            own_entropy = hashlib.sha512(entropy + b"on_wake" + number.to_bytes(4, "big")).digest()
            over = threading.Event()
            threading.Thread(target=_interrupt_after_timeout, args=(over,), daemon=True).start()
            try:
                try:
                    interrupts.in_user_code = True
                    callback(own_entropy)
                finally:
                    interrupts.in_user_code = False
                    over.set()
            except KeyboardInterrupt:
                failures.append(f"sandlot_kernel.on_wake: {_display_name(callback)} took longer than {TIMEOUT_S:g} s and was interrupted.\n")
            except BaseException as error:  # noqa: BLE001 - a failed callback must not prevent the next cell
                failures.append(f"sandlot_kernel.on_wake: {_display_name(callback)} failed: {type(error).__name__}: {str(error)[:500]}\n")
        return "".join(failures)


callbacks = WakeCallbacks()
"""The callbacks of this process, which has one kernel."""


def _qualified_name(callback: Any) -> Any:
    """Return module and name of a function, which are the same after a redefinition; None for lambdas and local functions."""
    name = getattr(callback, "__qualname__", "<")
    return None if "<" in name else (getattr(callback, "__module__", None), name)


def _display_name(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__name__))[:100]


def _interrupt_after_timeout(over: threading.Event) -> None:
    timeout_s = TIMEOUT_S
    while not over.wait(timeout_s):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        timeout_s = INTERRUPT_AGAIN_S
