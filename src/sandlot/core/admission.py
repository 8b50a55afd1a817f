"""What may be created here, decided before anything is touched. Pure.

Laws:
- The operator decides what is allowed; a request chooses within it. Nothing weaker than what was asked is taken silently.
- A field that is not enforced is refused, never stored and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sandlot.core.node.reservations import BUSY_RETRY_AFTER_S, OvercommitConfig
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

AUTO = "auto"
ISOLATIONS = ("gvisor", "container", "microvm")
"""Every kind of isolation that Sandlot knows by name, allowed here or not."""

LATER_NETWORKS = ("allowlist", "internet")
"""Named in the API, not enforced yet: they come with the egress proxy."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 16 * KIB
MAX_METADATA_NAME_BYTES = 255
"""Of one name, in UTF-8: what is asked for is in an index, and a row of PostgreSQL's holds 2,704 bytes."""

LEAST_IDLE_S = 5.0
"""Of an idle timeout: as often as it is looked (``core/lifecycle/idle.py``)."""

_NEEDED = (DriverCapability.BOOT, DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS, DriverCapability.LIMIT_DISK)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """What the operator decided.

    Args:
        isolation_default: What ``auto`` means.
        isolation_allowed: What a request may name.
        max_sandboxes: Live ones at once, those in transit counted until the last trace of them is gone.
        max_creates: Being prepared or booted at once. Creating is bound by the CPU (about 100 ms of it each), so more
            at once only makes all of them later.
        max_waiting: Waiting for that; more are refused.
        shares: How much of the host may be promised to sandboxes.
        keep_resting_s: How long a paused or hibernated sandbox is kept.
    """

    isolation_default: str = "gvisor"
    isolation_allowed: Collection[str] = ("gvisor",)
    max_sandboxes: int = 50
    max_creates: int = 4
    max_waiting: int = 100
    shares: OvercommitConfig = field(default_factory=OvercommitConfig)
    keep_resting_s: float = MAX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class CreateSandboxParams:
    """A sandbox as a client asks for it.

    Args:
        template: What it starts from.
        snapshot: What it starts from instead; refused until there are snapshots.
        name: A word for people; None is none.
        unique_name: Whether it is refused while its owner has a live sandbox of that name.
        env: Environment of every process in it.
        metadata: The owner's own words: at most 64 entries and 16 KiB, and 255 bytes a name.
        limits: What it may use.
        timeout_s: Seconds until it is ended; None is never: it is persistent.
        idle_timeout_s: Seconds of doing nothing after which it is ended; None is never.
        isolation: ``auto`` or a kind that the operator allows.
        network: What it may reach.
        files: Ids of files of the file store that are put into its working folder.
        on_timeout: What becomes of it when its timeout passes.
        auto_resume: Whether a request to it resumes it by itself while it is paused or hibernated.
        volumes: Its volumes, by their names or ids: at most eight, none in the place of another.
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

    def __post_init__(self) -> None:
        """Refuse a name that is none, and metadata beyond its size."""
        check_name(self.name, unique=self.unique_name)
        check_mounts(self.volumes)
        check_metadata(self.metadata)
        check_idle_timeout(self.idle_timeout_s)


def check_name(name: str | None, *, unique: bool) -> None:
    """Refuse a name for a sandbox that is none, and none that is to be unique.

    Raises:
        InvalidRequestError: It is.
    """
    if name is not None and NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            "The name is not one.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
            fields={"field": "name"},
        )
    if name is None and unique:
        raise InvalidRequestError("A sandbox without a name has none that could be unique.", hint="Give it a name.", fields={"field": "unique_name"})


def check_idle_timeout(seconds: float | None) -> None:
    """Refuse an idle timeout that is out of bounds.

    Raises:
        InvalidRequestError: It is.
    """
    if seconds is not None and not LEAST_IDLE_S <= seconds <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"idle_timeout is {seconds:g}; it must be from {LEAST_IDLE_S:g} to {MAX_TIMEOUT_S:g}.",
            hint="Leave it out for none.",
            fields={"field": "idle_timeout"},
        )


OWN = "sandlot."
"""How the names in a sandbox's metadata begin that say what it is for, as the service itself and the doors write them."""


def check_own(metadata: Mapping[str, str], there: Mapping[str, str] | None = None) -> None:
    """Refuse words of a client that are the service's own; those that are there may be said again.

    Args:
        metadata: The client's.
        there: What the sandbox has.

    Raises:
        InvalidRequestError: One of them is.
    """
    has = there or {}
    for name, value in metadata.items():
        if name.startswith(OWN) and has.get(name) != value:
            raise InvalidRequestError(
                f"{name[:64]!r} cannot be set: names in the metadata that begin with {OWN!r} are the service's own.",
                hint="Choose another name.",
                fields={"field": "metadata", "name": name[:64]},
            )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that is not text or beyond its size.

    Raises:
        InvalidRequestError: It is.
    """
    for name in metadata:
        if (length := len(check_text("metadata", name))) > MAX_METADATA_NAME_BYTES:
            raise InvalidRequestError(
                f"A name in the metadata, {name[:32]!r}..., has {length} bytes; {MAX_METADATA_NAME_BYTES} are allowed.",
                hint="Use short names, and put what is long into the value.",
                fields={"field": "metadata"},
            )
    size = sum(len(check_text("metadata", name)) + len(check_text("metadata", value)) for name, value in metadata.items())
    if len(metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA_BYTES:
        raise InvalidRequestError(
            f"The metadata has {len(metadata)} entries and {size} bytes; {MAX_METADATA_ENTRIES} and {MAX_METADATA_BYTES} are allowed.",
            hint="Keep large values elsewhere and put a reference into the metadata.",
            fields={"field": "metadata"},
        )


def resolve_isolation(asked: str, rules: AdmissionPolicy, available: Collection[str]) -> str:
    """The driver that a request gets.

    Args:
        asked: ``auto`` or a kind of isolation.
        rules: What the operator allows.
        available: Drivers that this service has.

    Raises:
        InvalidRequestError: No such kind.
        ForbiddenError: The operator does not allow it.
        UnsupportedError: It is allowed, but this version has no driver for it.
    """
    if asked != AUTO and asked not in ISOLATIONS:
        raise InvalidRequestError(
            f"There is no isolation {asked[:50]!r}.",
            hint=f"Leave it out, or use one of: {', '.join(rules.isolation_allowed)}.",
            fields={"field": "isolation"},
        )
    chosen = rules.isolation_default if asked == AUTO else asked
    if chosen not in rules.isolation_allowed:
        raise ForbiddenError(
            f"Isolation {chosen!r} is not allowed on this service.",
            code=ErrorCode.FORBIDDEN,
            hint=f"Its operator allows: {', '.join(rules.isolation_allowed)}.",
            fields={"field": "isolation"},
        )
    if chosen not in available:
        raise UnsupportedError(
            f"This version of Sandlot has no driver for isolation {chosen!r}.",
            code=ErrorCode.UNSUPPORTED,
            hint=f"It has: {', '.join(available)}.",
            fields={"field": "isolation"},
        )
    return chosen


def same_isolation(asked: str, source: str) -> str:
    """The isolation of what goes on from a snapshot or a fork.

    Raises:
        InvalidRequestError: Another one was asked for.
    """
    if asked != source:
        raise InvalidRequestError(
            f"The snapshot was taken with isolation {source!r}; it cannot go on with {asked[:64]!r}.",
            hint="Leave isolation out.",
            fields={"field": "isolation"},
        )
    return source


def resolve_network(asked: str) -> Network:
    """The network policy that a request gets.

    Raises:
        UnsupportedError: It is not enforced yet, so it is refused.
        InvalidRequestError: No such policy.
    """
    if asked in LATER_NETWORKS:
        raise UnsupportedError(
            f"Network policy {asked!r} comes with the egress proxy, which this version does not have: it is refused rather than ignored.",
            code=ErrorCode.UNSUPPORTED,
            hint="Leave it out: with 'packages' pip, npm and apt-get work. Bring what else the code needs in as files.",
            fields={"field": "network"},
        )
    try:
        return Network(asked)
    except ValueError:
        raise InvalidRequestError(
            f"There is no network policy {asked[:50]!r}.", hint="Leave it out, or use 'packages' or 'none'.", fields={"field": "network"}
        ) from None


def check_host(can: Capabilities, *, volumes: bool = False) -> None:
    """Refuse to create where the driver cannot keep what is promised.

    Args:
        can: What it can do.
        volumes: Whether the sandbox is to have some.

    Raises:
        HostError: It cannot boot, or cannot enforce one of the limits; the message says why and what to do.
        UnsupportedError: It cannot attach volumes.
    """
    for ability in _NEEDED:
        if not can.can(ability):
            what = "start sandboxes" if ability is DriverCapability.BOOT else f"enforce the {ability.removeprefix('limit.')} limit"
            raise HostError(
                f"The {can.driver} driver cannot {what} on this host: {can.why_not(ability)}",
                code=ErrorCode.HOST_NOT_READY,
                hint="'sandlot doctor' checks the host and names every fix.",
                fields={"ability": str(ability)},
            )
    if volumes and not can.can(DriverCapability.VOLUMES):
        raise UnsupportedError(
            f"The {can.driver} driver has no volumes on this host: {can.why_not(DriverCapability.VOLUMES)}",
            code=ErrorCode.UNSUPPORTED,
            hint="Leave volumes out.",
            fields={"field": "volumes"},
        )


def check_room(live: int, waiting: int, rules: AdmissionPolicy) -> None:
    """Refuse to create where there is no room.

    Args:
        live: Sandboxes that exist, creating and half removed ones included.
        waiting: Creates that wait for their turn.
        rules: The operator's bounds.

    Raises:
        UnavailableError: ``busy``; the field ``retry_after_s`` says when to ask again.
    """
    if live >= rules.max_sandboxes:
        raise UnavailableError(
            f"All {rules.max_sandboxes} sandboxes that this service may run are in use.",
            code=ErrorCode.BUSY,
            hint="Kill one that is not needed, try again later, or raise SANDLOT_MAX_SANDBOXES.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S, "max_sandboxes": rules.max_sandboxes},
        )
    if waiting >= rules.max_waiting:
        raise UnavailableError(
            f"{waiting} sandboxes are waiting to be created already.",
            code=ErrorCode.BUSY,
            hint="Try again in a few seconds.",
            fields={"retry_after_s": BUSY_RETRY_AFTER_S},
        )
