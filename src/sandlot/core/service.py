"""All of core that answers requests, in one hand: what the API and every door are given."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.core.node.budget import Budget
from sandlot.core.ports import Clock
from sandlot.core.sandboxes import Sandboxes
from sandlot.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that a running service does, without how it is reached.

    Args:
        node: This node's id.
        sandboxes: All of them.
        clock: The time.
        budget: Of the memory that is held for clients.
    """

    node: NodeId
    sandboxes: Sandboxes
    clock: Clock
    budget: Budget
