"""Sandlot: sandboxes for code that AI agents write.

The public names are those of ``sandlot.sdk``. They are imported on first use, so that ``import sandlot`` loads no part of the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlot.sdk import *  # noqa: F403 - the names of `__all__`, which a test compares

__version__ = "0.1.0"

__all__ = [  # noqa: F405 - for type checkers of the star import above, for Python of `__getattr__`
    "AsyncClient",
    "AsyncCodeHandle",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncContexts",
    "AsyncEvents",
    "AsyncExecutions",
    "AsyncFileStore",
    "AsyncFileStream",
    "AsyncFileWatch",
    "AsyncFiles",
    "AsyncForkBatch",
    "AsyncKeys",
    "AsyncPools",
    "AsyncPortForward",
    "AsyncPrograms",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncService",
    "AsyncSnapshots",
    "AsyncTemplates",
    "AsyncTerminal",
    "AsyncTunnel",
    "AsyncVolumes",
    "AsyncWatchers",
    "AsyncWebhooks",
    "AuthenticationError",
    "BatchItem",
    "CapacityInfo",
    "ChangedFile",
    "Chart",
    "Client",
    "CodeEvent",
    "CodeHandle",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "ConflictError",
    "Context",
    "Contexts",
    "CurrentKey",
    "DriverCapability",
    "DriverInfo",
    "ErrorCode",
    "EventInfo",
    "Events",
    "ExceptionInfo",
    "Execution",
    "ExecutionFailedError",
    "ExecutionInfo",
    "ExecutionStarted",
    "ExecutionStatus",
    "Executions",
    "Fault",
    "FileEntry",
    "FileEvent",
    "FileStore",
    "FileStream",
    "FileWatch",
    "Files",
    "ForbiddenError",
    "ForkBatch",
    "ForkTree",
    "ForkTreeNode",
    "HostError",
    "InternalError",
    "InvalidRequestError",
    "KeyInfo",
    "Keys",
    "LimitError",
    "Limits",
    "ListeningPort",
    "LocalService",
    "LogEntry",
    "Mount",
    "Network",
    "NetworkMode",
    "NewKey",
    "NotFoundError",
    "OnTimeout",
    "Output",
    "OutputCleared",
    "PoolInfo",
    "Pools",
    "PortForward",
    "ProcessInfo",
    "Program",
    "ProgramOptions",
    "ProgramResult",
    "Programs",
    "Pty",
    "Quota",
    "QuotaUsage",
    "Resources",
    "Result",
    "RuntimeInfo",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInfo",
    "SandboxState",
    "Sandboxes",
    "SandlotError",
    "Service",
    "ServiceStopResult",
    "SnapshotInfo",
    "SnapshotKind",
    "Snapshots",
    "StoredFile",
    "TemplateInfo",
    "TemplateSnapshot",
    "Templates",
    "Terminal",
    "TimeoutExceededError",
    "TransferProgress",
    "Tunnel",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "VersionInfo",
    "VolumeInfo",
    "Volumes",
    "WatcherInfo",
    "Watchers",
    "WebhookInfo",
    "Webhooks",
    "__version__",
    "parse_size",
]


if not TYPE_CHECKING:  # a type checker would otherwise accept every name

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - loaded only when a public name is used

        return getattr(importlib.import_module("sandlot.sdk"), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
