"""The service itself, as ``client.service``."""

from __future__ import annotations

from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.service import CapacityInfo, DriverInfo, ServiceStopResult, VersionInfo


class AsyncService:
    """Version, capabilities and capacity of a service."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def version(self) -> VersionInfo:
        """Get the version of the service and the id of its node."""
        return structure(VersionInfo, await self._transport.request("GET", "/v1/version"))

    async def capabilities(self) -> list[DriverInfo]:
        """List the drivers of the service and what they can do on its host."""
        return structure_list(DriverInfo, await self._transport.request("GET", "/v1/capabilities"), "drivers")

    async def capacity(self) -> CapacityInfo:
        """Get the memory, disk and tasks that the node can give to sandboxes, and how much of these is reserved."""
        return structure(CapacityInfo, await self._transport.request("GET", "/v1/capacity"))

    async def stop(self) -> ServiceStopResult:
        """Stop the local service. Its sandboxes keep running, and the next service takes them over.

        Raises:
            ForbiddenError: The service was reached over TCP.
        """
        return structure(ServiceStopResult, await self._transport.request("POST", "/v1/service/stop"))
