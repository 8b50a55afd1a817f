"""Checks of create requests. They run before resources are reserved and a sandbox is started. Pure: the functions do no I/O.

Invariants:
- The operator's policy limits what a create request may choose. A sandbox never has weaker isolation or more network access than
  requested.
- A request whose isolation, network or limits cannot be enforced is refused. A sandbox is never created without
  the requested restriction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.core.resources.reservations import BUSY_RETRY_AFTER_S, OvercommitConfig
from sandlot.egress.policy.addresses import Address, Network, is_reachable_network
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, UnavailableError, UnsupportedError
from sandlot.model.network import NetworkMode, NetworkPolicy, NetworkUpTo, rule_error
from sandlot.model.ports import Capabilities, DriverCapability
from sandlot.model.sandboxes import AUTO, PURPOSE_KEY
from sandlot.model.specs import MAX_TIMEOUT_S, RootKind

ISOLATIONS: Final = ("gvisor", "container", "microvm")
"""Isolations that every service recognizes, even if it has no driver for them. Other drivers add their own names."""
DEFAULT_NETWORKS: Final = (NetworkMode.NONE, NetworkMode.PACKAGES, NetworkMode.ALLOWLIST)
"""Network modes that principals other than operators may choose if the operator has not decided which."""
HTTPS_PORT: Final = 443

SINGLE_USE_METADATA: Final = {PURPOSE_KEY: "program"}
"""Metadata of a single-use sandbox. After a restart, the service recognizes the sandbox by this metadata and ends the sandbox."""

_REQUIRED: Final = (
    DriverCapability.BOOT,
    DriverCapability.LIMIT_MEMORY,
    DriverCapability.LIMIT_CPU,
    DriverCapability.LIMIT_PIDS,
    DriverCapability.LIMIT_DISK,
)
"""Capabilities that a driver needs to start a sandbox and to enforce its limits."""


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits that the operator sets for the network policies of all sandboxes.

    Args:
        modes: Modes that a policy may have. None: ``DEFAULT_NETWORKS``, and for operators all modes.
        private: Networks that sandboxes may reach although the networks are not public.
        is_own: Returns True if an address belongs to this host.
    """

    modes: Collection[NetworkMode] | None = None
    private: tuple[Network, ...] = ()
    is_own: Callable[[Address], bool] = lambda _: False

    def modes_of(self, principal: Principal) -> Sequence[NetworkMode]:
        """Return the modes that a policy of a principal may have, the least open one first. ``none`` is always among them."""
        modes = (NetworkMode if principal.operator else DEFAULT_NETWORKS) if self.modes is None else self.modes
        most_open = principal.quota.network
        return [mode for mode in NetworkMode if (mode in modes or mode is NetworkMode.NONE) and (most_open is None or not mode.exceeds(most_open))]


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Limits that the operator sets for all sandboxes of the service.

    Args:
        isolation_default: Isolation of a sandbox whose create request has the isolation ``auto``.
        isolation_allowed: Isolations that a sandbox may have.
        max_sandboxes: Largest number of live sandboxes. A sandbox counts until nothing of it is left on the host. Hibernated sandboxes do not
            count.
        max_creates: Number of start slots, which limits how many sandboxes start at the same time. A start takes about 100 ms of processor time,
            so more concurrent starts would only delay each other.
        max_waiting: Largest number of create requests that wait for a start slot. One key has at most as many as are left for others.
        overcommit: Shares of the host's memory, disk space and tasks that may be reserved.
        max_suspended_s: Seconds after which a paused or hibernated sandbox is ended.
        network: Limits of network policies.
    """

    isolation_default: str = "gvisor"
    isolation_allowed: Collection[str] = ("gvisor",)
    max_sandboxes: int = 50
    max_creates: int = 4
    max_waiting: int = 100
    overcommit: OvercommitConfig = field(default_factory=OvercommitConfig)
    max_suspended_s: float = MAX_TIMEOUT_S
    network: NetworkLimits = field(default_factory=NetworkLimits)


def resolve_isolation(requested: str, policy: AdmissionPolicy, available: Collection[str], *, source: str | None = None) -> str:
    """Return the name of the driver for a request.

    Args:
        requested: ``auto`` or the name of an isolation.
        policy: Policy of the operator.
        available: Names of the drivers of this service.
        source: Isolation of the snapshot or parent that the sandbox starts from. None: the sandbox starts from its template.

    Raises:
        InvalidRequestError: The isolation does not exist, or differs from the isolation of the source.
        ForbiddenError: The operator does not allow the isolation.
        UnsupportedError: The operator allows the isolation, but this version of Sandlot has no driver for it.
    """
    if source is not None and requested not in {AUTO, source}:
        raise InvalidRequestError(
            f"The snapshot or parent sandbox has isolation {source!r}; the new sandbox cannot have isolation {requested[:64]!r}.",
            hint="Omit `isolation`.",
            fields={"field": "isolation"},
        )
    if requested not in {AUTO, *ISOLATIONS, *available}:
        raise InvalidRequestError(
            f"The isolation {requested[:50]!r} does not exist.",
            hint=f"Omit `isolation`, or use one of: {', '.join(policy.isolation_allowed)}.",
            fields={"field": "isolation"},
        )
    name = source or (policy.isolation_default if requested == AUTO else requested)
    if name not in policy.isolation_allowed:
        raise ForbiddenError(
            f"Isolation {name!r} is not allowed on this service.",
            hint=f"Use one of: {', '.join(policy.isolation_allowed)}." if policy.isolation_allowed else "Ask the operator to allow an isolation.",
            fields={"field": "isolation"},
        )
    if name not in available:
        raise UnsupportedError(
            f"This version of Sandlot has no driver for isolation {name!r}.",
            hint=f"Use one of: {', '.join(available)}.",
            fields={"field": "isolation"},
        )
    return name


def resolve_network(
    requested: NetworkPolicy | NetworkUpTo | None, limits: NetworkLimits, principal: Principal, capabilities: Capabilities
) -> NetworkPolicy:
    """Return the network policy of a request.

    Args:
        requested: Policy of the request. None: mode ``packages``, or ``none`` if the operator or the quota does not allow ``packages``.
        limits: Limits of the operator.
        principal: Caller.
        capabilities: Capabilities of the driver of the sandbox.

    Raises:
        ForbiddenError: The operator or the quota of the caller does not allow the mode. The field ``allowed`` has the allowed modes.
        UnsupportedError: The policy cannot be enforced: the driver gives sandboxes no network card, or the policy asks about destinations.
        InvalidRequestError: A rule allows addresses that are not public, or limits requests over HTTPS.
    """
    modes = limits.modes_of(principal)
    if requested is None:
        policy = NetworkPolicy(NetworkMode.PACKAGES if NetworkMode.PACKAGES in modes else NetworkMode.NONE)
    elif isinstance(requested, NetworkUpTo):
        can_connect = capabilities.can(DriverCapability.NETWORK)
        policy = _lowered(requested.policy, [mode for mode in modes if can_connect or not mode.exceeds(NetworkMode.PACKAGES)])
    else:
        policy = requested
    if policy.unknown == "ask":
        raise UnsupportedError(
            "This version of Sandlot cannot ask about destinations that no rule matches.",
            hint="Pass the rules of all destinations, and approve refused destinations afterwards.",
            fields={"field": "network.unknown"},
        )
    if policy.mode not in modes:
        raise ForbiddenError(
            f"Network mode {str(policy.mode)!r} is not allowed here; allowed: {', '.join(modes) or 'none of the modes'}.",
            hint=f"Use one of: {', '.join(modes)}." if modes else "Ask the operator to allow a network mode.",
            fields={"field": "network", "allowed": list(modes)},
        )
    if policy.mode.exceeds(NetworkMode.PACKAGES) and not capabilities.can(DriverCapability.NETWORK):
        raise UnsupportedError(
            f"The {capabilities.driver} driver cannot enforce network mode {str(policy.mode)!r} on this host: "
            f"{capabilities.why_not(DriverCapability.NETWORK)}",
            hint="Omit `network`: the default policy allows pip, npm and apt-get. Upload other data as files.",
            fields={"field": "network"},
        )
    _check_rules(policy, limits)
    return replace(policy, generation=0)


def resolve_public_ports(principal: Principal, *, requested: bool | None) -> bool:
    """Return whether a new sandbox gets public ports.

    Args:
        principal: Caller.
        requested: Value of the request. None: the ports are public where the quota allows it.

    Raises:
        ForbiddenError: The request makes the ports public, and the quota ``public_ports`` of the caller does not allow this.
    """
    check_public_ports(principal, requested=requested)
    return principal.may_have_public_ports if requested is None else requested


def check_public_ports(principal: Principal, *, requested: bool | None) -> None:
    """Refuse a request for public ports that the quota of the caller does not allow.

    Args:
        principal: Caller.
        requested: True if the request makes the ports of a sandbox public.

    Raises:
        ForbiddenError: The caller is no operator, and the quota ``public_ports`` is False.
    """
    if requested and not principal.may_have_public_ports:
        raise ForbiddenError(
            "The quota `public_ports` of this key does not allow public ports.",
            hint="Leave the ports private and open their preview URLs with the token, or ask the operator for the quota `public_ports`.",
            fields={"field": "public_ports", "quota": "public_ports"},
        )


def _lowered(policy: NetworkPolicy, modes: Sequence[NetworkMode]) -> NetworkPolicy:
    """Return a policy with the most open of several modes that is not more open than its own mode.

    A policy with entries that allow keeps a mode that has entries, so that these entries are not ignored.
    """
    mode = max((mode for mode in modes if not mode.exceeds(policy.mode)), key=list(NetworkMode).index, default=NetworkMode.NONE)
    if mode.exceeds(NetworkMode.PACKAGES):
        return replace(policy, mode=mode)
    if any(entry.allow for entry in policy.entries):
        return replace(policy, mode=NetworkMode.ALLOWLIST)
    return NetworkPolicy(mode if policy.packages else NetworkMode.NONE)


def _check_rules(policy: NetworkPolicy, limits: NetworkLimits) -> None:
    """Refuse entries that cannot be enforced, and entries that allow addresses which sandboxes may not reach."""
    positions: Counter[bool] = Counter()
    for entry in policy.entries:
        rule, position = entry.parsed, positions[entry.allow]
        positions[entry.allow] += 1
        if rule.port == HTTPS_PORT and (rule.methods or rule.path):
            raise rule_error(
                f"The network rule {entry.rule!r} limits requests over HTTPS, which are encrypted.",
                "Omit methods and path, or name the port of plain HTTP.",
                allow=entry.allow,
                position=position,
                rule=entry.rule,
            )
        if entry.allow and not isinstance(rule.host, str) and not is_reachable_network(rule.host, limits.private, limits.is_own):
            raise rule_error(
                f"The network rule {entry.rule!r} allows addresses that are not public.",
                "Name public addresses, or ask the operator to list the network in SANDLOT_NETWORK_PRIVATE.",
                allow=True,
                position=position,
                rule=entry.rule,
            )


def check_host(capabilities: Capabilities, *, volumes: bool = False) -> None:
    """Refuse to create a sandbox whose limits or volumes the driver cannot provide on this host.

    Args:
        capabilities: Capabilities of the driver.
        volumes: True if the sandbox has volumes.

    Raises:
        HostError: The driver cannot boot sandboxes or cannot enforce a limit. The message gives the reason.
        UnsupportedError: The driver cannot attach volumes.
    """
    for required in _REQUIRED:
        if not capabilities.can(required):
            action = "start sandboxes" if required is DriverCapability.BOOT else f"enforce the {required.removeprefix('limit.')} limit"
            raise HostError(
                f"The {capabilities.driver} driver cannot {action} on this host: {capabilities.why_not(required)}",
                hint="Run 'sandlot doctor' to check the host.",
                fields={"ability": str(required)},
            )
    if volumes and not capabilities.can(DriverCapability.VOLUMES):
        raise UnsupportedError(
            f"The {capabilities.driver} driver cannot attach volumes on this host: {capabilities.why_not(DriverCapability.VOLUMES)}",
            hint="Omit `volumes`.",
            fields={"field": "volumes"},
        )


def check_root(capabilities: Capabilities, template: str, kind: RootKind) -> None:
    """Refuse a template from whose root file system the driver cannot start sandboxes.

    Args:
        capabilities: Capabilities of the driver.
        template: Name of the template.
        kind: Kind of the template's root file system.

    Raises:
        UnsupportedError: The root file system is an image, and the driver starts sandboxes only from folders.
    """
    if kind is RootKind.IMAGE and not capabilities.can(DriverCapability.BOOT_IMAGE):
        raise UnsupportedError(
            f"The {capabilities.driver} driver cannot start sandboxes of template {template!r}: {capabilities.why_not(DriverCapability.BOOT_IMAGE)}.",
            hint="Use isolation `gvisor` for this template.",
            fields={"field": "isolation", "template": template},
        )


def check_room(live: int, waiting: int, own_waiting: int, policy: AdmissionPolicy) -> None:
    """Refuse a new sandbox if the operator's limit of live sandboxes is reached, or too many create requests wait.

    A key has at most as many waiting create requests as are left for others: half of ``max_waiting`` if no other key has any.

    Args:
        live: Number of sandboxes, including those that are being created or removed, but not those that are hibernated.
        waiting: Number of create requests that wait for a start slot.
        own_waiting: Number of these requests that the caller has sent.
        policy: Policy of the operator.

    Raises:
        UnavailableError: One of the limits is reached; code ``busy``, with the field ``retry_after_s``.
    """
    if live >= policy.max_sandboxes:
        raise UnavailableError(
            f"{live} sandboxes exist; this service allows {policy.max_sandboxes}.",
            code=ErrorCode.BUSY,
            hint="Kill a sandbox that is no longer needed, retry later, or raise SANDLOT_MAX_SANDBOXES.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S, "max_sandboxes": policy.max_sandboxes},
        )
    if own_waiting >= max(1, policy.max_waiting - waiting):
        raise UnavailableError(
            f"{own_waiting} create requests of this key are waiting to start a sandbox, as many as the service keeps for other keys.",
            code=ErrorCode.BUSY,
            hint="Create fewer sandboxes at the same time, and retry in a few seconds.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S},
        )
    if waiting >= policy.max_waiting:
        raise UnavailableError(
            f"{waiting} create requests are waiting to start a sandbox; at most {policy.max_waiting} may wait.",
            code=ErrorCode.BUSY,
            hint="Retry in a few seconds.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S},
        )
