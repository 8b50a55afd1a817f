"""Tracebacks of errors in cells, as plain text of limited length. Frames of the kernel's own code and of IPython are removed."""

from __future__ import annotations

import os
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINES = 500
"""Maximum number of lines of a traceback. The last lines are kept."""
MAX_CHARS = 1024 * 1024
"""Maximum number of characters of a traceback. The last characters are kept."""
MAX_VALUE_CHARS = 8000
"""Maximum number of characters of the text of an exception."""
COMPILERS = (f"{os.sep}IPython{os.sep}", f"{os.sep}codeop.py", f"{os.sep}ast.py")
_NAME = type.__dict__["__name__"]
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def error_message(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> dict[str, Any]:
    """Return the ``error`` message to the guest that describes an exception.

    Args:
        kind: Class of the exception.
        raised: The exception. The traceback text also includes the exceptions that have caused this exception.
        trace: Traceback of the exception; None if there is none.
    """
    name = name_of(kind)
    try:
        value = str(raised)
    except BaseException as broken:  # noqa: BLE001 - the class of the exception may define __str__, which may raise anything
        value = f"(cannot be printed: {name_of(type(broken))})"
    lines = lines_of(kind, raised, trace)
    return {"event": "error", "name": name, "value": value[:MAX_VALUE_CHARS], "traceback": lines}


def name_of(kind: type) -> str:
    """Return the name of a class, even if its metaclass replaces ``__name__``."""
    return str(_NAME.__get__(kind))


def lines_of(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> list[str]:
    """Return the traceback text of an exception as a list of its last ``MAX_LINES`` lines.

    Args:
        kind: Class of the exception.
        raised: The exception.
        trace: Traceback of the exception; None if there is none.
    """
    try:
        _strip_chain(raised, set())
        lines = traceback.format_exception(kind, raised, strip(trace))
    except BaseException as broken:  # noqa: BLE001 - formatting calls __str__ of the exception, which may raise anything
        lines = [f"{name_of(kind)}: (cannot be printed: {name_of(type(broken))})\n"]
    return split("".join(lines)[-MAX_CHARS:])


def split(text: str) -> list[str]:
    """Return the last ``MAX_LINES`` lines of a text. Only a newline ends a line: messages and code may contain U+2028 and the like."""
    return text.removesuffix("\n").split("\n")[-MAX_LINES:]


def strip(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a copy of a traceback that begins with the first frame of a cell and has no frames of the kernel's own code.

    If the traceback contains no frame of a cell, frames of IPython and of Python's compiler modules are removed too.
    """
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
