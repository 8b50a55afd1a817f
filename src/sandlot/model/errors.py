"""Errors of Sandlot: one tree with one root, :class:`SandlotError`.

Every error has a stable code, an HTTP status, a message that says what happened and a hint that says what the caller should do. An error that is sent
to another process is sent with its code, and the other process rebuilds the error with :func:`from_code`. No process trusts a class name that it
receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from sandlot.model.faults import Fault, known_fault


class ErrorCode(StrEnum):
    """Code of an error. The codes are part of the API and do not change."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    """The service has no route for the path of the request."""
    SANDBOX_NOT_FOUND = "sandbox_not_found"
    TEMPLATE_NOT_FOUND = "template_not_found"
    PROCESS_NOT_FOUND = "process_not_found"
    FILE_NOT_FOUND = "file_not_found"
    EXECUTION_NOT_FOUND = "execution_not_found"
    CONTEXT_NOT_FOUND = "context_not_found"
    PATH_NOT_FOUND = "path_not_found"
    PATH_EXISTS = "path_exists"
    PATH_INVALID = "path_invalid"
    """The text of the path is invalid: relative, too long, or with a NUL."""
    PATH_NOT_DIRECTORY = "path_not_directory"
    PATH_IS_DIRECTORY = "path_is_directory"
    PATH_NOT_REGULAR = "path_not_regular"
    PATH_LINK_LOOP = "path_link_loop"
    PATH_NOT_EMPTY = "path_not_empty"
    PROGRAM_NOT_FOUND = "program_not_found"
    WORKING_DIRECTORY_NOT_FOUND = "working_directory_not_found"
    PORT_NOT_FOUND = "port_not_found"
    PERMISSION_DENIED = "permission_denied"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    LIMIT_EXCEEDED = "limit_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    DISK_FULL = "disk_full"
    """The disk of the sandbox is full."""
    NODE_DISK_FULL = "node_disk_full"
    """A disk of the node is full: the data directory or the image cache."""
    TIMEOUT = "timeout"
    SANDBOX_ENDED = "sandbox_ended"
    SANDBOX_PAUSED = "sandbox_paused"
    SNAPSHOT_NOT_FOUND = "snapshot_not_found"
    SNAPSHOT_UNUSABLE = "snapshot_unusable"
    POOL_NOT_FOUND = "pool_not_found"
    VOLUME_NOT_FOUND = "volume_not_found"
    WEBHOOK_NOT_FOUND = "webhook_not_found"
    KEY_NOT_FOUND = "key_not_found"
    WATCHER_NOT_FOUND = "watcher_not_found"
    REFUSAL_NOT_FOUND = "refusal_not_found"
    AGENT_NOT_FOUND = "agent_not_found"
    SESSION_NOT_FOUND = "session_not_found"
    BUILD_NOT_FOUND = "build_not_found"
    MODEL_NOT_CONFIGURED = "model_not_configured"
    UNSUPPORTED = "unsupported"
    HOST_NOT_READY = "host_not_ready"
    BUSY = "busy"
    SERVICE_UNAVAILABLE = "service_unavailable"
    SERVICE_STOPPING = "service_stopping"
    """The service stopped during the call. Work that the call began may continue, so the client must not simply repeat the call."""
    EXECUTION_FAILED = "execution_failed"
    """A checked run failed. Raised by the SDK; the service never sends this code."""
    INTERNAL = "internal"


CODES: Mapping[ErrorCode, tuple[int, bool]] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: (400, False),
        ErrorCode.UNAUTHENTICATED: (401, False),
        ErrorCode.FORBIDDEN: (403, False),
        ErrorCode.NOT_FOUND: (404, False),
        ErrorCode.SANDBOX_NOT_FOUND: (404, False),
        ErrorCode.TEMPLATE_NOT_FOUND: (404, False),
        ErrorCode.PROCESS_NOT_FOUND: (404, False),
        ErrorCode.FILE_NOT_FOUND: (404, False),
        ErrorCode.EXECUTION_NOT_FOUND: (404, False),
        ErrorCode.CONTEXT_NOT_FOUND: (404, False),
        ErrorCode.PATH_NOT_FOUND: (404, False),
        ErrorCode.PATH_EXISTS: (409, False),
        ErrorCode.PATH_INVALID: (400, False),
        ErrorCode.PATH_NOT_DIRECTORY: (400, False),
        ErrorCode.PATH_IS_DIRECTORY: (400, False),
        ErrorCode.PATH_NOT_REGULAR: (400, False),
        ErrorCode.PATH_LINK_LOOP: (400, False),
        ErrorCode.PATH_NOT_EMPTY: (409, False),
        ErrorCode.PROGRAM_NOT_FOUND: (404, False),
        ErrorCode.WORKING_DIRECTORY_NOT_FOUND: (404, False),
        ErrorCode.PORT_NOT_FOUND: (404, False),
        ErrorCode.PERMISSION_DENIED: (403, False),
        ErrorCode.CONFLICT: (409, False),
        ErrorCode.TOO_LARGE: (413, False),
        ErrorCode.LIMIT_EXCEEDED: (429, False),
        ErrorCode.QUOTA_EXCEEDED: (429, False),
        ErrorCode.DISK_FULL: (507, False),
        ErrorCode.NODE_DISK_FULL: (507, False),
        ErrorCode.TIMEOUT: (408, False),
        ErrorCode.SANDBOX_ENDED: (410, False),
        ErrorCode.SANDBOX_PAUSED: (409, False),
        ErrorCode.SNAPSHOT_NOT_FOUND: (404, False),
        ErrorCode.SNAPSHOT_UNUSABLE: (409, False),
        ErrorCode.POOL_NOT_FOUND: (404, False),
        ErrorCode.VOLUME_NOT_FOUND: (404, False),
        ErrorCode.WEBHOOK_NOT_FOUND: (404, False),
        ErrorCode.KEY_NOT_FOUND: (404, False),
        ErrorCode.WATCHER_NOT_FOUND: (404, False),
        ErrorCode.REFUSAL_NOT_FOUND: (404, False),
        ErrorCode.AGENT_NOT_FOUND: (404, False),
        ErrorCode.SESSION_NOT_FOUND: (404, False),
        ErrorCode.BUILD_NOT_FOUND: (404, False),
        ErrorCode.MODEL_NOT_CONFIGURED: (400, False),
        ErrorCode.UNSUPPORTED: (501, False),
        ErrorCode.HOST_NOT_READY: (503, False),
        ErrorCode.BUSY: (503, True),
        ErrorCode.SERVICE_UNAVAILABLE: (503, True),
        ErrorCode.SERVICE_STOPPING: (503, False),
        ErrorCode.EXECUTION_FAILED: (422, False),
        ErrorCode.INTERNAL: (500, False),
    }
)
"""Code -> HTTP status, retryable. A test checks that the table has every code."""

FAULTS: Mapping[ErrorCode, Fault] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: Fault.REQUEST,
        ErrorCode.UNAUTHENTICATED: Fault.REQUEST,
        ErrorCode.FORBIDDEN: Fault.REQUEST,
        ErrorCode.NOT_FOUND: Fault.REQUEST,
        ErrorCode.SANDBOX_NOT_FOUND: Fault.REQUEST,
        ErrorCode.TEMPLATE_NOT_FOUND: Fault.REQUEST,
        ErrorCode.PROCESS_NOT_FOUND: Fault.REQUEST,
        ErrorCode.FILE_NOT_FOUND: Fault.REQUEST,
        ErrorCode.EXECUTION_NOT_FOUND: Fault.REQUEST,
        ErrorCode.CONTEXT_NOT_FOUND: Fault.REQUEST,
        ErrorCode.PATH_NOT_FOUND: Fault.REQUEST,
        ErrorCode.PATH_EXISTS: Fault.REQUEST,
        ErrorCode.PATH_INVALID: Fault.REQUEST,
        ErrorCode.PATH_NOT_DIRECTORY: Fault.REQUEST,
        ErrorCode.PATH_IS_DIRECTORY: Fault.REQUEST,
        ErrorCode.PATH_NOT_REGULAR: Fault.REQUEST,
        ErrorCode.PATH_LINK_LOOP: Fault.REQUEST,
        ErrorCode.PATH_NOT_EMPTY: Fault.REQUEST,
        ErrorCode.PROGRAM_NOT_FOUND: Fault.REQUEST,
        ErrorCode.WORKING_DIRECTORY_NOT_FOUND: Fault.REQUEST,
        ErrorCode.PORT_NOT_FOUND: Fault.REQUEST,
        ErrorCode.PERMISSION_DENIED: Fault.REQUEST,
        ErrorCode.CONFLICT: Fault.REQUEST,
        ErrorCode.TOO_LARGE: Fault.REQUEST,
        ErrorCode.LIMIT_EXCEEDED: Fault.LIMIT,
        ErrorCode.QUOTA_EXCEEDED: Fault.LIMIT,
        ErrorCode.DISK_FULL: Fault.LIMIT,
        ErrorCode.NODE_DISK_FULL: Fault.CAPACITY,
        ErrorCode.TIMEOUT: Fault.PLATFORM,  # a program that exceeds its own timeout is a result and no error
        ErrorCode.SANDBOX_ENDED: Fault.LOST,  # if the reason of the end is known, the class follows from the reason
        ErrorCode.SANDBOX_PAUSED: Fault.REQUEST,
        ErrorCode.SNAPSHOT_NOT_FOUND: Fault.REQUEST,
        ErrorCode.SNAPSHOT_UNUSABLE: Fault.LOST,
        ErrorCode.POOL_NOT_FOUND: Fault.REQUEST,
        ErrorCode.VOLUME_NOT_FOUND: Fault.REQUEST,
        ErrorCode.WEBHOOK_NOT_FOUND: Fault.REQUEST,
        ErrorCode.KEY_NOT_FOUND: Fault.REQUEST,
        ErrorCode.WATCHER_NOT_FOUND: Fault.REQUEST,
        ErrorCode.REFUSAL_NOT_FOUND: Fault.REQUEST,
        ErrorCode.AGENT_NOT_FOUND: Fault.REQUEST,
        ErrorCode.SESSION_NOT_FOUND: Fault.REQUEST,
        ErrorCode.BUILD_NOT_FOUND: Fault.REQUEST,
        ErrorCode.MODEL_NOT_CONFIGURED: Fault.REQUEST,
        ErrorCode.UNSUPPORTED: Fault.REQUEST,
        ErrorCode.HOST_NOT_READY: Fault.PLATFORM,
        ErrorCode.BUSY: Fault.CAPACITY,
        ErrorCode.SERVICE_UNAVAILABLE: Fault.PLATFORM,
        ErrorCode.SERVICE_STOPPING: Fault.PLATFORM,
        ErrorCode.EXECUTION_FAILED: Fault.CODE,
        ErrorCode.INTERNAL: Fault.PLATFORM,
    }
)
"""Code -> fault class. A test checks that the table has every code."""


SANDBOX_GONE: Final = frozenset({ErrorCode.SANDBOX_ENDED, ErrorCode.SANDBOX_NOT_FOUND})
"""Codes of errors about a sandbox that does not exist any more."""


class SandlotError(Exception):
    """Base class of all errors that Sandlot raises.

    Args:
        message: One sentence for people that says what failed and which value was wrong.
        code: Code of the error; None: the default code of the class.
        hint: Action that solves the problem; empty if the message makes the action obvious.
        fields: Details that JSON can represent, such as ``{"path": "/x"}``.
        fault: Fault class; None: the class of the code.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        hint: str = "",
        fields: Mapping[str, Any] | None = None,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or next(_DEFAULT_CODES[each] for each in type(self).__mro__ if each in _DEFAULT_CODES)
        self.hint = hint
        self.fields: Mapping[str, Any] = MappingProxyType(dict(fields or {}))
        self.fault = fault or FAULTS[self.code]

    @property
    def status(self) -> int:
        """HTTP status of the code."""
        return CODES[self.code][0]

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later."""
        return CODES[self.code][1]

    def __str__(self) -> str:
        """Return the message and the hint."""
        return f"{self.message} {self.hint}".rstrip()


class InvalidRequestError(SandlotError):
    """The request is malformed or a value is out of range. Nothing was changed."""


class AuthenticationError(SandlotError):
    """The API key is missing or unknown."""


class ForbiddenError(SandlotError):
    """The principal is not allowed to make this request."""


class NotFoundError(SandlotError):
    """A sandbox, template, process, path or other resource does not exist."""


class ConflictError(SandlotError):
    """The resource exists already, or its state does not allow the request."""


class LimitError(SandlotError):
    """A limit of size, number or disk space, or a quota, was reached."""


class TimeoutExceededError(SandlotError):
    """The operation exceeded its timeout."""


class SandboxEndedError(SandlotError):
    """The sandbox has ended. ``fields["reason"]`` is ``exited``, ``oom``, ``disk``, ``killed`` or ``crashed``."""


class UnsupportedError(SandlotError):
    """The host, the driver or the root file system does not support the operation. The message gives the reason."""


class HostError(SandlotError):
    """The host is not set up for the requested operation. The hint says how to set it up."""


class UnavailableError(SandlotError):
    """The service cannot handle the request now."""


class ExecutionFailedError(SandlotError):
    """A run failed, and its caller asked the SDK for an exception with ``check``.

    Args:
        result: Result of the run. The other arguments are those of :class:`SandlotError`.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        hint: str = "",
        fields: Mapping[str, Any] | None = None,
        fault: Fault | None = None,
        result: Any = None,  # noqa: ANN401 - the SDK has several types of results
    ) -> None:
        super().__init__(message, code=code, hint=hint, fields=fields, fault=fault or known_fault(getattr(result, "fault", None)))
        self.result = result


class InternalError(SandlotError):
    """A defect in Sandlot caused the error."""


_CLASSES: Mapping[ErrorCode, type[SandlotError]] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: InvalidRequestError,
        ErrorCode.UNAUTHENTICATED: AuthenticationError,
        ErrorCode.FORBIDDEN: ForbiddenError,
        ErrorCode.NOT_FOUND: NotFoundError,
        ErrorCode.SANDBOX_NOT_FOUND: NotFoundError,
        ErrorCode.TEMPLATE_NOT_FOUND: NotFoundError,
        ErrorCode.PROCESS_NOT_FOUND: NotFoundError,
        ErrorCode.FILE_NOT_FOUND: NotFoundError,
        ErrorCode.EXECUTION_NOT_FOUND: NotFoundError,
        ErrorCode.CONTEXT_NOT_FOUND: NotFoundError,
        ErrorCode.PATH_NOT_FOUND: NotFoundError,
        ErrorCode.PATH_EXISTS: ConflictError,
        ErrorCode.PATH_INVALID: InvalidRequestError,
        ErrorCode.PATH_NOT_DIRECTORY: InvalidRequestError,
        ErrorCode.PATH_IS_DIRECTORY: InvalidRequestError,
        ErrorCode.PATH_NOT_REGULAR: InvalidRequestError,
        ErrorCode.PATH_LINK_LOOP: InvalidRequestError,
        ErrorCode.PATH_NOT_EMPTY: ConflictError,
        ErrorCode.PROGRAM_NOT_FOUND: NotFoundError,
        ErrorCode.WORKING_DIRECTORY_NOT_FOUND: NotFoundError,
        ErrorCode.PORT_NOT_FOUND: NotFoundError,
        ErrorCode.PERMISSION_DENIED: ForbiddenError,
        ErrorCode.CONFLICT: ConflictError,
        ErrorCode.TOO_LARGE: LimitError,
        ErrorCode.LIMIT_EXCEEDED: LimitError,
        ErrorCode.QUOTA_EXCEEDED: LimitError,
        ErrorCode.DISK_FULL: LimitError,
        ErrorCode.NODE_DISK_FULL: LimitError,
        ErrorCode.TIMEOUT: TimeoutExceededError,
        ErrorCode.SANDBOX_ENDED: SandboxEndedError,
        ErrorCode.SANDBOX_PAUSED: ConflictError,
        ErrorCode.SNAPSHOT_NOT_FOUND: NotFoundError,
        ErrorCode.SNAPSHOT_UNUSABLE: ConflictError,
        ErrorCode.POOL_NOT_FOUND: NotFoundError,
        ErrorCode.VOLUME_NOT_FOUND: NotFoundError,
        ErrorCode.WEBHOOK_NOT_FOUND: NotFoundError,
        ErrorCode.KEY_NOT_FOUND: NotFoundError,
        ErrorCode.WATCHER_NOT_FOUND: NotFoundError,
        ErrorCode.REFUSAL_NOT_FOUND: NotFoundError,
        ErrorCode.AGENT_NOT_FOUND: NotFoundError,
        ErrorCode.SESSION_NOT_FOUND: NotFoundError,
        ErrorCode.BUILD_NOT_FOUND: NotFoundError,
        ErrorCode.MODEL_NOT_CONFIGURED: InvalidRequestError,
        ErrorCode.UNSUPPORTED: UnsupportedError,
        ErrorCode.HOST_NOT_READY: HostError,
        ErrorCode.BUSY: UnavailableError,
        ErrorCode.SERVICE_UNAVAILABLE: UnavailableError,
        ErrorCode.SERVICE_STOPPING: UnavailableError,
        ErrorCode.EXECUTION_FAILED: ExecutionFailedError,
        ErrorCode.INTERNAL: InternalError,
    }
)

_DEFAULT_CODES: Mapping[type[SandlotError], ErrorCode] = MappingProxyType(
    {
        SandlotError: ErrorCode.INTERNAL,
        InvalidRequestError: ErrorCode.INVALID_REQUEST,
        AuthenticationError: ErrorCode.UNAUTHENTICATED,
        ForbiddenError: ErrorCode.FORBIDDEN,
        NotFoundError: ErrorCode.NOT_FOUND,
        ConflictError: ErrorCode.CONFLICT,
        LimitError: ErrorCode.LIMIT_EXCEEDED,
        TimeoutExceededError: ErrorCode.TIMEOUT,
        SandboxEndedError: ErrorCode.SANDBOX_ENDED,
        UnsupportedError: ErrorCode.UNSUPPORTED,
        HostError: ErrorCode.HOST_NOT_READY,
        UnavailableError: ErrorCode.SERVICE_UNAVAILABLE,
        ExecutionFailedError: ErrorCode.EXECUTION_FAILED,
        InternalError: ErrorCode.INTERNAL,
    }
)
"""Class -> default code, for errors that are raised without a code."""


def from_code(code: str, message: str, *, hint: str = "", fields: Mapping[str, Any] | None = None, fault: Fault | None = None) -> SandlotError:
    """Rebuild an error that another process has sent.

    Args:
        code: Code as text. An unknown code is replaced by ``internal``, because the other process may be untrusted or newer.
        message: Message from the other process, passed on unchanged.
        hint: Hint of the error.
        fields: Details of the error.
        fault: Fault class; None: the class of the code.
    """
    known = ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.INTERNAL
    return _CLASSES[known](message, code=known, hint=hint, fields=fields, fault=fault)


def error_class(code: ErrorCode) -> type[SandlotError]:
    """Return the class of all errors with a given code."""
    return _CLASSES[code]
