"""A network gateway that connects to nothing: it records the policies of sandboxes, and a test adds refusals and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sandlot.link.services import GuestService, GuestStream
from sandlot.model.errors import UnsupportedError
from sandlot.model.network import NetworkPolicy
from sandlot.model.network_activity import NetworkActivity, NetworkRefusal, RefusalReason
from sandlot.protocol import schema

AT = datetime(2026, 1, 2, tzinfo=UTC)


def refusal(
    host: str = "example.com",
    port: int = 443,
    *,
    id: str = "1",  # noqa: A002 - the field's name
    reason: RefusalReason = RefusalReason.HOST_NOT_ALLOWED,
    rule: str = "",
    method: str = "",
    path: str = "",
) -> NetworkRefusal:
    """Return a refusal."""
    return NetworkRefusal(id, reason, host, port, rule, method, path, count=1, first_at=AT, last_at=AT)


class _NoService:
    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        del stream, args
        raise UnsupportedError("This gateway connects to nothing.")


@dataclass
class RecordedNetwork:
    """Network of one sandbox.

    Attributes:
        policies: Policies that were in force, the oldest first.
        recorded: Activity, which a test sets.
    """

    sandbox: str
    policies: list[NetworkPolicy]
    on_refusal: Callable[[NetworkRefusal], object]
    recorded: NetworkActivity = field(default_factory=NetworkActivity)
    is_closed: bool = False

    def services(self) -> Mapping[str, GuestService]:
        """Return services that refuse every stream."""
        return {schema.CONNECT: _NoService(), schema.DNS: _NoService()}

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Record a policy."""
        self.policies.append(policy)

    def activity(self) -> NetworkActivity:
        """Return the activity that the test has set."""
        return self.recorded

    def close(self) -> None:
        """Record the end."""
        self.is_closed = True

    def refuse(self, *refused: NetworkRefusal) -> None:
        """Let programs of the sandbox be refused."""
        self.recorded = replace(self.recorded, refusals=(*self.recorded.refusals, *refused))
        for each in refused:
            self.on_refusal(each)


class RecordingGateway:
    """Gateway with the networks of all sandboxes, the oldest first."""

    def __init__(self) -> None:
        self.networks: list[RecordedNetwork] = []

    def open(self, sandbox: str, policy: NetworkPolicy, on_refusal: Callable[[NetworkRefusal], object]) -> RecordedNetwork:
        """Record a network."""
        network = RecordedNetwork(sandbox, [policy], on_refusal)
        self.networks.append(network)
        return network

    def of(self, sandbox: str) -> RecordedNetwork:
        """Return the newest network of a sandbox."""
        return [network for network in self.networks if network.sandbox == sandbox][-1]
