"""Checks of create requests. They run before resources are reserved and a sandbox is started. Pure: the functions do no I/O.

Invariants:
- The operator's policy limits what a create request may choose. A sandbox never has weaker isolation or more network access than
  requested.
- A request whose isolation, network or limits cannot be enforced is refused. A sandbox is never created without
  the requested restriction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from sandlot.core.resources.reservations import BUSY_RETRY_AFTER_S, OvercommitConfig
from sandlot.model.access import Quota
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, UnavailableError, UnsupportedError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import Capabilities, DriverCapability
from sandlot.model.sandboxes import AUTO, PURPOSE_KEY
from sandlot.model.specs import MAX_TIMEOUT_S

ISOLATIONS: Final = ("gvisor", "container", "microvm")
"""Isolations that every service recognizes, even if it has no driver for them. Other drivers add their own names."""
UNSUPPORTED_NETWORKS: Final = (NetworkMode.ALLOWLIST, NetworkMode.INTERNET)
"""Network modes that need the egress proxy, which this version does not have. Only policies of these modes have entries or ask."""

SINGLE_USE_METADATA: Final = {PURPOSE_KEY: "oneshot"}
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
        modes: Modes that a policy may have.
        private: Networks that sandboxes may reach although the networks are not public.
    """

    modes: Collection[NetworkMode] = (NetworkMode.NONE, NetworkMode.PACKAGES)
    private: tuple[IPv4Network | IPv6Network, ...] = ()


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


def resolve_network(requested: NetworkPolicy | None, limits: NetworkLimits, quota: Quota) -> NetworkPolicy:
    """Return the network policy of a request.

    Args:
        requested: Policy of the request. None: ``packages``, or ``none`` if the operator or the quota does not allow ``packages``.
        limits: Limits of the operator.
        quota: Quota of the caller. It limits only the default; :func:`~sandlot.core.access.quotas.check_network` checks the result.

    Raises:
        UnsupportedError: This version of Sandlot cannot enforce the network policy.
        ForbiddenError: The operator does not allow the mode.
    """
    if requested is None:
        is_allowed = NetworkMode.PACKAGES in limits.modes and (quota.network is None or not NetworkMode.PACKAGES.exceeds(quota.network))
        requested = NetworkPolicy(NetworkMode.PACKAGES if is_allowed else NetworkMode.NONE)
    if requested.mode in UNSUPPORTED_NETWORKS:
        raise UnsupportedError(
            f"Network mode {str(requested.mode)!r} needs the egress proxy, which this version does not have.",
            hint="Omit `network`: the default policy allows pip, npm and apt-get. Upload other data as files.",
            fields={"field": "network"},
        )
    if requested.mode not in limits.modes:
        raise ForbiddenError(
            f"Network mode {str(requested.mode)!r} is not allowed on this service.",
            hint=f"Use one of: {', '.join(limits.modes)}." if limits.modes else "Ask the operator to allow a network mode.",
            fields={"field": "network"},
        )
    return requested


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
