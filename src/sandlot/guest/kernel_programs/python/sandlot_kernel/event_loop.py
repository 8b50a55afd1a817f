"""The asyncio event loop in which cells run. Tasks that a cell has created continue between cells.

- A cell with a top-level ``await`` runs in the loop.
- Any other cell runs outside the loop, while the loop is paused. ``asyncio.create_task`` works in such a cell, because the loop is set as the
  running loop; the task starts after the cell. ``asyncio.run`` and ``run_until_complete`` work too, because asyncio is patched so that they find
  no running loop.
- If a cell stops the loop, the kernel runs the loop again. If a cell closes the loop, the kernel creates a new loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from .channel import Channel
    from .interrupts import Interrupts


class EventLoop:
    """The asyncio loop of the main thread, and the ways to run a cell inside and outside the loop.

    Args:
        interrupts: Handler of SIGINT. Its attribute ``cancel`` is set while a cell runs in the loop.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed_loops: list[Any] = []
        """Loops that were replaced. They are kept, because the destructor of a loop could close descriptor numbers that other files use by now."""
        self._is_paused = False
        self._context = contextvars.copy_context()
        self._get_running = events._get_running_loop  # noqa: SLF001 - asyncio.run() and run_until_complete() call this function
        self._set_running = events._set_running_loop  # noqa: SLF001

    def install(self) -> None:
        """Create the loop, and patch asyncio so that ``asyncio.run`` finds no running loop while a cell runs outside the loop."""
        self.ready()
        for module in (events, asyncio):  # loops of other packages, such as uvloop, get these functions from ``asyncio``
            module._get_running_loop = self._running  # type: ignore[attr-defined]  # noqa: SLF001
            module._set_running_loop = self._change  # type: ignore[attr-defined]  # noqa: SLF001

    def ready(self) -> asyncio.AbstractEventLoop:
        """Return the loop. If there is no loop, or a cell has closed the loop or its descriptors, create a new loop."""
        loop = self._loop
        if loop is None or loop.is_closed() or not _works(loop):
            self._closed_loops.append(loop)
            loop = self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        return loop

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function in the context (``contextvars``) that all cells share, and return its result."""
        return self._context.run(function, *args)

    def step(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell that has no top-level ``await``, outside the loop.

        Args:
            coroutine: Coroutine that runs the cell; it must not be suspended by an ``await``.

        Returns:
            The value that the coroutine returns.

        Raises:
            RuntimeError: The coroutine was suspended by an ``await``.
        """
        loop = self.ready()
        self._is_paused = True
        self._set_running(loop)
        try:
            self._context.run(coroutine.send, None)
        except StopIteration as end:
            return end.value
        finally:
            self._is_paused = False
            self._set_running(None)
        coroutine.close()
        raise RuntimeError("the code was suspended by an await, although it was compiled without top-level await")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell with a top-level ``await`` in the loop, until the cell has ended.

        Args:
            coroutine: Coroutine that runs the cell.

        Returns:
            The value that the coroutine returns.
        """
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
                self._run_until_done(loop, task)
        finally:
            self._interrupts.cancel = None
        return task.result()

    def _run_until_done(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """Run the loop until the cell has ended or another task has stopped the loop."""
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            if not task.done():  # the interrupt was raised in a callback or another task
                self._interrupts.cancelled = True
                task.cancel()
        except (SystemExit, asyncio.CancelledError):
            return  # another task called sys.exit(), or the cell was cancelled
        except RuntimeError:
            if loop.is_closed():
                raise

    def run_until_message(self, channel: Channel) -> None:
        """Run the asyncio tasks of cells until a message of the guest arrives. Return at once if the loop has no tasks, callbacks or timers.

        Args:
            channel: Connection to the guest.
        """
        while True:
            loop = self._loop
            if loop is None or loop.is_closed() or not _busy(loop) or channel.has_message:
                return  # the caller waits for the message
            try:
                self._interrupts.in_user_code = True
                loop.add_reader(channel.fileno(), loop.stop)
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                pass  # a callback was interrupted, or a task called sys.exit()
            except (OSError, RuntimeError, ValueError):
                self._loop = None  # a cell has closed the descriptors of the loop
            finally:
                self._interrupts.in_user_code = False
                try:
                    loop.remove_reader(channel.fileno())
                except (OSError, RuntimeError, ValueError):
                    self._loop = None
            if channel.wait(0):
                return

    def _running(self) -> asyncio.AbstractEventLoop | None:
        running = self._get_running()
        return None if self._is_paused and running is self._loop and running is not None and not running.is_running() else running

    def _change(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None and self._is_paused and self._get_running() is not None and not self._in_other_thread():
            loop = self._loop
        self._set_running(loop)

    def _in_other_thread(self) -> bool:
        """Return True if the calling thread is not the main thread. Cells run in the main thread."""
        import threading  # noqa: PLC0415 - imported here, so that cells cannot replace a name of this module

        return threading.current_thread() is not threading.main_thread()


def _works(loop: Any) -> bool:
    """Return True if the descriptors of a loop are still open."""
    try:
        loop._selector.select(0)  # noqa: SLF001 - no event is lost, because ready descriptors stay ready
    except AttributeError:
        return True  # a loop of another package, such as uvloop, which has no selector
    except (OSError, ValueError, RuntimeError, KeyError, TypeError):
        return False
    return True


def _busy(loop: Any) -> bool:
    """Return True if a loop has tasks, callbacks, timers or watched descriptors."""
    if asyncio.all_tasks(loop) or getattr(loop, "_ready", True) or getattr(loop, "_scheduled", True):
        return True
    try:
        return len(loop._selector.get_map()) > 1  # noqa: SLF001 - the wake-up pipe of the loop is always watched
    except (AttributeError, RuntimeError, TypeError):
        return True
