"""Node: the services that the HTTP routes and the compatibility APIs use."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.core.agents import AgentService
from sandlot.core.execution.code import CodeService
from sandlot.core.execution.contexts import ContextService
from sandlot.core.execution.packages import PackageInstaller
from sandlot.core.execution.processes import ProcessService
from sandlot.core.execution.terminals import TerminalService
from sandlot.core.files.files import FileService
from sandlot.core.files.signed_urls import TokenService
from sandlot.core.files.store import FileStore
from sandlot.core.files.watch import WatchService
from sandlot.core.forwarding.previews import PreviewService
from sandlot.core.forwarding.tunnels import TunnelService
from sandlot.core.history import HistoryService
from sandlot.core.keys import KeyService
from sandlot.core.network import NetworkService
from sandlot.core.pools.manager import PoolManager
from sandlot.core.programs.runner import ProgramRunner
from sandlot.core.programs.templates import LanguageTemplates
from sandlot.core.resources.templates import Templates
from sandlot.core.sandboxes import SandboxService
from sandlot.core.service import ServiceInspector
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.core.template_builds import TemplateBuilds
from sandlot.core.volumes.manager import VolumeManager
from sandlot.core.webhooks.manager import WebhookManager
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Node:
    """Services of one node.

    Everything above core calls these services, with the principal that asks, the ids of the things it is about, and values of ``model``.

    Attributes:
        id: Id of the node.
    """

    id: NodeId
    sandboxes: SandboxService
    templates: Templates
    pools: PoolManager
    code: CodeService
    contexts: ContextService
    processes: ProcessService
    terminals: TerminalService
    packages: PackageInstaller
    programs: ProgramRunner
    languages: LanguageTemplates
    buffers: BufferShares
    files: FileService
    watches: WatchService
    file_store: FileStore
    tunnels: TunnelService
    network: NetworkService
    history: HistoryService
    webhooks: WebhookManager
    snapshots: SnapshotManager
    volumes: VolumeManager
    tokens: TokenService
    previews: PreviewService
    agents: AgentService
    template_builds: TemplateBuilds
    keys: KeyService
    service: ServiceInspector
