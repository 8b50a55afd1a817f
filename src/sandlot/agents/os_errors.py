"""Errors of Sandlot as the errors of Python that other interfaces expect."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sandlot.model.errors import ErrorCode, SandlotError

ERRNOS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.PATH_NOT_FOUND: errno.ENOENT,
    ErrorCode.WORKING_DIRECTORY_NOT_FOUND: errno.ENOENT,
    ErrorCode.PATH_IS_DIRECTORY: errno.EISDIR,
    ErrorCode.PATH_NOT_DIRECTORY: errno.ENOTDIR,
    ErrorCode.PATH_NOT_REGULAR: errno.EINVAL,
    ErrorCode.PATH_EXISTS: errno.EEXIST,
    ErrorCode.PATH_NOT_EMPTY: errno.ENOTEMPTY,
    ErrorCode.PATH_LINK_LOOP: errno.ELOOP,
    ErrorCode.PATH_INVALID: errno.EINVAL,
    ErrorCode.PERMISSION_DENIED: errno.EACCES,
    ErrorCode.DISK_FULL: errno.ENOSPC,
}
"""Code -> errno. ``OSError`` chooses its subclass by it, such as ``FileNotFoundError``."""


def os_error(error: SandlotError, path: str | None = None) -> OSError | None:
    """Return the error of Python for an error about a path; None for other errors.

    Args:
        error: Error of Sandlot.
        path: Path of the operation.
    """
    number = ERRNOS.get(error.code)
    return None if number is None else OSError(number, os.strerror(number), path)


@contextmanager
def os_errors(path: str | None = None) -> Iterator[None]:
    """Raise errors about a path as errors of Python; other errors pass through."""
    try:
        yield
    except SandlotError as error:
        translated = os_error(error, path)
        if translated is None:
            raise
        raise translated from error
