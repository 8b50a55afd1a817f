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
from sandlot.model.ids import ProcessId
from sandlot.model.specs import Network
from sandlot.protocol import schema


class PackageAccess:
    """Decides which sandboxes may read the package indexes. ``index`` is None if the service has none."""

    def __init__(self, index: PackageIndex | None) -> None:
        self._index = index
        self._installs: SandboxLocal[set[ProcessId]] = SandboxLocal(lambda _: set())

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
        return sandbox.spec.network is Network.PACKAGES or bool(self._installs.get(sandbox))

    def open(self, sandbox: Sandbox, install: ProcessId) -> None:
        """Allow a sandbox to read the package indexes until :meth:`close` is called for the same installation."""
        self._installs.of(sandbox).add(install)

    def close(self, sandbox: Sandbox, install: ProcessId) -> None:
        """End the access of an installation. Idempotent."""
        (self._installs.get(sandbox) or set()).discard(install)
