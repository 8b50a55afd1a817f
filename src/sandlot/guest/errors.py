"""The error that the guest and its helper programs send to the host. Helper programs import this file, so it imports nothing."""

from __future__ import annotations


class RpcError(Exception):
    """A call has failed. The error is sent to the host.

    Args:
        code: Text of the model's ``ErrorCode``.
        message: Description of the failure.
        hint: Advice to the user, or an empty string.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
