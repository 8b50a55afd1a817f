"""Access of sandboxes to the package indexes.

A sandbox whose network policy includes the indexes may read the indexes at any time. Any other sandbox may read the indexes only while packages are
installed at the request of a client, and only if the quota of the client's key allows this. Each request of the guest is checked, so the access ends
as soon as the installation ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandlot.core.execution.network_access import NetworkAccess
from sandlot.core.ports import PackageIndex
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.services import GuestService, GuestStream
from sandlot.model.ids import ProcessId


@dataclass(frozen=True, slots=True)
class _PackageService:
    index: PackageIndex
    access: PackageAccess
    sandbox: Sandbox

    async def serve(self, stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await self.index.serve(stream, sandbox=self.sandbox.id, allowed=lambda: self.access.is_open(self.sandbox))


class PackageAccess:
    """Decides which sandboxes may read the package indexes. ``index`` is None if the service has none."""

    def __init__(self, index: PackageIndex | None, network: NetworkAccess) -> None:
        self._index = index
        self._network = network
        self._installs: SandboxLocal[set[ProcessId]] = SandboxLocal(lambda _: set())

    def service(self, sandbox: Sandbox) -> GuestService | None:
        """Return the service with which the guest of a sandbox reads the indexes; None if this service has no index."""
        return None if self._index is None else _PackageService(self._index, self, sandbox)

    def is_open(self, sandbox: Sandbox) -> bool:
        """Return True if processes of a sandbox may read the package indexes now."""
        return self._network.policy(sandbox).reaches_packages or bool(self._installs.get(sandbox))

    def open(self, sandbox: Sandbox, install: ProcessId) -> None:
        """Allow a sandbox to read the package indexes until :meth:`close` is called for the same installation."""
        self._installs.of(sandbox).add(install)

    def close(self, sandbox: Sandbox, install: ProcessId) -> None:
        """End an installation's access to the package indexes. Idempotent."""
        (self._installs.get(sandbox) or set()).discard(install)
