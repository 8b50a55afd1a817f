"""Attribution of output to cells: output belongs to the cell that started the thread or the task that wrote it.

- Tasks inherit the cell through their context (``contextvars``). Threads inherit the cell of the thread that starts them, at any depth.
- Work in a ``ThreadPoolExecutor`` belongs to the cell that submitted it, even if another cell created the pool.
- A thread that was started by C code belongs to the running cell, or to the last cell between cells.
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
_last_cell = [""]
_CELL_ATTRIBUTE = "_sandlot_cell"
_threads: dict[int, Any] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001 - current_thread() would add an entry for an unknown thread


def begin_cell(cell: str) -> None:
    """Attribute output to a cell from now on, in the current context."""
    CELL.set(cell)
    _last_cell[0] = cell


def current_cell() -> str:
    """Return the cell that the calling code belongs to."""
    cell = CELL.get()
    if cell is None:
        cell = getattr(_threads.get(get_ident()), _CELL_ATTRIBUTE, None)
    return _last_cell[0] if cell is None else cell


def install() -> None:
    """Patch threads and thread pools, so that they remember the cell."""
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
