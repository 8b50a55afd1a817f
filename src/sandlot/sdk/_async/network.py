"""Network of a sandbox, as ``sandbox.network``."""

from __future__ import annotations

from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.network import Network, NetworkInfo, NetworkRefusal


class AsyncSandboxNetwork:
    """Network activity of one sandbox. ``sandbox.update`` changes the policy."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/network"

    async def info(self) -> NetworkInfo:
        """Get the network policy, the refusals, the reached destinations and the transferred bytes.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        return structure(NetworkInfo, await self._transport.request("GET", self._path))

    async def approve(self, refusal: NetworkRefusal | str) -> Network:
        """Allow the destination of a refusal, until the next update of the network policy.

        Args:
            refusal: The refusal, or its id.

        Returns:
            The policy with a further rule for the host and port of the refusal; after a refused HTTP request, for its method, and for its path with
            the paths below.

        Raises:
            NotFoundError: ``refusal_not_found``.
            ConflictError: A rule denies the destination, no rule can prevent the refusal, or the policy is no allowlist.
            SandboxEndedError: The sandbox has ended.
        """
        body = {"refusal": refusal.id if isinstance(refusal, NetworkRefusal) else refusal}
        return structure(Network, await self._transport.request("POST", f"{self._path}/approve", body=body, idempotent=True))
