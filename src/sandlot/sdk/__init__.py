"""The client: sandboxes from Python, synchronous and asynchronous, over a unix socket or TCP.

The asynchronous half is written by hand, the synchronous one is made from it (``scripts/unasync.py``).
"""

from __future__ import annotations

from sandlot.model.access import Quota
from sandlot.model.errors import (
    AuthenticationError,
    ConflictError,
    ErrorCode,
    ForbiddenError,
    HostError,
    InternalError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    SandboxEndedError,
    SandlotError,
    TimeoutExceededError,
    UnavailableError,
    UnsupportedError,
)
from sandlot.model.specs import Limits
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk._async.commands import AsyncCommands
from sandlot.sdk._async.files import AsyncFiles, AsyncFileStream
from sandlot.sdk._async.handle import AsyncCommandHandle
from sandlot.sdk._async.keys import AsyncKeys
from sandlot.sdk._async.sandbox import AsyncSandbox
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.commands import Commands
from sandlot.sdk._sync.files import Files, FileStream
from sandlot.sdk._sync.handle import CommandHandle
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.sandbox import Sandbox
from sandlot.sdk.access import KeyInfo, NewKey, Whoami
from sandlot.sdk.info import Entry, ProcessInfo, SandboxInfo, Usage
from sandlot.sdk.results import CommandResult, Execution, ExecutionError, Output, Result

__all__ = [
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFileStream",
    "AsyncFiles",
    "AsyncKeys",
    "AsyncSandbox",
    "AuthenticationError",
    "Client",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "ConflictError",
    "Entry",
    "ErrorCode",
    "Execution",
    "ExecutionError",
    "FileStream",
    "Files",
    "ForbiddenError",
    "HostError",
    "InternalError",
    "InvalidRequestError",
    "KeyInfo",
    "Keys",
    "LimitError",
    "Limits",
    "NewKey",
    "NotFoundError",
    "Output",
    "ProcessInfo",
    "Quota",
    "Result",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInfo",
    "SandlotError",
    "TimeoutExceededError",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "Whoami",
]
