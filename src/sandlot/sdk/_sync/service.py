# Generated from src/sandlot/sdk/_async/service.py by scripts/unasync.py; change that file.
"""The service itself, as ``client.service``."""

from __future__ import annotations

from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.service import CapacityInfo, DriverInfo, ServiceStopResult, VersionInfo


class Service:
    """Version, capabilities and capacity of a service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def version(self) -> VersionInfo:
        """Get the version of the service and the id of its node."""
        return structure(VersionInfo, self._transport.request("GET", "/v1/version"))

    def capabilities(self) -> list[DriverInfo]:
        """List the drivers of the service and what they can do on its host."""
        return structure_list(DriverInfo, self._transport.request("GET", "/v1/capabilities"), "drivers")

    def capacity(self) -> CapacityInfo:
        """Get the memory, disk and tasks that the node can give to sandboxes, and how much of these is reserved."""
        return structure(CapacityInfo, self._transport.request("GET", "/v1/capacity"))

    def stop(self) -> ServiceStopResult:
        """Stop the local service. Its sandboxes keep running, and the next service takes them over.

        Raises:
            ForbiddenError: The service was reached over TCP.
        """
        return structure(ServiceStopResult, self._transport.request("POST", "/v1/service/stop"))
