"""Logging of the service: one event per line on standard error, as text on a terminal and as JSON elsewhere.

Invariant: code, environments, keys, file contents and query strings are never logged.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from sandlot.model.specs import MIB
from sandlot.web.errors import ResponseInterruptedError

STDOUT, STDERR = 1, 2
HTTP_SERVER = "uvicorn.error"
"""Logger of uvicorn."""
MAX_WARNINGS = 10
WARNINGS_S = 60.0
MAX_BYTES = 16 * MIB
"""Maximum size of a local service's log file. The previous file, of the same size, is kept beside it."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, form: str) -> None:
    """Set up logging for this process.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        form: ``text``, ``json``, or ``auto``: text on a terminal, JSON elsewhere.
    """
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks have no values of local variables, which may be code, environments and keys.
    tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    last: list[Any] = [tracebacks, structlog.processors.JSONRenderer()]
    if as_text:
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # The HTTP server and other libraries use the logging of the standard library; their warnings go to the same stream.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    server = logging.getLogger(HTTP_SERVER)
    server.filters[:] = [HttpServerFilter()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


class HttpServerFilter:
    """Keeps clients from filling the log with records of the HTTP server.

    Records of interrupted responses are dropped: the line of the request has the reason. Of other records without an exception, at most
    ``MAX_WARNINGS`` pass in ``WARNINGS_S`` seconds. Records with another exception are defects and pass.

    Args:
        now_s: Clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._passed: deque[float] = deque(maxlen=MAX_WARNINGS)

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be logged."""
        if record.exc_info and record.exc_info[1] is not None:
            return not isinstance(record.exc_info[1], ResponseInterruptedError)
        now_s = self._now_s()
        if len(self._passed) == MAX_WARNINGS and now_s - self._passed[0] < WARNINGS_S:
            return False
        self._passed.append(now_s)
        return True


def rotate_log(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Start a new log file if standard error is a file that has reached its maximum size. The old file is renamed.

    Args:
        path: Log file of a local service. Nothing happens if standard error is another file.
        max_bytes: Maximum size of the file.

    Returns:
        True if a new file was started.
    """
    try:
        stderr, found = os.fstat(STDERR), path.stat()
    except OSError:
        return False
    if not os.path.samestat(stderr, found) or stderr.st_size < max_bytes:
        return False
    path.replace(path.with_name(f"{path.name}.1"))
    fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(fresh, STDERR)
        if os.path.samestat(os.fstat(STDOUT), stderr):
            os.dup2(fresh, STDOUT)
    finally:
        os.close(fresh)
    return True
