"""The asyncio event loop of cells, whose tasks continue between cells.

- A cell with ``await`` outside of functions runs in the loop.
- Every other cell runs while the loop is paused, and yet finds it: ``asyncio.create_task`` works, and the task begins when the cell is
  over. ``asyncio.run`` and ``run_until_complete`` work as well: asyncio finds that no loop is running, which is true.
- A loop that a cell has stopped is run on; one that it has closed is replaced.
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
    """The asyncio loop of the main thread.

    Args:
        interrupts: Told how to cancel a cell that awaits something.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed_loops: list[Any] = []
        """Loops whose descriptors a cell has closed. They are kept, because their destructors would close descriptors that were reused."""
        self._is_paused = False
        self._context = contextvars.copy_context()
        self._get_running = events._get_running_loop  # noqa: SLF001 - what run() and run_until_complete() check
        self._set_running = events._set_running_loop  # noqa: SLF001

    def install(self) -> None:
        """Create the loop, and let asyncio find that no loop is running while a cell runs outside of it."""
        self.ready()
        for module in (events, asyncio):  # other implementations of loops import them from the package
            module._get_running_loop = self._running  # type: ignore[attr-defined]  # noqa: SLF001
            module._set_running_loop = self._change  # type: ignore[attr-defined]  # noqa: SLF001

    def ready(self) -> asyncio.AbstractEventLoop:
        """Return the loop; create a new one if a cell has closed it."""
        loop = self._loop
        if loop is None or loop.is_closed() or not _works(loop):
            self._closed_loops.append(loop)
            loop = self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        return loop

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function in the context (``contextvars``) that all cells share."""
        return self._context.run(function, *args)

    def step(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell that awaits nothing, outside of the loop."""
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
        raise RuntimeError("a cell without await waited")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell in the loop."""
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
        """Run the loop until the cell is done, or another task has stopped the loop."""
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            if not task.done():  # it was raised in a callback or another task
                self._interrupts.cancelled = True
                task.cancel()
        except (SystemExit, asyncio.CancelledError):
            return  # another task wanted to end the program, or the cell was cancelled
        except RuntimeError:
            if loop.is_closed():
                raise

    def run_until_message(self, channel: Channel) -> None:
        """Run tasks, if there are any, until a message of the guest arrives."""
        while True:
            loop = self._loop
            if loop is None or loop.is_closed() or not _busy(loop) or channel.has_message:
                return  # the caller's read waits
            try:
                self._interrupts.in_user_code = True
                loop.add_reader(channel.fileno(), loop.stop)
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                pass  # a callback that did not end was interrupted, or a task wanted to end the program
            except (OSError, RuntimeError, ValueError):
                self._loop = None  # a cell has closed its descriptors
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
        """Return whether this thread is not the one of cells."""
        import threading  # noqa: PLC0415 - asyncio has imported it; a name in this module is not wanted

        return threading.current_thread() is not threading.main_thread()


def _works(loop: Any) -> bool:
    """Return whether the descriptors of a loop are still open."""
    try:
        loop._selector.select(0)  # noqa: SLF001 - ready descriptors stay ready
    except AttributeError:
        return True  # another implementation
    except (OSError, ValueError, RuntimeError, KeyError, TypeError):
        return False
    return True


def _busy(loop: Any) -> bool:
    """Return whether a loop has anything to do, now or later."""
    if asyncio.all_tasks(loop) or getattr(loop, "_ready", True) or getattr(loop, "_scheduled", True):
        return True
    try:
        return len(loop._selector.get_map()) > 1  # noqa: SLF001 - its own wake-up pipe is always there
    except (AttributeError, RuntimeError, TypeError):
        return True
