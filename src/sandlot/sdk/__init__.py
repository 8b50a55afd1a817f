"""The Python SDK: sandboxes over a unix socket or TCP, synchronous and asynchronous.

The asynchronous half is written by hand; ``scripts/unasync.py`` generates the synchronous half. Everything public is in ``__all__``.
"""

from __future__ import annotations

from sandlot.model.access import Quota
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
from sandlot.model.faults import Fault
from sandlot.model.network import NetworkMode
from sandlot.model.sizes import parse_size
from sandlot.model.specs import Limits, OnTimeout, SnapshotKind
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk._async.code import AsyncCodeHandle
from sandlot.sdk._async.commands import AsyncCommandHandle, AsyncCommands
from sandlot.sdk._async.contexts import AsyncContexts
from sandlot.sdk._async.desktop import AsyncDesktop
from sandlot.sdk._async.events import AsyncEvents
from sandlot.sdk._async.executions import AsyncExecutions
from sandlot.sdk._async.file_store import AsyncFileStore
from sandlot.sdk._async.files import AsyncFiles, AsyncFileStream
from sandlot.sdk._async.hosted_agents import AsyncAgents, AsyncAgentSessions
from sandlot.sdk._async.keys import AsyncKeys
from sandlot.sdk._async.network import AsyncSandboxNetwork
from sandlot.sdk._async.pools import AsyncPools
from sandlot.sdk._async.programs import AsyncPrograms
from sandlot.sdk._async.pty import AsyncPty, AsyncTerminal
from sandlot.sdk._async.sandbox import AsyncForkBatch, AsyncSandbox
from sandlot.sdk._async.sandboxes import AsyncSandboxes
from sandlot.sdk._async.service import AsyncService
from sandlot.sdk._async.snapshots import AsyncSnapshots
from sandlot.sdk._async.templates import AsyncTemplates
from sandlot.sdk._async.tunnels import AsyncPortForward, AsyncTunnel
from sandlot.sdk._async.volumes import AsyncVolumes
from sandlot.sdk._async.watches import AsyncFileWatch, AsyncWatchers
from sandlot.sdk._async.webhooks import AsyncWebhooks
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code import CodeHandle
from sandlot.sdk._sync.commands import CommandHandle, Commands
from sandlot.sdk._sync.contexts import Contexts
from sandlot.sdk._sync.desktop import Desktop
from sandlot.sdk._sync.events import Events
from sandlot.sdk._sync.executions import Executions
from sandlot.sdk._sync.file_store import FileStore
from sandlot.sdk._sync.files import Files, FileStream
from sandlot.sdk._sync.hosted_agents import Agents, AgentSessions
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.network import SandboxNetwork
from sandlot.sdk._sync.pools import Pools
from sandlot.sdk._sync.programs import Programs
from sandlot.sdk._sync.pty import Pty, Terminal
from sandlot.sdk._sync.sandbox import ForkBatch, Sandbox
from sandlot.sdk._sync.sandboxes import Sandboxes
from sandlot.sdk._sync.service import Service
from sandlot.sdk._sync.snapshots import Snapshots
from sandlot.sdk._sync.templates import Templates
from sandlot.sdk._sync.tunnels import PortForward, Tunnel
from sandlot.sdk._sync.volumes import Volumes
from sandlot.sdk._sync.watches import FileWatch, Watchers
from sandlot.sdk._sync.webhooks import Webhooks
from sandlot.sdk.local_service import LocalService
from sandlot.sdk.models.agents import AgentEventInfo, AgentInfo, AgentSessionInfo, AgentUsage
from sandlot.sdk.models.code import Chart, CodeEvent, ExceptionInfo, Execution, ExecutionResults, ExecutionStarted, OutputCleared, Result
from sandlot.sdk.models.contexts import Context
from sandlot.sdk.models.events import EventInfo
from sandlot.sdk.models.executions import ExecutionInfo, ExecutionStatus, LogEntry
from sandlot.sdk.models.file_store import StoredFile
from sandlot.sdk.models.files import FileEntry, FileEvent, WatcherInfo
from sandlot.sdk.models.keys import CurrentKey, KeyInfo, NewKey, QuotaUsage
from sandlot.sdk.models.network import Network, NetworkDestination, NetworkInfo, NetworkRefusal
from sandlot.sdk.models.pools import PoolInfo, TemplateSnapshot
from sandlot.sdk.models.processes import ChangedFile, CommandResult, Output, PrintedUrl, ProcessInfo
from sandlot.sdk.models.programs import BatchItem, Case, LanguageInfo, Program, ProgramOptions, ProgramResult
from sandlot.sdk.models.sandboxes import ListeningPort, SandboxInfo, SandboxState, Usage
from sandlot.sdk.models.service import CapacityInfo, DriverCapability, DriverInfo, Resources, RuntimeInfo, ServiceStopResult, VersionInfo
from sandlot.sdk.models.snapshots import ForkTree, ForkTreeNode, SnapshotInfo
from sandlot.sdk.models.templates import BuildLine, TemplateBuild, TemplateInfo
from sandlot.sdk.models.volumes import Mount, VolumeInfo
from sandlot.sdk.models.webhooks import WebhookInfo
from sandlot.sdk.transfer.upload import TransferProgress

__all__ = [
    "AgentEventInfo",
    "AgentInfo",
    "AgentSessionInfo",
    "AgentSessions",
    "AgentUsage",
    "Agents",
    "AsyncAgentSessions",
    "AsyncAgents",
    "AsyncClient",
    "AsyncCodeHandle",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncContexts",
    "AsyncDesktop",
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
    "AsyncSandboxNetwork",
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
    "BuildLine",
    "CapacityInfo",
    "Case",
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
    "Desktop",
    "DriverCapability",
    "DriverInfo",
    "ErrorCode",
    "EventInfo",
    "Events",
    "ExceptionInfo",
    "Execution",
    "ExecutionFailedError",
    "ExecutionInfo",
    "ExecutionResults",
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
    "LanguageInfo",
    "LimitError",
    "Limits",
    "ListeningPort",
    "LocalService",
    "LogEntry",
    "Mount",
    "Network",
    "NetworkDestination",
    "NetworkInfo",
    "NetworkMode",
    "NetworkRefusal",
    "NewKey",
    "NotFoundError",
    "OnTimeout",
    "Output",
    "OutputCleared",
    "PoolInfo",
    "Pools",
    "PortForward",
    "PrintedUrl",
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
    "SandboxNetwork",
    "SandboxState",
    "Sandboxes",
    "SandlotError",
    "Service",
    "ServiceStopResult",
    "SnapshotInfo",
    "SnapshotKind",
    "Snapshots",
    "StoredFile",
    "TemplateBuild",
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
    "parse_size",
]
