"""All of core that answers requests, in one hand: what the API and every door are given."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.core.content.signing import Signer
from sandlot.core.hooks.webhooks import Webhooks
from sandlot.core.node.budget import Budget
from sandlot.core.ports import Clock
from sandlot.core.records.events import Feed
from sandlot.core.records.executions import Journal
from sandlot.core.records.filestore import FileStore
from sandlot.core.records.keys import Keys
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.monthly import Monthly
from sandlot.core.sandboxes import Sandboxes
from sandlot.core.saved.forks import Forks
from sandlot.core.saved.snapshots import Snapshots
from sandlot.core.volumes.mounts import Mounts
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that a running service does, without how it is reached.

    Args:
        node: This node's id.
        sandboxes: All of them.
        clock: The time.
        budget: Of the memory that is held for clients.
        files: The file store.
        events: What happened.
        webhooks: Who is told of it.
        executions: The log of what ran.
        metrics: What is counted and measured.
        snapshots: What is kept of sandboxes to start others from.
        volumes: Files that outlive sandboxes.
        mounts: Which of them the sandboxes have.
        forks: Of sandboxes, and the trees that they grow into.
        signer: Of URLs that need no key.
        keys: Who may ask.
        monthly: How many runs each of them has begun this month.
    """

    node: NodeId
    sandboxes: Sandboxes
    clock: Clock
    budget: Budget
    files: FileStore
    events: Feed
    webhooks: Webhooks
    executions: Journal
    metrics: Metrics
    snapshots: Snapshots
    volumes: Volumes
    mounts: Mounts
    forks: Forks
    signer: Signer
    keys: Keys
    monthly: Monthly
