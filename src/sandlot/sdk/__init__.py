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
from sandlot.sdk._async.code import AsyncCodeHandle
from sandlot.sdk._async.commands import AsyncCommandHandle, AsyncCommands
from sandlot.sdk._async.contexts import AsyncContexts
from sandlot.sdk._async.events import AsyncEvents
from sandlot.sdk._async.executions import AsyncExecutions
from sandlot.sdk._async.file_store import AsyncFileStore
from sandlot.sdk._async.files import AsyncFiles, AsyncFileStream
from sandlot.sdk._async.keys import AsyncKeys
from sandlot.sdk._async.pools import AsyncPools
from sandlot.sdk._async.pty import AsyncPty, AsyncTerminal
from sandlot.sdk._async.sandbox import AsyncSandbox
from sandlot.sdk._async.snapshots import AsyncSnapshots
from sandlot.sdk._async.tunnels import AsyncForward, AsyncTunnel
from sandlot.sdk._async.volumes import AsyncVolumes
from sandlot.sdk._async.watches import AsyncFileWatch, AsyncWatchers
from sandlot.sdk._async.webhooks import AsyncWebhooks
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code import CodeHandle
from sandlot.sdk._sync.commands import CommandHandle, Commands
from sandlot.sdk._sync.contexts import Contexts
from sandlot.sdk._sync.events import Events
from sandlot.sdk._sync.executions import Executions
from sandlot.sdk._sync.file_store import FileStore
from sandlot.sdk._sync.files import Files, FileStream
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.pools import Pools
from sandlot.sdk._sync.pty import Pty, Terminal
from sandlot.sdk._sync.sandbox import Sandbox
from sandlot.sdk._sync.snapshots import Snapshots
from sandlot.sdk._sync.tunnels import Forward, Tunnel
from sandlot.sdk._sync.volumes import Volumes
from sandlot.sdk._sync.watches import FileWatch, Watchers
from sandlot.sdk._sync.webhooks import Webhooks
from sandlot.sdk.cells.charts import Chart
from sandlot.sdk.cells.contexts import Context
from sandlot.sdk.cells.events import Cleared, CodeEvent, Started
from sandlot.sdk.history import EventInfo, ExecutionInfo, ListeningPort, LogEntry, StoredFile, StoredFiles
from sandlot.sdk.info import Entry, KeyInfo, Network, NewKey, SandboxInfo, Stopping, Usage, Whoami
from sandlot.sdk.inside.processes import ProcessInfo
from sandlot.sdk.inside.watching import FileEvent, WatcherInfo
from sandlot.sdk.oneshot import BatchItem, Program, ProgramOptions, ProgramResult, execute, execute_batch
from sandlot.sdk.operating.pools import PoolInfo
from sandlot.sdk.operating.webhooks import WebhookInfo
from sandlot.sdk.results import ChangedFile, CommandResult, Execution, ExecutionError, Output, Result
from sandlot.sdk.saved.snapshots import Branch, ForkTree, SnapshotInfo
from sandlot.sdk.saved.volumes import Mounted, VolumeInfo
from sandlot.sdk.transfer.sending import Progress

__all__ = [
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
    "AsyncForward",
    "AsyncKeys",
    "AsyncPools",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSnapshots",
    "AsyncTerminal",
    "AsyncTunnel",
    "AsyncVolumes",
    "AsyncWatchers",
    "AsyncWebhooks",
    "AuthenticationError",
    "BatchItem",
    "Branch",
    "ChangedFile",
    "Chart",
    "Cleared",
    "Client",
    "CodeEvent",
    "CodeHandle",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "ConflictError",
    "Context",
    "Contexts",
    "Entry",
    "ErrorCode",
    "EventInfo",
    "Events",
    "Execution",
    "ExecutionError",
    "ExecutionInfo",
    "Executions",
    "FileEvent",
    "FileStore",
    "FileStream",
    "FileWatch",
    "Files",
    "ForbiddenError",
    "ForkTree",
    "Forward",
    "HostError",
    "InternalError",
    "InvalidRequestError",
    "KeyInfo",
    "Keys",
    "LimitError",
    "Limits",
    "ListeningPort",
    "LogEntry",
    "Mounted",
    "Network",
    "NewKey",
    "NotFoundError",
    "Output",
    "PoolInfo",
    "Pools",
    "ProcessInfo",
    "Program",
    "ProgramOptions",
    "ProgramResult",
    "Progress",
    "Pty",
    "Quota",
    "Result",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInfo",
    "SandlotError",
    "SnapshotInfo",
    "Snapshots",
    "Started",
    "Stopping",
    "StoredFile",
    "StoredFiles",
    "Terminal",
    "TimeoutExceededError",
    "Tunnel",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "VolumeInfo",
    "Volumes",
    "WatcherInfo",
    "Watchers",
    "WebhookInfo",
    "Webhooks",
    "Whoami",
    "execute",
    "execute_batch",
]
