"""Attribution of output to cells: output belongs to the cell that has started the thread or asyncio task that writes the output.

- An asyncio task belongs to the cell that has created the task (``contextvars``). A thread belongs to the cell of the thread that has started it.
- Work in a ``ThreadPoolExecutor`` belongs to the cell that has submitted the work, even if another cell has created the pool.
- A thread that C code has started belongs to the running cell. If no cell runs, the thread belongs to the last cell.
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
"""Id of the cell that the current task belongs to; None in threads."""
_last_cell = [""]
_CELL_ATTRIBUTE = "_sandlot_cell"
_threads: dict[int, Any] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001 - current_thread() would add an entry for an unknown thread


def begin_cell(cell: str) -> None:
    """Attribute output of the current context (``contextvars``) to a cell from now on.

    Args:
        cell: Id of the cell.
    """
    CELL.set(cell)
    _last_cell[0] = cell


def current_cell() -> str:
    """Return the id of the cell that the calling thread or task belongs to."""
    cell = CELL.get()
    if cell is None:
        cell = getattr(_threads.get(get_ident()), _CELL_ATTRIBUTE, None)
    return _last_cell[0] if cell is None else cell


def install() -> None:
    """Patch ``threading.Thread`` and ``ThreadPoolExecutor``, so that the id of the cell is stored with each thread and each submitted call."""
    start = threading.Thread.start
    submit = ThreadPoolExecutor.submit

    def started(self: threading.Thread) -> None:
        """Start the thread's activity."""
        setattr(self, _CELL_ATTRIBUTE, current_cell())
        start(self)

    def submitted(self: ThreadPoolExecutor, function: Any, /, *args: Any, **named: Any) -> Any:
        """Submit a callable to be executed with the given arguments."""
        return submit(self, _run_for_cell, current_cell(), function, args, named)

    threading.Thread.start = started  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign,assignment]


def _run_for_cell(cell: str, function: Any, args: Any, named: Any) -> Any:
    token = CELL.set(cell)
    try:
        return function(*args, **named)
    finally:
        CELL.reset(token)
