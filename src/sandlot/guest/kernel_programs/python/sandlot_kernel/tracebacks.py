"""Tracebacks of cells as plain text of limited length, without frames of the kernel and of IPython."""

from __future__ import annotations

import os
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINES = 500
MAX_CHARS = 1024 * 1024
MAX_VALUE_CHARS = 8000
COMPILERS = (f"{os.sep}IPython{os.sep}", f"{os.sep}codeop.py", f"{os.sep}ast.py")
_NAME = type.__dict__["__name__"]
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def error_message(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> dict[str, Any]:
    """Return the message about an exception.

    Args:
        kind: Class of the exception.
        raised: The exception. The text includes the exceptions that caused it.
        trace: Traceback of the exception.
    """
    name = name_of(kind)
    try:
        value = str(raised)
    except BaseException as broken:  # noqa: BLE001 - str() of an exception may fail
        value = f"(cannot be printed: {name_of(type(broken))})"
    lines = lines_of(kind, raised, trace)
    return {"event": "error", "name": name, "value": value[:MAX_VALUE_CHARS], "traceback": lines}


def name_of(kind: type) -> str:
    """Return the name of a class, even if its metaclass replaces ``__name__``."""
    return str(_NAME.__get__(kind))


def lines_of(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> list[str]:
    """Return the last ``MAX_LINES`` lines of the text of a traceback."""
    try:
        _strip_chain(raised, set())
        lines = traceback.format_exception(kind, raised, strip(trace))
    except BaseException as broken:  # noqa: BLE001 - as above
        lines = [f"{name_of(kind)}: (cannot be printed: {name_of(type(broken))})\n"]
    return "".join(lines)[-MAX_CHARS:].splitlines()[-MAX_LINES:]


def strip(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback from the first frame of a cell on, without frames of the kernel. Without a cell, leave out frames of IPython too."""
    kept = []
    while trace is not None:
        kept.append((trace.tb_frame.f_code.co_filename, trace))
        trace = trace.tb_next
    cells = [at for at, (path, _entry) in enumerate(kept) if path.startswith("<cell ")]
    if cells:
        kept = [(path, entry) for path, entry in kept[cells[0] :] if not path.startswith(HERE)]
    else:
        kept = [(path, entry) for path, entry in kept if not path.startswith(HERE) and not any(part in path for part in COMPILERS)]
    made = None
    for _path, entry in reversed(kept):
        made = types.TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _strip_chain(raised: BaseException | None, seen: set[int]) -> None:
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        raised.__traceback__ = strip(raised.__traceback__)
        for inner in getattr(raised, "exceptions", None) or ():
            if isinstance(inner, BaseException):
                _strip_chain(inner, seen)
        _strip_chain(raised.__cause__, seen)
        raised = raised.__context__
