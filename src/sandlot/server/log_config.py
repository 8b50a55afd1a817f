"""What the service writes about itself: one event a line on standard error, for people on a terminal, as JSON elsewhere.

Never logged: code, environments, keys, file contents, query strings.
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
"""Its logger."""
MAX_BYTES = 16 * MIB
"""Of a local service's log file; as much again is kept of what came before."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, form: str) -> None:
    """Set up logging for this process.

    Args:
        level: debug, info, warning or error.
        form: auto, text or json.
    """
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without the values of local variables: those are code, environments and keys.
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
    # The HTTP server and other libraries speak through the standard library; their warnings join the same stream.
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
    """Tell in one line of an answer that was cut because its sandbox ended or lied: a guest must not fill the log with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, SandlotError):
        record.msg, record.args, record.exc_info = "An answer was cut: %s", (error.code.value,), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def rotate_log(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Where standard error is that file and the file is long: begin a new one, and keep the old one beside it.

    Args:
        path: The log file that whoever started a local service gave it.
        max_bytes: What is long.

    Returns:
        Whether it was done.
    """
    try:
        ours, there = os.fstat(STDERR), path.stat()
    except OSError:
        return False
    if not os.path.samestat(ours, there) or ours.st_size < max_bytes:
        return False
    path.replace(path.with_name(f"{path.name}.1"))
    fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(fresh, STDERR)
        if os.path.samestat(os.fstat(STDOUT), ours):
            os.dup2(fresh, STDOUT)
    finally:
        os.close(fresh)
    return True
