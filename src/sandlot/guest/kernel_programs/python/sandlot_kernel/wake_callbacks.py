"""Wake callbacks: functions that cells register with ``on_wake`` and that the kernel calls after each restore, fork or wake of the sandbox.

A callback can reseed a random number generator that a cell has created. Without new seeds, two sandboxes with the same memory would draw the same
random numbers. The module ``randomness`` reseeds the generators of common libraries.
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
"""Maximum running time of a callback in seconds. After that, the callback is interrupted."""
INTERRUPT_AGAIN_S = 1.0
"""Seconds until a callback that continues after an interrupt is interrupted again."""
MAX_CALLBACKS = 256
"""Maximum number of callbacks in one kernel."""


class WakeCallbacks:
    """The wake callbacks of a kernel, in the order in which cells have added them."""

    def __init__(self) -> None:
        self._callbacks: list[Any] = []

    def add(self, callback: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Register a function to be called after each restore, fork or wake of the sandbox, before the next cell.

        Can be used as a decorator. A function replaces a callback that has the same name and module, so that a cell with ``on_wake`` may be run
        several times. If a callback raises an exception, or is interrupted after 2 s, the next cell writes a line about this to its stderr.

        Args:
            callback: Function with one parameter, which gets 64 random bytes that no other callback, kernel or sandbox gets.

        Returns:
            ``callback``, so that this method can be a decorator.

        Raises:
            TypeError: ``callback`` is not callable.
            RuntimeError: The kernel has 256 callbacks, the maximum.
        """
        if not callable(callback):
            raise TypeError(f"on_wake() takes a function with one parameter (64 random bytes), not {type(callback).__name__}")
        name = _qualified_name(callback)
        for number, known in enumerate(self._callbacks):
            if known is callback or (name is not None and _qualified_name(known) == name):
                self._callbacks[number] = callback
                return callback
        if len(self._callbacks) >= MAX_CALLBACKS:
            raise RuntimeError(f"on_wake() already has {MAX_CALLBACKS} functions, the maximum; reuse the name of a function to replace that function")
        self._callbacks.append(callback)
        return callback

    def call(self, entropy: bytes, interrupts: Interrupts) -> str:
        """Call all callbacks, one after another.

        Args:
            entropy: Random bytes that only this kernel gets at this wake. The random bytes for each callback are derived from these bytes.
            interrupts: Handler of SIGINT. While a callback runs, the handler may raise KeyboardInterrupt.

        Returns:
            Text with one line for each callback that has raised an exception or was interrupted; empty if all callbacks succeeded.
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
"""The wake callbacks of the kernel that runs in this process."""


def _qualified_name(callback: Any) -> Any:
    """Return the module and the qualified name of a function. Return None for lambdas and local functions, whose names are not unique.

    Args:
        callback: The function; may be any callable.
    """
    name = getattr(callback, "__qualname__", "<")
    return None if "<" in name else (getattr(callback, "__module__", None), name)


def _display_name(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__name__))[:100]


def _interrupt_after_timeout(over: threading.Event) -> None:
    timeout_s = TIMEOUT_S
    while not over.wait(timeout_s):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        timeout_s = INTERRUPT_AGAIN_S
