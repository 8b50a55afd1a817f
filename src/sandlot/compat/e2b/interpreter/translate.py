"""Events of code as objects that E2B's clients parse. Pure.

Invariants:
- A representation is the field of the result that E2B has for its MIME type. Other representations are in ``extra`` by MIME type.
- Text that is a quoted string loses its quotes, as at E2B: the value of ``'a' + 'b'`` is ``ab``.
- JSON is embedded, not encoded as text. Images and other bytes are base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import rfc3339_ms
from sandlot.model.executions import CellError, CodeStatus, Display
from sandlot.web.streaming import StreamEvent

CHART = "application/vnd.sandlot.chart.v1+json"
TABLE = "application/vnd.sandlot.table.v1+json"

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "text/plain": "text",
        "text/html": "html",
        "text/markdown": "markdown",
        "image/svg+xml": "svg",
        "image/png": "png",
        "image/jpeg": "jpeg",
        "application/pdf": "pdf",
        "text/latex": "latex",
        "application/json": "json",
        "application/javascript": "javascript",
        CHART: "chart",
        TABLE: "data",
    }
)
"""MIME type -> field of a result."""

_MIN_QUOTED: Final = 2

_ENDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "timeout": ("TimeoutError", "The code exceeded its timeout and was interrupted."),
        "killed": ("KernelKilled", "The interpreter ignored the interrupt and was killed. Its variables are gone; files stay."),
        "died": ("KernelDied", "The interpreter of this context ended. Its variables are gone; files stay, and the next run starts a new one."),
        "oom": ("MemoryError", "The interpreter was killed because it took too much memory. Its variables are gone; files stay."),
        "aborted": ("Aborted", "The code was not run: the context was interrupted or restarted before its turn."),
        "error": ("Error", "The code failed."),
    }
)
"""Status of code that ended without an exception -> name and value of the error."""


def started(count: int) -> dict[str, Any]:
    """Return the event of started code."""
    return {"type": "number_of_executions", "execution_count": count}


def output(event: StreamEvent, at: datetime) -> dict[str, Any]:
    """Return the event of output, or of lost output."""
    data = event.data
    if event.name == "lost":
        text = f"[{data['lost_bytes']} bytes were not kept]\n"
    elif data["encoding"] == "base64":
        text = base64.b64decode(data["data"]).decode("utf-8", "replace")
    else:
        text = data["data"]
    return {"type": data["stream"], "text": text, "timestamp": rfc3339_ms(at)}


def result(display: Display) -> dict[str, Any]:
    """Return the event of a display."""
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for mime, item in display.data.items():
        value = _value(mime, item)
        name = FIELDS.get(mime)
        if name is None:
            extra[mime] = value
        elif name not in {"chart", "data"} or isinstance(value, dict):
            fields[name] = _unquoted(value) if name == "text" else value
    return {"type": "result", **fields, "is_main_result": display.main, "extra": extra}


def error(raised: CellError) -> dict[str, Any]:
    """Return the event of an exception."""
    return failure(raised.name, raised.value, "\n".join(raised.traceback))


def end(outcome: CodeStatus) -> dict[str, Any] | None:
    """Return the event of code that ended without an exception and did not succeed; None if it succeeded."""
    error = _ENDS.get(outcome.status)
    return None if error is None else failure(*error, error[1])


def failure(name: str, value: str, traceback: str) -> dict[str, Any]:
    """Return an error event."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _value(mime: str, item: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Return a representation as JSON."""
    if mime == "application/json" or mime.endswith("+json"):
        text = item if isinstance(item, str) else item.decode("utf-8", "replace")
        try:
            return _finite(json.loads(text))
        except (ValueError, RecursionError):
            return text
    if isinstance(item, str):
        return item
    return item.decode("utf-8", "replace") if mime.startswith("text/") or mime == "image/svg+xml" else base64.b64encode(item).decode()


def _finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace NaN and infinities, which Python accepts in JSON, by null (RFC 8259, 6)."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unquoted(text: str) -> str:
    quoted = len(text) >= _MIN_QUOTED and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
