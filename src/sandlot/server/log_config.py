"""Logging of the service: one event per line on standard error, as text on a terminal and as JSON elsewhere.

Invariant: code, environments, keys, file contents and query strings are never logged.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import structlog

from sandlot.model.errors import SandlotError
from sandlot.model.specs import MIB

STDOUT, STDERR = 1, 2
HTTP_SERVER = "uvicorn.error"
"""Logger of uvicorn."""
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
    server.filters[:] = [shorten]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def shorten(record: logging.LogRecord) -> bool:
    """Shorten the record of a response that an error of the sandbox interrupted to one line, so that a guest cannot fill the log with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, SandlotError):
        record.msg, record.args, record.exc_info = "A response was interrupted: %s", (error.code.value,), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
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
