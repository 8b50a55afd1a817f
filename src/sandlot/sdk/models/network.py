"""Networks of sandboxes: policy, refused and reached destinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sandlot.model.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Network:
    """Network policy of a sandbox.

    A rule is ``[METHOD[,METHOD] ]host[:port][/path]``, such as ``api.example.com``, ``*.example.com:443``, ``192.0.2.0/24`` or
    ``GET example.com/repos/``. ``*.`` stands for one label, ``**.`` for one or more. Without a port, a name has the ports 80 and 443, and an address
    all ports; ``*`` is all ports. Methods and a path limit requests of plain HTTP.

    Args:
        mode: ``none``, ``packages`` (read access to the package indexes of the service's host), ``allowlist`` (what ``allow`` names) or ``internet``
            (all public destinations).
        allow: Rules of destinations to allow, at most 1,000 together with ``deny``.
        deny: Rules of destinations to deny; they take precedence over ``allow``.
        packages: For ``allowlist`` and ``internet``: read access to the package indexes as well. Default: True.
        generation: Number of earlier changes of the policy of this sandbox, set by the service.
    """

    mode: str
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    packages: bool | None = None
    generation: int = 0

    def __post_init__(self) -> None:
        """Keep the rules as tuples, so that equal policies are equal.

        Raises:
            InvalidRequestError: A list of rules is a text.
        """
        for name, rules in (("allow", self.allow), ("deny", self.deny)):
            if isinstance(rules, str):
                raise InvalidRequestError(f"`{name}` is the text {rules[:64]!r}.", hint="Pass a list of rules.", fields={"field": f"network.{name}"})
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "deny", tuple(self.deny))


@dataclass(frozen=True, slots=True)
class NetworkRefusal:
    """Equal refusals of connections or HTTP requests.

    Args:
        id: Id within the sandbox, for ``sandbox.network.approve``.
        reason: Reason, such as ``host_not_allowed``.
        host: Host that the program named: a name or an address.
        port: Port of the destination.
        rule: Rule that denies the destination; None if no rule allows it, or if the reason is not a rule.
        method: Method of the refused HTTP request; None if the whole connection was refused.
        path: Path of the refused HTTP request; None if there is none.
        count: Number of refusals.
        first_at: Time of the first refusal.
        last_at: Time of the last refusal.
    """

    id: str
    reason: str
    host: str
    port: int
    rule: str | None = None
    method: str | None = None
    path: str | None = None
    count: int = 1
    first_at: datetime | None = None
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NetworkDestination:
    """A host and port that programs of a sandbox have reached.

    Args:
        host: Host that the programs named: a name or an address.
        port: Port of the destination.
        connections: Number of connections.
        sent_bytes: Bytes that the sandbox has sent.
        received_bytes: Bytes that the sandbox has received.
        last_at: Time of the last connection.
    """

    host: str
    port: int
    connections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """Network of a sandbox. The activity begins with the last start or wake of the sandbox, or of the service.

    Args:
        policy: Network policy.
        refusals: The last 500 refusals, the newest last.
        destinations: The last 500 reached destinations, the newest last.
        sent_bytes: Bytes that programs have sent to other hosts.
        received_bytes: Bytes that programs have received from other hosts.
        open_connections: Connections that are open now.
    """

    policy: Network
    refusals: tuple[NetworkRefusal, ...] = ()
    destinations: tuple[NetworkDestination, ...] = ()
    sent_bytes: int = 0
    received_bytes: int = 0
    open_connections: int = 0
