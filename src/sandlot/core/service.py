"""Facts about the service and its host: version, capabilities of the drivers, capacity and metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sandlot.core.records.metrics import Metrics
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Reservations
from sandlot.model.access import Principal
from sandlot.model.ids import NodeId
from sandlot.model.ports import Capabilities
from sandlot.model.service import Capacity, ServiceInfo
from sandlot.protocol.connection import GENERATION


class ServiceInspector:
    """Reads facts about the service and its host."""

    def __init__(
        self,
        *,
        node: NodeId,
        version: str,
        max_sandboxes: int,
        registry: SandboxRegistry,
        drivers: Drivers,
        reservations: Reservations,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._version = version
        self._max_sandboxes = max_sandboxes
        self._registry = registry
        self._drivers = drivers
        self._reservations = reservations
        self._metrics = metrics

    def info(self) -> ServiceInfo:
        """Return the version, the limits and the process of the service."""
        return ServiceInfo(
            version=self._version,
            generation=GENERATION,
            node=self._node,
            pid=os.getpid(),
            max_sandboxes=self._max_sandboxes,
            sandboxes=self._registry.count,
        )

    async def capabilities(self) -> Sequence[Capabilities]:
        """Return the capabilities of every installed driver on this host, found by trying them."""
        return [await self._drivers.capabilities(isolation) for isolation in self._drivers]

    async def capacity(self, principal: Principal) -> Capacity:  # noqa: ARG002 - all principals see the same capacity
        """Return the capacity of the node and the part that is reserved. The readings of the host are at most a second old."""
        return await self._reservations.capacity()

    def metrics(self) -> bytes:
        """Return the metrics in the text format of Prometheus. The metrics cover all owners, so only operators may see them."""
        return self._metrics.text()
