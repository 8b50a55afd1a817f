"""Which cell a piece of output belongs to: the one that started the thread or the task that wrote it.

Laws:
- Tasks inherit by their context, as Python has it. Threads inherit from the thread that starts them, however deep.
- Work given to a ``ThreadPoolExecutor`` belongs to the cell that gave it, whoever made the pool.
- A thread that nobody is known to have started (one of C code) belongs to the running cell, or to the last one.
"""

from __future__ import annotations

import contextvars
import threading
from _thread import get_ident
from concurrent.futures import ThreadPoolExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CELL: contextvars.ContextVar[str | None] = contextvars.ContextVar("cell", default=None)
_LATEST = [""]
_STARTER = "_sandlot_cell"
_THREADS: dict[int, Any] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001 - current_thread() makes an entry where there is none


def begin(cell: str) -> None:
    """A cell begins, in the context that this is called in."""
    CELL.set(cell)
    _LATEST[0] = cell


def current() -> str:
    """The cell that whoever calls this belongs to."""
    cell = CELL.get()
    if cell is None:
        cell = getattr(_THREADS.get(get_ident()), _STARTER, None)
    return _LATEST[0] if cell is None else cell


def install() -> None:
    """Let threads know who started them."""
    start = threading.Thread.start
    submit = ThreadPoolExecutor.submit

    def started(self: threading.Thread) -> None:
        """Start the thread's activity."""
        setattr(self, _STARTER, current())
        start(self)

    def submitted(self: ThreadPoolExecutor, function: Any, /, *args: Any, **named: Any) -> Any:
        """Submit a callable to be executed with the given arguments."""
        return submit(self, _carried, current(), function, args, named)

    threading.Thread.start = started  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign,assignment]


def _carried(cell: str, function: Any, args: Any, named: Any) -> Any:
    token = CELL.set(cell)
    try:
        return function(*args, **named)
    finally:
        CELL.reset(token)
