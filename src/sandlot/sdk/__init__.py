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
from sandlot.sdk._async.code.contexts import AsyncContexts
from sandlot.sdk._async.code.handle import AsyncCodeHandle
from sandlot.sdk._async.commands import AsyncCommands
from sandlot.sdk._async.files import AsyncFiles, AsyncFileStream
from sandlot.sdk._async.handle import AsyncCommandHandle
from sandlot.sdk._async.history import AsyncEvents, AsyncExecutions
from sandlot.sdk._async.keys import AsyncKeys
from sandlot.sdk._async.operating.pools import AsyncPools
from sandlot.sdk._async.operating.webhooks import AsyncWebhooks
from sandlot.sdk._async.ports.forward import AsyncForward
from sandlot.sdk._async.ports.tunnel import AsyncTunnel
from sandlot.sdk._async.sandbox import AsyncSandbox
from sandlot.sdk._async.saved.snapshots import AsyncSnapshots
from sandlot.sdk._async.saved.volumes import AsyncVolumes
from sandlot.sdk._async.store import AsyncFileStore
from sandlot.sdk._async.terminal import AsyncPty, AsyncTerminal
from sandlot.sdk._async.watch import AsyncFileWatch, AsyncWatchers
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code.contexts import Contexts
from sandlot.sdk._sync.code.handle import CodeHandle
from sandlot.sdk._sync.commands import Commands
from sandlot.sdk._sync.files import Files, FileStream
from sandlot.sdk._sync.handle import CommandHandle
from sandlot.sdk._sync.history import Events, Executions
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.operating.pools import Pools
from sandlot.sdk._sync.operating.webhooks import Webhooks
from sandlot.sdk._sync.ports.forward import Forward
from sandlot.sdk._sync.ports.tunnel import Tunnel
from sandlot.sdk._sync.sandbox import Sandbox
from sandlot.sdk._sync.saved.snapshots import Snapshots
from sandlot.sdk._sync.saved.volumes import Volumes
from sandlot.sdk._sync.store import FileStore
from sandlot.sdk._sync.terminal import Pty, Terminal
from sandlot.sdk._sync.watch import FileWatch, Watchers
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
