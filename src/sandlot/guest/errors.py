"""The error that the guest and its helper programs send to the host. Imports nothing, because helper programs import this file."""

from __future__ import annotations


class RpcError(Exception):
    """Failure of a call or of a helper's request. The error is sent to the host as the response.

    Args:
        code: Value of a member of ``sandlot.model.errors.ErrorCode``, such as ``path_not_found``.
        message: Description of the failure, for the user.
        hint: One action that the user can take. Empty if there is no advice.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
