"""Access of sandboxes to other hosts through the network gateway.

Invariants:
- A policy is in force only after it was recorded. Until then, the policy before it decides.
- A sandbox has no connections to other hosts while it is hibernated or after its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from sandlot.core.ports import Clock, NetworkGateway, SandboxNetwork
from sandlot.core.records.events import EventFeed
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.services import GuestService
from sandlot.model.errors import SandlotError
from sandlot.model.network import NetworkPolicy
from sandlot.model.network_activity import MAX_TEXT_CHARS, NetworkActivity, NetworkRefusal
from sandlot.model.records import NewEvent

_log = structlog.get_logger("sandlot.core")


@dataclass(slots=True)
class _Access:
    """Network access of one sandbox.

    Args:
        policy: Policy in force.
        network: Connections of the sandbox; None while it has no guest.
        sent_bytes: Bytes that the sandbox sent before its last hibernation.
        received_bytes: Bytes that the sandbox received before its last hibernation.
    """

    policy: NetworkPolicy
    network: SandboxNetwork | None = None
    sent_bytes: int = 0
    received_bytes: int = 0

    def close(self) -> None:
        """Reset all connections, and keep the number of their bytes."""
        network, self.network = self.network, None
        if network is not None:
            activity = network.activity()
            self.sent_bytes += activity.sent_bytes
            self.received_bytes += activity.received_bytes
            network.close()


class NetworkAccess:
    """Opens the network of each sandbox, and puts recorded policies in force."""

    def __init__(self, gateway: NetworkGateway, events: EventFeed, clock: Clock) -> None:
        self._gateway = gateway
        self._events = events
        self._clock = clock
        self._accesses = SandboxLocal[_Access](lambda sandbox: _Access(sandbox.spec.network), _Access.close)

    def services(self, sandbox: Sandbox) -> Mapping[str, GuestService]:
        """Return the services with which the guest of a sandbox connects to other hosts. Open the network of the sandbox on first use."""
        access = self._accesses.of(sandbox)
        if access.network is None:
            access.network = self._gateway.open(sandbox.id, access.policy, lambda refusal: sandbox.tasks.spawn(self._publish(sandbox, refusal)))
        return access.network.services()

    def policy(self, sandbox: Sandbox) -> NetworkPolicy:
        """Return the policy in force. It differs from the policy of the spec while an update is recorded."""
        access = self._accesses.get(sandbox)
        return sandbox.spec.network if access is None else access.policy

    def apply(self, sandbox: Sandbox) -> None:
        """Put the recorded policy of the spec in force, and reset the connections that it does not allow."""
        access = self._accesses.of(sandbox)
        access.policy = sandbox.spec.network
        if access.network is not None:
            access.network.set_policy(access.policy)

    def close(self, sandbox: Sandbox) -> None:
        """Reset all connections of a sandbox that is hibernated. Idempotent."""
        access = self._accesses.get(sandbox)
        if access is not None:
            access.close()

    def activity(self, sandbox: Sandbox) -> NetworkActivity:
        """Return the refusals, destinations and bytes since the guest of the sandbox was started, or was found again by this service."""
        access = self._accesses.get(sandbox)
        return NetworkActivity() if access is None or access.network is None else access.network.activity()

    def transferred_bytes(self, sandbox: Sandbox) -> tuple[int, int]:
        """Return the bytes that a sandbox has sent and received since it was created, or since this service found it again."""
        access, activity = self._accesses.get(sandbox), self.activity(sandbox)
        if access is None:
            return 0, 0
        return access.sent_bytes + activity.sent_bytes, access.received_bytes + activity.received_bytes

    async def _publish(self, sandbox: Sandbox, refusal: NetworkRefusal) -> None:
        data = {
            "refusal": refusal.id,
            "reason": str(refusal.reason),
            "host": refusal.host,
            "port": refusal.port,
            "rule": refusal.rule[:MAX_TEXT_CHARS] or None,
            "method": refusal.method or None,
            "path": refusal.path or None,
        }
        try:
            await self._events.publish(NewEvent("sandbox.network_refused", self._clock.now(), sandbox.owner, sandbox.id, data))
        except SandlotError as error:
            _log.warning("event.not_recorded", type="sandbox.network_refused", sandbox=sandbox.id, error=str(error))
