"""The python kernel: runs cells on the image's python, 3.8 or newer, and tells what they print, show and raise.

``kernel.py`` beside this folder starts it. What it says and hears is in ``docs/design/0010-kernels.md``.

Laws:
- Standard library only, but for IPython where the image has it; numpy, pandas and Matplotlib are used, never required.
- Cells may do anything to their process. Modules here resolve builtins in a copy of their own (``kernel.py``), hold what they need
  from the start, and put back before the next cell what a cell must not take away: streams, descriptors, signals, modules.
- Nothing is written to any disk.

What cells may import of it is :func:`on_wake`, for generators of random numbers that they hold themselves. Those that everybody has
are seen to by :func:`reseed`: when a sandbox is restored, forked or woken its memory is that of another life, and two lives with the same
generator would draw the same numbers.
"""

from __future__ import annotations

import hashlib
import random
import signal
import sys
import tempfile
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["on_wake"]

PATIENCE_S = 2.0
"""How long a callback may take until it is interrupted."""
AGAIN_S = 1.0
CALLBACKS = 256


class Hooks:
    """What cells want to be called for; a process has one kernel, and a kernel one of these."""

    def __init__(self) -> None:
        self._callbacks: list[Any] = []

    def add(self, callback: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Have a function called whenever this kernel begins another life: after a restore, fork, or wake, before its next cell.

        A function of the same name from the same module takes the place of the one before, so that a cell may be run again. Works
        as a decorator. An exception, and what takes longer than 2 s, is told on stderr of the next cell.

        Args:
            callback: Called with 64 bytes that no other callback, kernel or sandbox is given.

        Raises:
            TypeError: It cannot be called.
            RuntimeError: There are 256 already.
        """
        if not callable(callback):
            raise TypeError("on_wake() takes a function of one argument: 64 bytes of fresh randomness")
        name = _name_of(callback)
        for number, known in enumerate(self._callbacks):
            if known is callback or (name is not None and _name_of(known) == name):
                self._callbacks[number] = callback
                return callback
        if len(self._callbacks) >= CALLBACKS:
            raise RuntimeError(f"on_wake() has {CALLBACKS} functions already")
        self._callbacks.append(callback)
        return callback

    def call(self, entropy: bytes, interrupts: Any) -> str:
        """Call them all.

        Args:
            entropy: Of this wake and kernel.
            interrupts: What lets an interrupt strike (``running.Interrupts``).

        Returns:
            What went wrong, to be told; empty where nothing did.
        """
        said = []
        for number, callback in enumerate(list(self._callbacks)):
            own = hashlib.sha512(entropy + b"on_wake" + number.to_bytes(4, "big")).digest()
            over = threading.Event()
            threading.Thread(target=_interrupt_later, args=(over,), daemon=True).start()
            try:
                try:
                    interrupts.in_user_code = True
                    callback(own)
                finally:
                    interrupts.in_user_code = False
                    over.set()
            except KeyboardInterrupt:
                said.append(f"sandlot_kernel.on_wake: {_shown(callback)} took longer than {PATIENCE_S:g} s and was interrupted.\n")
            except BaseException as error:  # noqa: BLE001 - a callback must not keep the kernel from its next cell
                said.append(f"sandlot_kernel.on_wake: {_shown(callback)} failed: {type(error).__name__}: {str(error)[:500]}\n")
        return "".join(said)


hooks = Hooks()
on_wake = hooks.add


def reseed(entropy: bytes) -> None:
    """Randomness of this life, not of the snapshot or the process that it comes from.

    Args:
        entropy: 64 bytes, of this kernel alone.
    """
    for renew in (_renew_standard, _renew_openssl, _renew_numpy, _renew_torch):
        try:
            renew(entropy)
        except Exception:  # noqa: BLE001, S112 - a cell has put something else in its place
            continue


def _renew_standard(entropy: bytes) -> None:
    random.seed(entropy)
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # noqa: SLF001 - it has a generator of its own


def _renew_openssl(entropy: bytes) -> None:
    """OpenSSL asks the system when a process begins, forks, or has run for long; not when it is another life of the same process."""
    ssl: Any = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(entropy, float(len(entropy)))
    bindings: Any = sys.modules.get("cryptography.hazmat.bindings._rust")  # its wheel brings an OpenSSL of its own
    if bindings is not None:
        bindings._openssl.lib.RAND_add(entropy, len(entropy), float(len(entropy)))  # noqa: SLF001 - as pyOpenSSL's rand.add() does


def _renew_numpy(entropy: bytes) -> None:
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([int.from_bytes(entropy[at : at + 4], "big") for at in range(0, len(entropy), 4)])


def _renew_torch(entropy: bytes) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(entropy[4:12], "big") >> 1)


def _name_of(callback: Any) -> Any:
    """By what a function is known that is defined once more; None where it has no name of its own."""
    name = getattr(callback, "__qualname__", "<")
    return None if "<" in name else (getattr(callback, "__module__", None), name)


def _shown(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__name__))[:100]


def _interrupt_later(over: threading.Event) -> None:
    patience_s = PATIENCE_S
    while not over.wait(patience_s):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        patience_s = AGAIN_S
