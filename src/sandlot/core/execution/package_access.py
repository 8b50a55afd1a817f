"""Access of sandboxes to the package indexes.

A sandbox with network ``packages`` may read the indexes at any time. A sandbox with network ``none`` may read the indexes only while packages are
installed at the request of a client, and only if the quota of the client's key allows this. Each request of the guest is checked, so the access ends
as soon as the installation ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.core.ports import PackageIndex
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.services import GuestStream, Service
from sandlot.model.specs import Network
from sandlot.protocol import schema


class _Installs:
    """Number of running installations of packages in one sandbox that have access to the package indexes."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PackageAccess:
    """Decides which sandboxes may read the package indexes.

    Args:
        index: Package indexes; None if the service has none.
    """

    def __init__(self, index: PackageIndex | None) -> None:
        self._index = index
        self._installs = SandboxLocal(lambda _: _Installs())

    def of(self, sandbox: Sandbox) -> Mapping[str, Service]:
        """Return the services that the guest of a sandbox may call, by name."""
        index = self._index
        if index is None:
            return {}

        async def serve(stream: GuestStream, _args: Mapping[str, Any]) -> None:
            await index.serve(stream, sandbox=sandbox.id, allowed=lambda: self.is_open(sandbox))

        return {schema.PACKAGES: serve}

    def is_open(self, sandbox: Sandbox) -> bool:
        """Return True if processes of a sandbox may read the package indexes now."""
        installs = self._installs.get(sandbox)
        return sandbox.spec.network is Network.PACKAGES or (installs is not None and installs.count > 0)

    def open(self, sandbox: Sandbox) -> None:
        """Allow a sandbox to read the package indexes while packages are installed in it. Call :meth:`close` when the installation has ended."""
        self._installs.of(sandbox).count += 1

    def close(self, sandbox: Sandbox) -> None:
        """End the access that one call of :meth:`open` gave to a sandbox."""
        if (installs := self._installs.get(sandbox)) is not None:
            installs.count -= 1
