"""Live pools of a node, for tests that wait for warm sandboxes."""

from __future__ import annotations

from collections.abc import Mapping

from sandlot.core.node import Node
from sandlot.core.pools.pool import Pool


def live_pools(node: Node) -> Mapping[str, Pool]:
    """Return the live pools of a node by their ids."""
    return node.pools._registry.pools  # noqa: SLF001 - the boundary gives values only
