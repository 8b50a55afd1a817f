"""Network policies of live sandboxes, and their refusals and destinations."""

from __future__ import annotations

from sandlot.core.execution.network_access import NetworkAccess
from sandlot.core.manager import SandboxManager
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.network_activity import NetworkStatus
from sandlot.model.sandboxes import SandboxInfo


class NetworkService:
    """Network activity of sandboxes, and approval of refused destinations."""

    def __init__(self, registry: SandboxRegistry, manager: SandboxManager, access: NetworkAccess) -> None:
        self._registry = registry
        self._manager = manager
        self._access = access

    async def get(self, principal: Principal, sandbox: str) -> NetworkStatus:
        """Return the policy and the activity of a sandbox. A suspended sandbox is not resumed."""
        found = await self._find(principal, sandbox)
        return NetworkStatus(found.spec.network, self._access.activity(found))

    async def approve(self, principal: Principal, sandbox: str, refusal: str) -> SandboxInfo:
        """Allow the destination of a refusal, until the next update of the network policy.

        Args:
            principal: Caller. The operator and the quota of this principal must allow the policy.
            sandbox: Id of the sandbox.
            refusal: Id of the refusal.

        Raises:
            NotFoundError: The sandbox has no such refusal.
            ConflictError: An entry denies the destination, no entry can prevent the refusal, or the policy is no allowlist.
        """
        found = await self._find(principal, sandbox)
        refused = next((each for each in self._access.activity(found).refusals if each.id == refusal), None)
        if refused is None:
            raise NotFoundError(
                f"Sandbox {found.id} has no refusal {refusal[:64]!r}.",
                code=ErrorCode.REFUSAL_NOT_FOUND,
                hint="List the refusals of the sandbox. Old ones are dropped.",
                fields={"sandbox": found.id, "refusal": refusal[:64]},
            )
        return (await self._manager.approve(principal, found.id, refused)).info()

    async def _find(self, principal: Principal, sandbox: str) -> Sandbox:
        found = self._registry.find(sandbox, principal)
        await found.recovered.wait()
        found.check_live()
        return found
