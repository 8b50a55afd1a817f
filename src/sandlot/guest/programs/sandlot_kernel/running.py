"""What runs a cell: the interrupt that ends it, and the event loop that goes on between cells.

Laws:
- SIGINT raises KeyboardInterrupt in a cell's own code, at once. While the kernel's code does something that must not be torn, it is
  remembered and raised on the way back. Between cells it is ignored, but for a callback of the loop that does not end.
- A cell with ``await`` outside of functions runs inside of the loop. Every other cell runs while the loop stands still, and yet
  finds it: ``asyncio.create_task`` works there, and its task begins once the cell is over; ``asyncio.run`` and
  ``run_until_complete`` work as well, because what they check says that nothing is running, which is true.
- A loop that a cell stopped is run on; one that it closed is replaced.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import os
import selectors
import signal
import sys
from asyncio import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType
    from typing import Any

    from .wire import Wire

MACHINERY = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__, (lambda: None).__code__.co_filename)
"""Files of code that only waits, or hands out turns, this one too: no cell is found there."""


class Interrupts:
    """SIGINT, and when it may strike. Its fields are the main thread's."""

    __slots__ = ("_known", "_unraisable", "cancel", "cancelled", "depth", "in_cell", "in_user_code", "pending")

    def __init__(self) -> None:
        self._unraisable: Any = None
        self._known = 0
        self.in_cell = False
        self.in_user_code = False
        self.depth = 0
        """How deep the main thread is in code of the kernel that must not be torn, called by user code."""
        self.pending = False
        self.cancel: Callable[[], bool] | None = None
        """How to interrupt a cell that awaits; whether there was one to interrupt."""
        self.cancelled = False
        """Whether that was done to the running cell."""

    def install(self, *, anew: bool = False) -> None:
        """Take the signal (back).

        Args:
            anew: Also where Python knows of nobody else who has it: C code may. It is asked by what is imported as well.
        """
        known = len(sys.modules)
        if anew or known != self._known or signal.getsignal(signal.SIGINT) != self._came:
            self._known = known
            signal.signal(signal.SIGINT, self._came)
        if sys.unraisablehook != self._swallowed:
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._swallowed

    def enter(self) -> None:
        """User code begins; an interrupt that came before strikes now."""
        self.in_user_code = True
        self.check()

    def leave(self) -> None:
        """User code is over."""
        self.in_user_code = False

    def check(self) -> None:
        """Raise what came while it could not."""
        if self.pending and self.in_user_code and not self.depth:
            self.pending = False
            raise KeyboardInterrupt

    def _swallowed(self, what: Any) -> None:
        """An exception that Python cannot raise: an interrupt that struck in a finalizer strikes again after it."""
        if self.in_cell and what.exc_type is KeyboardInterrupt:
            _thread.interrupt_main()
        elif callable(self._unraisable):
            self._unraisable(what)

    def _came(self, _number: int, frame: FrameType | None) -> None:
        waits = frame is not None and frame.f_code.co_filename.startswith(MACHINERY)
        if not self.in_cell:
            if waits or self.depth or not self.in_user_code:
                return  # nobody is meant
            raise KeyboardInterrupt
        if self.depth or not self.in_user_code:
            self.pending = True
        elif waits and not self.cancelled and self.cancel is not None and self.cancel():
            self.cancelled = True
        else:
            raise KeyboardInterrupt


class Loop:
    """The main thread's event loop."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._past: list[Any] = []
        """Loops whose descriptors a cell closed: to let them go would close what has their numbers now."""
        self._still = False
        self._context = contextvars.copy_context()
        self._get = events._get_running_loop  # noqa: SLF001 - the one place that run() and run_until_complete() look at
        self._set = events._set_running_loop  # noqa: SLF001

    def install(self) -> None:
        """Make a loop for this process, and let those that check find that it stands still while it does."""
        self.ready()
        for module in (events, asyncio):  # other loops take them from the package
            module._get_running_loop = self._running  # type: ignore[attr-defined]  # noqa: SLF001
            module._set_running_loop = self._change  # type: ignore[attr-defined]  # noqa: SLF001

    def ready(self) -> asyncio.AbstractEventLoop:
        """The loop; a new one where a cell closed the last."""
        loop = self._loop
        if loop is None or loop.is_closed() or not _works(loop):
            self._past.append(loop)
            loop = self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        return loop

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Call something in the context that all cells share."""
        return self._context.run(function, *args)

    def step(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell that awaits nothing."""
        loop = self.ready()
        self._still = True
        self._set(loop)
        try:
            self._context.run(coroutine.send, None)
        except StopIteration as end:
            return end.value
        finally:
            self._still = False
            self._set(None)
        coroutine.close()
        raise RuntimeError("a cell without await waited")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell inside of the loop."""
        loop = self.ready()
        if sys.version_info >= (3, 11):
            task = loop.create_task(coroutine, context=self._context)
        else:
            task = loop.create_task(coroutine)

        def cancel() -> bool:
            if task.done():
                return False
            loop.call_soon_threadsafe(task.cancel)
            return True

        self._interrupts.cancel = cancel
        try:
            while not task.done():
                self._on(loop, task)
        finally:
            self._interrupts.cancel = None
        return task.result()

    def _on(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """Run the loop until the cell is done, or something else came out of it."""
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            if not task.done():  # it hit a callback or another task
                self._interrupts.cancelled = True
                task.cancel()
        except (SystemExit, asyncio.CancelledError):
            return  # another task wanted to end the program, or the cell was cancelled
        except RuntimeError:
            if loop.is_closed():
                raise

    def wait(self, wire: Wire) -> None:
        """Let tasks go on, where there are any, until the guest says something."""
        while True:
            loop = self._loop
            if loop is None or loop.is_closed() or not _busy(loop) or wire.has_early:
                return  # to read waits for it
            try:
                self._interrupts.in_user_code = True
                loop.add_reader(wire.fileno(), loop.stop)
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                pass  # a callback that did not end while a cell waits, or one that wanted to end its task
            except (OSError, RuntimeError, ValueError):
                self._loop = None  # a cell closed what it consists of
            finally:
                self._interrupts.in_user_code = False
                try:
                    loop.remove_reader(wire.fileno())
                except (OSError, RuntimeError, ValueError):
                    self._loop = None
            if wire.wait(0):
                return

    def _running(self) -> asyncio.AbstractEventLoop | None:
        running = self._get()
        return None if self._still and running is self._loop and running is not None and not running.is_running() else running

    def _change(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None and self._still and self._get() is not None and not self._elsewhere():
            loop = self._loop
        self._set(loop)

    def _elsewhere(self) -> bool:
        """Whether this is another thread than that of cells."""
        import threading  # noqa: PLC0415 - imported by asyncio; the name is wanted here only

        return threading.current_thread() is not threading.main_thread()


def _works(loop: Any) -> bool:
    """Whether a loop's descriptors are still there."""
    try:
        loop._selector.select(0)  # noqa: SLF001 - what is ready stays ready
    except AttributeError:
        return True  # a loop of another kind
    except (OSError, ValueError, RuntimeError, KeyError, TypeError):
        return False
    return True


def _busy(loop: Any) -> bool:
    """Whether a loop has anything to do, now or later."""
    if asyncio.all_tasks(loop) or getattr(loop, "_ready", True) or getattr(loop, "_scheduled", True):
        return True
    try:
        return len(loop._selector.get_map()) > 1  # noqa: SLF001 - its own wake-up pipe is always there
    except (AttributeError, RuntimeError, TypeError):
        return True
