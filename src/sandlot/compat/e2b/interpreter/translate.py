"""What a cell gives, as lines that E2B's clients read. Pure.

Laws:
- A representation is a field of its result by the name that E2B has for it; any other is in ``extra`` by its MIME type.
- Text that is a quoted string is told without its quotes, as E2B tells it: the value of ``'a' + 'b'`` reads ``ab``.
- JSON is told as what it is, and not as text; images and other bytes as base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sandlot.compat.common import rfc3339_ms
from sandlot.model.executions import CellError, CodeStatus, Display
from sandlot.web.streaming import StreamEvent

CHART = "application/vnd.sandlot.chart.v1+json"

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
    }
)
"""MIME type -> its field of a result."""

_LEAST_QUOTED = 2

_ENDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "timeout": ("TimeoutError", "The code was interrupted after its time."),
        "killed": ("KernelKilled", "The interpreter did not heed its interrupt and was killed. Its variables are gone; files stay."),
        "died": ("KernelDied", "The interpreter of this context ended. Its variables are gone; files stay, and the next run starts a new one."),
        "oom": ("MemoryError", "The interpreter was killed because it took too much memory. Its variables are gone; files stay."),
        "aborted": ("Aborted", "The code was not run: the context was interrupted or restarted before its turn."),
        "error": ("Error", "The code failed."),
    }
)
"""How a cell can end without an exception that anybody could tell -> what is told of it."""


def started(count: int) -> dict[str, Any]:
    """Its turn came."""
    return {"type": "number_of_executions", "execution_count": count}


def output(event: StreamEvent, at: datetime) -> dict[str, Any]:
    """What it wrote, or what is missing of that."""
    data = event.data
    if event.name == "lost":
        text = f"[{data['bytes']} bytes were not kept]\n"
    elif data["encoding"] == "base64":
        text = base64.b64decode(data["data"]).decode("utf-8", "replace")
    else:
        text = data["data"]
    return {"type": data["stream"], "text": text, "timestamp": rfc3339_ms(at)}


def result(shown: Display) -> dict[str, Any]:
    """What it showed."""
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for mime, item in shown.data.items():
        value = _value(mime, item)
        name = FIELDS.get(mime)
        if name is None:
            extra[mime] = value
        elif name != "chart" or isinstance(value, dict):
            fields[name] = _unquoted(value) if name == "text" else value
    return {"type": "result", **fields, "is_main_result": shown.main, "extra": extra}


def error(raised: CellError) -> dict[str, Any]:
    """The exception that ended it."""
    return failure(raised.name, raised.value, "\n".join(raised.traceback))


def end(outcome: CodeStatus) -> dict[str, Any] | None:
    """How it ended, where no exception said so; None where it ended well."""
    told = _ENDS.get(outcome.status)
    return None if told is None else failure(*told, told[1])


def failure(name: str, value: str, traceback: str) -> dict[str, Any]:
    """Something that went wrong."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _value(mime: str, item: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """A representation as JSON carries it."""
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
    """Python reads NaN and the infinities as JSON, which nobody else does (RFC 8259, 6)."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unquoted(text: str) -> str:
    quoted = len(text) >= _LEAST_QUOTED and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
