"""Sandboxes of a service, through the SDK."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.mcp.host import IDLE_TIMEOUT_S, MAX_LISTED, TIMEOUT_S, CreateOptions, NetworkReport, Port, Refusal, SandboxSummary
from sandlot.sdk import AsyncClient, AsyncSandbox
from sandlot.toolset.backends.sdk import SdkBackend


class SdkHost:
    """Sandboxes of a service. The caller closes the client.

    Args:
        client: Client of the service.
        template: Template of sandboxes that are created without one; None for the service's default.
        timeout_s: Timeout of these sandboxes.
    """

    def __init__(self, client: AsyncClient, *, template: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._template = template
        self._timeout_s = timeout_s

    async def create(self, options: CreateOptions) -> SdkBackend:
        """See :class:`sandlot.mcp.host.SandboxHost`, like all methods."""
        sandbox = await AsyncSandbox.create(
            options.template or (None if options.snapshot else self._template),
            snapshot=options.snapshot,
            name=options.name,
            timeout=options.timeout_s or self._timeout_s,
            idle_timeout=IDLE_TIMEOUT_S,
            network=options.network,
            client=self._client,
        )
        return SdkBackend(sandbox)

    async def open(self, sandbox: str) -> SdkBackend:
        """Return an existing sandbox. A suspended one is resumed by the next call that needs it."""
        return SdkBackend(await self._connect(sandbox))

    async def list(self) -> Sequence[SandboxSummary]:
        """Return the live sandboxes."""
        found = await self._client.sandboxes.list(limit=MAX_LISTED)
        return [SandboxSummary(each.id, str(each.state), each.template, each.name, each.created_at, each.expires_at) for each in found]

    async def kill(self, sandbox: str) -> None:
        """End a sandbox."""
        await self._client.sandboxes.kill(sandbox)

    async def snapshot(self, sandbox: str, name: str | None) -> str:
        """Save a sandbox."""
        return (await (await self._connect(sandbox)).snapshot(name)).id

    async def fork(self, sandbox: str, count: int) -> Sequence[str]:
        """Copy a running sandbox."""
        return [each.id for each in await (await self._connect(sandbox)).fork(count)]

    async def list_ports(self, sandbox: str) -> Sequence[Port]:
        """Return the ports on which programs listen."""
        return [Port(each.port, each.address, each.url) for each in await (await self._connect(sandbox)).ports()]

    async def network(self, sandbox: str) -> NetworkReport:
        """Return the refusals of the network policy."""
        info = await (await self._connect(sandbox)).network.info()
        refusals = [Refusal(each.reason, each.host, each.port, each.method or "", each.path or "", each.count) for each in info.refusals]
        return NetworkReport(info.policy.mode, refusals)

    async def _connect(self, sandbox: str) -> AsyncSandbox:
        return await AsyncSandbox.connect(sandbox, resume=False, client=self._client)
