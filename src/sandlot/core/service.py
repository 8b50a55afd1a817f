"""All of core that answers requests, in one hand: what the API and every door are given."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.execution.code import CodeService
from sandlot.core.execution.packages import PackageInstaller
from sandlot.core.execution.processes import ProcessService
from sandlot.core.execution.stdin import StdinManager
from sandlot.core.files.signed_urls import UrlSigner
from sandlot.core.files.store import FileStore
from sandlot.core.lifecycle.mount_manager import MountManager
from sandlot.core.manager import SandboxManager
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.snapshots.forks import ForkManager
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.core.volumes import VolumeManager
from sandlot.core.webhooks.manager import WebhookManager
from sandlot.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that a running service does, without how it is reached.

    Args:
        node: This node's id.
        manager: All of them.
        code: Runs cells.
        processes: Runs processes.
        stdin: Writes to the input of processes.
        packages: Installs packages.
        clock: The time.
        buffers: Of the memory that is held for clients.
        files: The file store.
        events: What happened.
        webhooks: Who is told of it.
        executions: The log of what ran.
        metrics: What is counted and measured.
        snapshots: What is kept of sandboxes to start others from.
        volumes: Files that outlive sandboxes.
        mounts: Which of them the sandboxes have.
        forks: Of sandboxes, and the trees that they grow into.
        url_signer: Of URLs that need no key.
        api_keys: Who may ask.
        execution_counter: How many runs each of them has begun this month.
    """

    node: NodeId
    manager: SandboxManager
    code: CodeService
    processes: ProcessService
    stdin: StdinManager
    packages: PackageInstaller
    clock: Clock
    buffers: BufferBudget
    files: FileStore
    events: EventFeed
    webhooks: WebhookManager
    executions: ExecutionLog
    metrics: Metrics
    snapshots: SnapshotManager
    volumes: VolumeManager
    mounts: MountManager
    forks: ForkManager
    url_signer: UrlSigner
    api_keys: ApiKeys
    execution_counter: MonthlyExecutionCounter
