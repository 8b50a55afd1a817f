"""Failures as Connect tells them: ``{"code": "not_found", "message": ...}``, a unary method's with the status, a stream's in its last envelope.

What each of our codes is there is in the door's own table, whose words are Connect's codes.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.compat.e2b import errors
from sandlot.compat.vendor import Failure
from sandlot.model.errors import SandlotError


def status(error: SandlotError) -> int:
    """The HTTP status of a unary method that fails like that. Pure."""
    return errors.TABLE[error.code].status


def told(error: SandlotError) -> Mapping[str, str]:
    """What a client reads of it. Pure."""
    kind = errors.TABLE[error.code]
    failure = Failure(kind=kind, message=str(error), code=error.code, request_id="", retryable=error.retryable)
    return {"code": kind.word, "message": errors.told(failure)}
