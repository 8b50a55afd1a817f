"""Sandboxes of the node, without HTTP in between."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.core.node import Node
from sandlot.mcp.host import IDLE_TIMEOUT_S, MAX_LISTED, TIMEOUT_S, CreateOptions, NetworkReport, Port, Refusal, SandboxSummary
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, SandboxFilter
from sandlot.toolset.backends.node import NodeBackend
from sandlot.web.preview_urls import PreviewAddresses


class NodeHost:
    """Sandboxes that a principal may use.

    Args:
        node: The node.
        principal: Caller.
        previews: Address of the previews; None if there are none.
    """

    def __init__(self, node: Node, principal: Principal, previews: PreviewAddresses | None = None) -> None:
        self._node = node
        self._principal = principal
        self._previews = previews if previews is not None and previews.is_enabled else None

    async def create(self, options: CreateOptions) -> NodeBackend:
        """See :class:`sandlot.mcp.host.SandboxHost`, like all methods."""
        longest_s = self._principal.quota.lifetime_s
        timeout_s = options.timeout_s or (TIMEOUT_S if longest_s is None else min(TIMEOUT_S, longest_s))
        params = CreateSandboxParams(
            template=options.template,
            snapshot=options.snapshot,
            name=options.name,
            timeout_s=timeout_s,
            idle_timeout_s=IDLE_TIMEOUT_S,
            network=None if options.network is None else NetworkPolicy(_mode(options.network)),
        )
        return self._backend((await self._node.sandboxes.create(self._principal, params)).id)

    async def open(self, sandbox: str) -> NodeBackend:
        """Return an existing sandbox."""
        return self._backend(await self._id(sandbox))

    async def list(self) -> Sequence[SandboxSummary]:
        """Return the live sandboxes."""
        page = await self._node.sandboxes.list(self._principal, SandboxFilter(), after=None, limit=MAX_LISTED)
        return [SandboxSummary(each.id, str(each.state), each.spec.template.name, each.name, each.created_at, each.expires_at) for each in page.items]

    async def kill(self, sandbox: str) -> None:
        """End a sandbox."""
        await self._node.sandboxes.kill(self._principal, await self._id(sandbox))

    async def snapshot(self, sandbox: str, name: str | None) -> str:
        """Save a sandbox."""
        return (await self._node.snapshots.create(self._principal, await self._id(sandbox), name=name)).id

    async def fork(self, sandbox: str, count: int) -> Sequence[str]:
        """Copy a running sandbox."""
        return [each.id for each in await self._node.sandboxes.fork(self._principal, await self._id(sandbox), ForkParams(count=count))]

    async def list_ports(self, sandbox: str) -> Sequence[Port]:
        """Return the ports on which programs listen."""
        backend = await self.open(sandbox)
        found = await self._node.sandboxes.ports(self._principal, backend.id)
        return [Port(each.port, each.address, None if self._previews is None else await backend.get_url(each.port)) for each in found]

    async def network(self, sandbox: str) -> NetworkReport:
        """Return the refusals of the network policy."""
        status = await self._node.network.get(self._principal, await self._id(sandbox))
        refusals = status.activity.refusals
        return NetworkReport(
            str(status.policy.mode), [Refusal(str(each.reason), each.host, each.port, each.method, each.path, each.count) for each in refusals]
        )

    def _backend(self, sandbox: str) -> NodeBackend:
        return NodeBackend(self._node, self._principal, sandbox, previews=self._previews, origin="mcp")

    async def _id(self, sandbox: str) -> str:
        return sandbox if SANDBOX_ID.fullmatch(sandbox) else (await self._node.sandboxes.get(self._principal, sandbox)).id


def _mode(name: str) -> NetworkMode:
    try:
        return NetworkMode(name)
    except ValueError:
        raise InvalidRequestError(f"There is no network mode {name[:32]!r}.", fields={"field": "network"}) from None
