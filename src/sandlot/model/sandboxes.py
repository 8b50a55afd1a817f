"""Sandboxes as callers of the node see them, and the parameters of the operations on them.

Invariants:
- A value describes one moment and never changes. ``SandboxInfo.as_of`` is this moment.
- Values that depend neither on the operator's policy nor on the host are checked when parameters are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.ids import SANDBOX_ID, SandboxId, node_of
from sandlot.model.network import NetworkPolicy, NetworkUpTo
from sandlot.model.ports import Exit, Usage
from sandlot.model.specs import (
    DEFAULT_TIMEOUT_S,
    KIB,
    MAX_TIMEOUT_S,
    Limits,
    OnTimeout,
    SandboxSpec,
    VolumeMount,
    check_mounts,
    check_path,
    check_request_host,
    check_text,
)
from sandlot.model.states import State, is_terminal

SAME: Final = -1.0
"""Value of ``timeout_s`` that keeps the timeout of the sandbox."""

AUTO: Final = "auto"
"""Value of ``isolation`` that leaves the choice of the isolation to the operator."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

MAX_METADATA_ENTRIES: Final = 64

MAX_METADATA_BYTES: Final = 16 * KIB

MAX_METADATA_NAME_BYTES: Final = 255
"""Maximum bytes of a metadata name in UTF-8. Names and values are indexed for filters, and a PostgreSQL index row can hold at most 2,704 bytes."""

RESERVED_PREFIX: Final = "sandlot."
"""Prefix of metadata names that only the service and its compatibility APIs may set."""

PURPOSE_KEY: Final = "sandlot.purpose"
"""Metadata name whose value is the purpose for which the service or a compatibility API created the sandbox, such as ``session``."""

MIN_IDLE_TIMEOUT_S: Final = 5.0
"""Smallest idle timeout in seconds. It equals the interval between two checks of the idle monitor (``core/lifecycle/idle.py``)."""

LIVE: Final = frozenset(state for state in State if not is_terminal(state))

ENDED: Final = frozenset(State) - LIVE

MAX_CHILDREN: Final = 100
"""Maximum number of children of one fork request."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox at one moment.

    Args:
        spec: Spec of the sandbox. Its metadata are those of the create request; its limits are in force.
        name: Name that the client chose. None: no name.
        metadata: Current metadata.
        state: State of the sandbox; ``stopping`` as soon as the end of the sandbox is requested.
        expires_at: Deadline; while the sandbox is suspended, the deadline of the suspension. None: no deadline.
        idle_timeout_s: Idle timeout in seconds. None: no idle timeout.
        idle_since: Time of the last activity of a client. None: a client uses the sandbox now.
        exit: Reason of the end. None: the sandbox has not ended.
        as_of: Time at which the sandbox was as described.
    """

    spec: SandboxSpec
    owner: OwnerId
    name: str | None
    metadata: Mapping[str, str]
    state: State
    created_at: datetime
    expires_at: datetime | None
    idle_timeout_s: float | None
    idle_since: datetime | None
    exit: Exit | None
    ended_at: datetime | None
    as_of: datetime

    @property
    def id(self) -> SandboxId:
        """Id of the sandbox."""
        return self.spec.id

    @property
    def node(self) -> str:
        """Id of the node of the sandbox."""
        return node_of(self.spec.id)

    @property
    def is_over(self) -> bool:
        """True if the sandbox has ended."""
        return is_terminal(self.state)

    def ended_error(self) -> SandboxEndedError:
        """Return the error of a call to this sandbox, which has ended or whose end is requested."""
        return ended_error(self.id, self.exit)


def sandbox_not_found(sandbox: str) -> NotFoundError:
    """Return the error of a request about a sandbox that does not exist, or that its caller may not see."""
    return NotFoundError(
        f"There is no sandbox {sandbox[:64]!r}.",
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="List the sandboxes, or create a new sandbox. A sandbox that ended long ago is not found.",
        fields={"sandbox": sandbox[:64]},
    )


def ended_error(sandbox: SandboxId, end: Exit | None) -> SandboxEndedError:
    """Return the error of a call to a sandbox that has ended.

    Args:
        sandbox: Id of the sandbox.
        end: Reason of the end. None: the reason is not known.
    """
    reason, detail = ("", "") if end is None else (str(end.reason), end.detail)
    return SandboxEndedError(
        f"Sandbox {sandbox} has ended ({reason or 'for an unknown reason'}{f': {detail}' if detail else ''}).",
        hint="Create a new sandbox. The files of the ended sandbox are removed.",
        fields={"sandbox": sandbox, "reason": reason, "detail": detail},
        fault=None if end is None else end.call_fault,
    )


@dataclass(frozen=True, slots=True)
class LimitsChange:
    """Limits that replace others. A limit that is None keeps its value; see :class:`~sandlot.model.specs.Limits` for the bounds."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are out of range."""
        self.over(Limits())

    @classmethod
    def to(cls, limits: Limits) -> LimitsChange:
        """Return the change that replaces all limits."""
        return cls(**asdict(limits))

    def over(self, limits: Limits) -> Limits:
        """Return the limits after the change.

        Args:
            limits: Limits before the change.
        """
        return replace(limits, **{name: value for name, value in asdict(self).items() if value is not None})


@dataclass(frozen=True, slots=True)
class CreateSandboxParams:
    """Parameters of a create request.

    Args:
        template: Name of the template. None: the default template, or that of the snapshot.
        snapshot: Id or name of a snapshot to start from instead of a template. The snapshot decides template and isolation. None: a template.
        name: Name of the sandbox, unique among the live sandboxes of its owner. None: no name.
        env: Environment variables of every process in the sandbox.
        metadata: Metadata that the client chose: at most 64 entries, 16 KiB, and 255 bytes for each name.
        limits: Limits that replace the default limits, or those of the snapshot.
        timeout_s: Seconds until the action ``on_timeout`` is carried out. None: the sandbox is persistent.
        idle_timeout_s: Seconds without activity until the action ``on_timeout`` is carried out. None: no idle timeout.
        isolation: ``auto`` or the name of a driver.
        network: Network policy. None: the policy of the snapshot; without a snapshot, mode ``packages``, or ``none`` if the operator or the quota of
            the API key does not allow ``packages``.
        file_ids: Ids of stored files to copy into the working directory.
        on_timeout: Action when the timeout or the idle timeout passes.
        auto_resume: True if a paused or hibernated sandbox is resumed by the next request that needs it.
        volumes: Volumes to attach, by name or id: at most eight. No volume may have a path below the path of another volume.
        cwd: Absolute path of the working directory, which is created if it does not exist. None: ``/workspace``, or that of the snapshot.
        public_ports: True if the preview URLs of the ports need no token. The quota of the API key must allow it. None: True where the quota allows
            it.
        mask_request_host: ``Host`` header that programs see behind a preview URL, in which ``${PORT}`` stands for the port. None: ``localhost:PORT``.
    """

    template: str | None = None
    snapshot: str | None = None
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    limits: LimitsChange = field(default_factory=LimitsChange)
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    idle_timeout_s: float | None = None
    isolation: str = AUTO
    network: NetworkPolicy | NetworkUpTo | None = None
    file_ids: tuple[str, ...] = ()
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_resume: bool = True
    volumes: tuple[VolumeMount, ...] = ()
    cwd: str | None = None
    public_ports: bool | None = False
    mask_request_host: str | None = None

    def __post_init__(self) -> None:
        """Check the fields whose valid values depend neither on the operator's policy nor on the host.

        Raises:
            InvalidRequestError: The name, the metadata, the idle timeout, a volume, the working directory or the masked host is invalid.
        """
        check_properties(self.name, self.metadata, self.idle_timeout_s)
        if self.mask_request_host is not None:
            check_request_host(self.mask_request_host)
        if self.cwd is not None:
            check_path(self.cwd)
        check_mounts(self.volumes)


def check_properties(name: str | None, metadata: Mapping[str, str], idle_timeout_s: float | None) -> None:
    """Check the properties of a sandbox that both a create request and an update can set.

    Args:
        name: Name of the sandbox. None: the sandbox has no name, or an update keeps the name.
        metadata: Metadata that the client chose.
        idle_timeout_s: Idle timeout in seconds. None: the sandbox has no idle timeout, or an update keeps the idle timeout.

    Raises:
        InvalidRequestError: A value is invalid.
    """
    if name is not None and NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"The name {name[:64]!r} is not valid.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
            fields={"field": "name"},
        )
    if name is not None and SANDBOX_ID.fullmatch(name) is not None:
        raise InvalidRequestError(f"The name {name!r} has the form of a sandbox id.", hint="Choose another name.", fields={"field": "name"})
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


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """Resources that a sandbox has used, and its limits.

    Args:
        pids: Number of processes and threads that count against the process limit, measured by the guest. None: the sandbox is suspended, or the
            guest did not respond in time.
        network_sent_bytes: Bytes that programs have sent to other hosts. Counted from 0 again after a restart of the service.
        network_received_bytes: Bytes that programs have received from other hosts.
    """

    usage: Usage
    pids: int | None
    limits: Limits
    network_sent_bytes: int = 0
    network_received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UpdateSandboxParams:
    """Changes that an update makes to a sandbox. None leaves a property unchanged.

    Args:
        timeout_s: Seconds from now until the deadline. A persistent sandbox then has a deadline again.
        persistent: True to remove the deadline.
        idle_timeout_s: New idle timeout in seconds; 0 removes the idle timeout.
        metadata: New metadata. Entries with reserved names, which the service has set, stay.
        labels: Metadata with reserved names that the service adds or replaces. Values of clients must not be passed here unchecked.
        on_timeout: Action when the timeout or the idle timeout passes.
        auto_resume: True to resume the suspended sandbox when a request needs it.
        name: New name, unique among the live sandboxes of the owner.
        network: Network policy that replaces the present one as a whole. Its generation is ignored.
        public_ports: True if the preview URLs of the ports need no token. The quota of the API key must allow it.
        mask_request_host: ``Host`` header that programs see behind a preview URL; empty for ``localhost:PORT``.
    """

    timeout_s: float | None = None
    persistent: bool = False
    idle_timeout_s: float | None = None
    metadata: Mapping[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: LimitsChange = field(default_factory=LimitsChange)
    on_timeout: OnTimeout | None = None
    auto_resume: bool | None = None
    name: str | None = None
    network: NetworkPolicy | NetworkUpTo | None = None
    public_ports: bool | None = None
    mask_request_host: str | None = None

    def __post_init__(self) -> None:
        """Check that the values are within their bounds and do not contradict each other.

        Raises:
            InvalidRequestError: A value is out of bounds, or ``persistent`` and ``timeout_s`` are both set.
        """
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("`persistent` and `timeout` are both set.", hint="Set one of them.", fields={"field": "timeout"})
        check_properties(self.name, self.metadata or {}, self.idle_timeout_s or None)
        if self.mask_request_host:
            check_request_host(self.mask_request_host)

    @property
    def moves_deadline(self) -> bool:
        """True if the update changes the deadline."""
        return self.persistent or self.timeout_s is not None

    def names(self) -> list[str]:
        """Return the names of the properties that the update changes, as in the API."""
        given = {
            "timeout": self.moves_deadline,
            "idle_timeout": self.idle_timeout_s is not None,
            "metadata": self.metadata is not None or bool(self.labels),
            "limits": self.limits != LimitsChange(),
            "on_timeout": self.on_timeout is not None,
            "auto_resume": self.auto_resume is not None,
            "name": self.name is not None,
            "network": self.network is not None,
            "public_ports": self.public_ports is not None,
            "mask_request_host": self.mask_request_host is not None,
        }
        return [name for name, is_given in given.items() if is_given]


@dataclass(frozen=True, slots=True)
class SandboxFilter:
    """Conditions that a sandbox must meet to be listed.

    Args:
        states: The sandbox is in one of these states.
        metadata: The sandbox has all of these entries.
        name: The sandbox has this name. None allows any name.
    """

    states: frozenset[State] = LIVE
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    def matches(self, sandbox: SandboxInfo) -> bool:
        """Return True if a sandbox meets all conditions."""
        return (
            sandbox.state in self.states
            and self.name in {None, sandbox.name}
            and all(sandbox.metadata.get(name) == value for name, value in self.metadata.items())
        )


def states_of(names: Iterable[str]) -> frozenset[State]:
    """Parse names of states.

    Raises:
        InvalidRequestError: A name is not the name of a state.
    """
    states = set()
    for name in names:
        if name not in State.__members__.values():
            raise InvalidRequestError(
                f"There is no state {name[:50]!r}.",
                hint=f"Use one or more of {', '.join(State)}, separated by commas.",
                fields={"field": "state"},
            )
        states.add(State(name))
    return frozenset(states)


@dataclass(frozen=True, slots=True)
class ForkParams:
    """Parameters of a fork.

    Args:
        count: Number of children, 1 to 100.
        name: Name of the child. If there are several children, ``-1``, ``-2`` and so on are appended. No other live sandbox of the owner may have
            one of these names.
        metadata: Metadata of the children. None: the parent's metadata without the entries that the service adds.
        env: Environment variables that are added to those of the parent.
        timeout_s: Seconds until the children end. None: no timeout. :data:`SAME`: the parent's timeout.
        share_volumes: True to let the children write to the parent's writable volumes.
    """

    count: int = 1
    name: str | None = None
    metadata: Mapping[str, str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = SAME
    share_volumes: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_CHILDREN:
            raise InvalidRequestError(f"`count` is {self.count}; it must be from 1 to {MAX_CHILDREN}.", fields={"field": "count"})

    def name_of(self, number: int) -> str | None:
        """Return the name of a child. The first child has number 1."""
        return self.name if self.name is None or self.count == 1 else f"{self.name}-{number}"


@dataclass(frozen=True, slots=True)
class ForkTree:
    """A tree of forks.

    Args:
        root: Id of the root. If the root ended long ago, its record may have been removed.
        sandboxes: Recorded sandboxes of the tree, oldest first. ``spec.parent`` of a sandbox is the id of its parent.
    """

    root: SandboxId
    sandboxes: tuple[SandboxInfo, ...]


@dataclass(frozen=True, slots=True)
class Promotion:
    """Result of a promotion.

    Args:
        ended: Sandboxes that were ended: siblings and their descendants.
        failed: Id of each sandbox that could not be ended -> reason.
    """

    kept: SandboxId
    ended: Sequence[SandboxId]
    failed: Mapping[SandboxId, str]


@dataclass(frozen=True, slots=True)
class GuestStatus:
    """State and resource use of the guest.

    Args:
        generation: Generation of the protocol.
        identity: Id of the sandbox.
        uptime_s: Seconds since the guest started.
        processes: Number of processes in the sandbox, the guest included.
        tasks: Number of processes and threads in the sandbox without the guest. The limit ``pids`` applies to this number.
        cpu_s: CPU time in seconds of all processes, including processes that have ended.
        streams: Number of open streams of the link.
    """

    generation: int
    identity: str
    uptime_s: float
    processes: int
    tasks: int
    cpu_s: float
    streams: int


@dataclass(frozen=True, slots=True, order=True)
class ListeningPort:
    """A listening TCP socket.

    Args:
        address: Address to which the socket is bound. ``0.0.0.0`` and ``::`` stand for all addresses.
    """

    port: int
    address: str
