"""Services of the host that guests may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandlot.core.execution.network_access import NetworkAccess
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.sandbox import Sandbox
from sandlot.link.services import GuestService
from sandlot.protocol import schema


@dataclass(frozen=True, slots=True)
class GuestServices:
    """Services of the host for the guests of all sandboxes."""

    packages: PackageAccess
    network: NetworkAccess

    def of(self, sandbox: Sandbox) -> Mapping[str, GuestService]:
        """Return the services that the guest of a sandbox may call, by the names that the guest uses."""
        packages = self.packages.service(sandbox)
        return {**self.network.services(sandbox), **({} if packages is None else {schema.PACKAGES: packages})}
