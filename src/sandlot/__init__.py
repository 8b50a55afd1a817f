"""Sandlot: a safe place for AI agents to run code.

The names that users meet are re-exported here lazily, so that ``import sandlot`` pulls in no server part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlot.model.errors import (
        AuthenticationError,
        ConflictError,
        ErrorCode,
        ExecutionFailedError,
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
    from sandlot.sdk import (
        AsyncClient,
        AsyncSandbox,
        Client,
        CommandResult,
        Execution,
        Limits,
        Network,
        ProgramResult,
        Sandbox,
        SandboxInfo,
        SnapshotInfo,
    )

__all__ = [
    "AsyncClient",
    "AsyncSandbox",
    "AuthenticationError",
    "Client",
    "CommandResult",
    "ConflictError",
    "ErrorCode",
    "Execution",
    "ExecutionFailedError",
    "ForbiddenError",
    "HostError",
    "InternalError",
    "InvalidRequestError",
    "LimitError",
    "Limits",
    "Network",
    "NotFoundError",
    "ProgramResult",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInfo",
    "SandlotError",
    "SnapshotInfo",
    "TimeoutExceededError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "sandlot.sdk",
    "AsyncSandbox": "sandlot.sdk",
    "AuthenticationError": "sandlot.model.errors",
    "Client": "sandlot.sdk",
    "CommandResult": "sandlot.sdk",
    "ConflictError": "sandlot.model.errors",
    "ErrorCode": "sandlot.model.errors",
    "Execution": "sandlot.sdk",
    "ExecutionFailedError": "sandlot.model.errors",
    "ForbiddenError": "sandlot.model.errors",
    "HostError": "sandlot.model.errors",
    "InternalError": "sandlot.model.errors",
    "InvalidRequestError": "sandlot.model.errors",
    "LimitError": "sandlot.model.errors",
    "Limits": "sandlot.sdk",
    "Network": "sandlot.sdk",
    "NotFoundError": "sandlot.model.errors",
    "ProgramResult": "sandlot.sdk",
    "Sandbox": "sandlot.sdk",
    "SandboxEndedError": "sandlot.model.errors",
    "SandboxInfo": "sandlot.sdk",
    "SandlotError": "sandlot.model.errors",
    "SnapshotInfo": "sandlot.sdk",
    "TimeoutExceededError": "sandlot.model.errors",
    "UnavailableError": "sandlot.model.errors",
    "UnsupportedError": "sandlot.model.errors",
}


if not TYPE_CHECKING:  # a type checker would otherwise believe every name

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - only paid for when a public name is used

        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """The public names, whether they have been used or not."""
    return sorted({*globals(), *__all__})
