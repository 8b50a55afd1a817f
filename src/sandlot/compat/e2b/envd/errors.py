"""Errors of Connect RPCs: ``{"code": "not_found", "message": ...}``, with the HTTP status for a unary method, in the last envelope for a stream.

The codes in the table of E2B's API are those of Connect.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.compat.e2b import errors
from sandlot.compat.vendor import VendorErrorDetails
from sandlot.model.errors import ErrorCode, SandlotError


def status(error: SandlotError) -> int:
    """Return the HTTP status of a unary method that fails with an error. Pure."""
    return errors.TABLE[error.code].status


def rpc_error(error: SandlotError) -> Mapping[str, str]:
    """Return the error that a client reads. Pure."""
    entry = errors.TABLE[error.code]
    details = VendorErrorDetails(entry=entry, message=str(error), code=error.code, request_id="", retryable=error.retryable)
    return {"code": entry.code, "message": errors.client_message(details)}


def stream_error(error: SandlotError) -> Mapping[str, str]:
    """Return the error that ends a stream. The message for a sandbox that ended meanwhile begins as that of E2B's clients. Pure."""
    shown = rpc_error(error)
    if error.code is not ErrorCode.SANDBOX_ENDED:
        return shown
    return {**shown, "message": f"The sandbox was killed or reached its end of life while the request was in flight. {shown['message']}"}
