"""Checks of create requests. They run before resources are reserved and a sandbox is started. Pure: the functions do no I/O.

Invariants:
- The operator's policy limits what a create request may choose. A sandbox never has weaker isolation or more network access than
  requested.
- A request whose isolation, network or limits cannot be enforced is refused. A sandbox is never created without
  the requested restriction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.core.resources.reservations import BUSY_RETRY_AFTER_S, OvercommitConfig
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, UnavailableError, UnsupportedError
from sandlot.model.ports import Capabilities, DriverCapability
from sandlot.model.specs import (
    DEFAULT_NETWORK,
    DEFAULT_TEMPLATE,
    DEFAULT_TIMEOUT_S,
    KIB,
    MAX_TIMEOUT_S,
    Limits,
    Network,
    OnTimeout,
    VolumeMount,
    check_mounts,
    check_text,
)

AUTO: Final = "auto"
"""Value of ``isolation`` that leaves the choice of the isolation to the operator."""
ISOLATIONS: Final = ("gvisor", "container", "microvm")
"""Isolations that every service recognizes, even if it has no driver for them. Other drivers add their own names."""
UNSUPPORTED_NETWORKS: Final = ("allowlist", "internet")
"""Network policies of the API that need the egress proxy, which this version does not have."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_METADATA_ENTRIES: Final = 64
MAX_METADATA_BYTES: Final = 16 * KIB
MAX_METADATA_NAME_BYTES: Final = 255
"""Maximum bytes of a metadata name in UTF-8. Names and values are indexed for filters, and a PostgreSQL index row can hold at most 2,704 bytes."""
RESERVED_PREFIX: Final = "sandlot."
"""Prefix of metadata names that only the service and its compatibility APIs may set."""
SINGLE_USE_METADATA: Final = {"sandlot.use": "oneshot"}
"""Metadata of a single-use sandbox. After a restart, the service recognizes the sandbox by this metadata and ends the sandbox."""
MIN_IDLE_TIMEOUT_S: Final = 5.0
"""Smallest idle timeout in seconds. It equals the interval between two checks of the idle monitor (``core/lifecycle/idle.py``)."""

_REQUIRED: Final = (
    DriverCapability.BOOT,
    DriverCapability.LIMIT_MEMORY,
    DriverCapability.LIMIT_CPU,
    DriverCapability.LIMIT_PIDS,
    DriverCapability.LIMIT_DISK,
)
"""Capabilities that a driver needs to start a sandbox and to enforce its limits."""


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
        max_waiting: Largest number of create requests that wait for a start slot. Further requests are refused.
        overcommit: Shares of the host's memory, disk space and tasks that may be reserved.
        max_suspended_s: Seconds after which a paused or hibernated sandbox is ended.
    """

    isolation_default: str = "gvisor"
    isolation_allowed: Collection[str] = ("gvisor",)
    max_sandboxes: int = 50
    max_creates: int = 4
    max_waiting: int = 100
    overcommit: OvercommitConfig = field(default_factory=OvercommitConfig)
    max_suspended_s: float = MAX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class CreateSandboxParams:
    """Parameters of a create request.

    Args:
        template: Name of the template.
        snapshot: Id or name of a snapshot to start from instead of the template. None: the template.
        name: Name that the client chose. None: no name.
        env: Environment variables of every process in the sandbox.
        metadata: Metadata that the client chose: at most 64 entries, 16 KiB, and 255 bytes for each name.
        limits: Limits of the sandbox.
        timeout_s: Seconds until the action ``on_timeout`` is carried out. None: the sandbox is persistent.
        idle_timeout_s: Seconds without activity until the action ``on_timeout`` is carried out. None: no idle timeout.
        isolation: ``auto`` or the name of a driver.
        network: Name of the network policy.
        files: Ids of stored files to copy into the working directory.
        on_timeout: Action when the timeout or the idle timeout passes.
        auto_resume: True if a paused or hibernated sandbox is resumed by the next request that needs it.
        volumes: Volumes to attach, by name or id: at most eight. No volume may have a path below the path of another volume.
        unique_name: True to refuse the request if the owner has a live sandbox of the same name.
        single_use: True for a sandbox that serves a single request, such as a one-shot run. The client does not get the id of the sandbox.
            The sandbox is ended when the service stops. Clients cannot set this field.
    """

    template: str = DEFAULT_TEMPLATE
    snapshot: str | None = None
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    idle_timeout_s: float | None = None
    isolation: str = AUTO
    network: str = DEFAULT_NETWORK
    files: tuple[str, ...] = ()
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_resume: bool = True
    volumes: tuple[VolumeMount, ...] = ()
    unique_name: bool = False
    single_use: bool = False

    def __post_init__(self) -> None:
        """Check the fields whose valid values depend neither on the operator's policy nor on the host.

        Raises:
            InvalidRequestError: The name, the metadata, the idle timeout or a volume is invalid.
        """
        check_properties(self.name, self.metadata, self.idle_timeout_s, unique_name=self.unique_name)
        check_mounts(self.volumes)


def check_properties(name: str | None, metadata: Mapping[str, str], idle_timeout_s: float | None, *, unique_name: bool) -> None:
    """Check the properties of a sandbox that both a create request and an update can set.

    Args:
        name: Name of the sandbox. None: the sandbox has no name, or an update keeps the name.
        metadata: Metadata that the client chose.
        idle_timeout_s: Idle timeout in seconds. None: the sandbox has no idle timeout, or an update keeps the idle timeout.
        unique_name: True if no other live sandbox of the owner may have the name.

    Raises:
        InvalidRequestError: A value is invalid, or ``unique_name`` is set without a name.
    """
    if name is not None and NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"The name {name[:64]!r} is not valid.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
            fields={"field": "name"},
        )
    if name is None and unique_name:
        raise InvalidRequestError("`unique_name` is set without `name`.", hint="Set `name`.", fields={"field": "unique_name"})
    if idle_timeout_s is not None and not MIN_IDLE_TIMEOUT_S <= idle_timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"`idle_timeout` is {idle_timeout_s:g}; {MIN_IDLE_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g} seconds are allowed.",
            hint="Pass `idle_timeout` within these bounds, or omit it.",
            fields={"field": "idle_timeout"},
        )
    if metadata:
        check_metadata(metadata)


def check_reserved_names(metadata: Mapping[str, str], current: Mapping[str, str] | None = None) -> None:
    """Refuse reserved names in the metadata of a client's request. An entry that equals an entry of the current metadata is allowed.

    Args:
        metadata: Metadata of the request.
        current: Current metadata of the sandbox or pool. None: the sandbox or pool does not exist yet.

    Raises:
        InvalidRequestError: The metadata would add or change an entry with a reserved name.
    """
    for name, value in metadata.items():
        if name.startswith(RESERVED_PREFIX) and (current or {}).get(name) != value:
            raise InvalidRequestError(
                f"{name[:64]!r} cannot be set: metadata names that begin with {RESERVED_PREFIX!r} are reserved for the service.",
                hint="Choose another name.",
                fields={"field": "metadata", "name": name[:64]},
            )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata with too many entries, with too many bytes, or with a name or value that is not valid text.

    Raises:
        InvalidRequestError: The metadata or one of its names is too large, or a name or value is not valid text.
    """
    for name in metadata:
        if (length := len(check_text("metadata", name))) > MAX_METADATA_NAME_BYTES:
            raise InvalidRequestError(
                f"The metadata name {name[:32]!r}... has {length} bytes; {MAX_METADATA_NAME_BYTES} are allowed.",
                hint="Use a short name and put long text into the value.",
                fields={"field": "metadata"},
            )
    size = sum(len(check_text("metadata", name)) + len(check_text("metadata", value)) for name, value in metadata.items())
    if len(metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA_BYTES:
        raise InvalidRequestError(
            f"The metadata has {len(metadata)} entries (at most {MAX_METADATA_ENTRIES}) and {size} bytes (at most {MAX_METADATA_BYTES}).",
            hint="Store large values elsewhere and put references into the metadata.",
            fields={"field": "metadata"},
        )


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


def resolve_network(requested: str) -> Network:
    """Return the network policy of a request.

    Raises:
        UnsupportedError: This version of Sandlot cannot enforce the network policy.
        InvalidRequestError: The network policy does not exist.
    """
    if requested in UNSUPPORTED_NETWORKS:
        raise UnsupportedError(
            f"Network policy {requested!r} needs the egress proxy, which this version does not have.",
            hint="Omit `network`: the default policy allows pip, npm and apt-get. Upload other data as files.",
            fields={"field": "network"},
        )
    try:
        return Network(requested)
    except ValueError:
        raise InvalidRequestError(
            f"The network policy {requested[:50]!r} does not exist.", hint="Omit `network`, or use 'packages' or 'none'.", fields={"field": "network"}
        ) from None


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


def check_room(live: int, waiting: int, policy: AdmissionPolicy) -> None:
    """Refuse a new sandbox if the operator's limit of live sandboxes or of waiting create requests is reached.

    Args:
        live: Number of sandboxes, including those that are being created or removed, but not those that are hibernated.
        waiting: Number of create requests that wait for a start slot.
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
    if waiting >= policy.max_waiting:
        raise UnavailableError(
            f"{waiting} create requests are waiting to start a sandbox; at most {policy.max_waiting} may wait.",
            code=ErrorCode.BUSY,
            hint="Retry in a few seconds.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S},
        )
