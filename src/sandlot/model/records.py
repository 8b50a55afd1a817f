"""Records: values that survive a restart of the service, one class for each kind of row. All times are timezone-aware and in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NewType

from sandlot.model.access import OwnerId, Quota
from sandlot.model.errors import FAULTS, ErrorCode
from sandlot.model.executions import run_fault
from sandlot.model.faults import Fault
from sandlot.model.ids import FileId as FileId  # noqa: PLC0414 - exported here too
from sandlot.model.ids import NodeId, SandboxId, SnapshotId, VolumeId, WebhookId
from sandlot.model.ports import EXIT_FAULTS, ExitReason
from sandlot.model.specs import SandboxSpec, SnapshotKind
from sandlot.model.states import State

ExecutionId = NewType("ExecutionId", str)
"""Id of an execution's process or cell: 32 hexadecimal digits."""

FOREGROUND: Final = "foreground"
"""Mode of an execution whose client waits for it."""
BACKGROUND: Final = "background"
"""Mode of an execution that continues without a client."""
INSTALL: Final = "install"
"""Mode of an installation of packages, which may read the package indexes even if the network of its sandbox is ``none``."""


SANDBOX_BYTES: Final = 1536
"""Bytes of the record of an ended sandbox without its metadata, index entries included."""
METADATA_ENTRY_BYTES: Final = 96
"""Bytes of one entry of metadata without its texts, index entries included."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox. A transient state is recorded before its work begins (:mod:`sandlot.model.states`).

    Args:
        spec: Requested sandbox. Its environment is emptied when the sandbox has ended.
        node: Node that runs the sandbox.
        owner: Owner of the sandbox.
        name: Name for people; None: no name.
        state: State of the sandbox.
        created_at: Time of the create request.
        expires_at: Time at which the timeout of the sandbox expires; None: never.
        idle_timeout_s: Seconds without activity after which the sandbox ends; None: never.
        waits_for_disk: True if the sandbox is paused until the host's disk has room again.
        ref: Driver's reference of the sandbox; None before the sandbox was started.
        exit_reason: Value of ``ExitReason``; None before the sandbox has ended.
        exit_detail: Details of the end, for people.
        ended_at: Time of the end; None before the sandbox has ended.
        idempotency_key: Idempotency key of the create request; None: the request had no key.
        request_digest: SHA-256 of the create request, in hexadecimal; None: the request had no idempotency key.
    """

    spec: SandboxSpec
    node: NodeId
    owner: OwnerId
    name: str | None
    state: State
    created_at: datetime
    expires_at: datetime | None = None
    idle_timeout_s: float | None = None
    waits_for_disk: bool = False
    ref: str | None = None
    exit_reason: str | None = None
    exit_detail: str = ""
    ended_at: datetime | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None

    @property
    def id(self) -> SandboxId:
        """Id of the sandbox."""
        return self.spec.id

    @property
    def size_bytes(self) -> int:
        """Size of the record in the store: ``SANDBOX_BYTES``, and the metadata, which the store has twice and escapes once."""
        metadata = dict(self.spec.metadata)
        texts = sum(len(text.encode("utf-8", "surrogatepass")) for entry in metadata.items() for text in entry)
        return SANDBOX_BYTES + len(json.dumps(metadata)) + 2 * texts + len(metadata) * METADATA_ENTRY_BYTES

    @property
    def is_unfinished_start(self) -> bool:
        """True if no client has got a response to the create request.

        The sandbox was being created, or it was started in another way after a claim that had been recorded as running had failed.
        """
        return self.state is State.CREATING or (self.state is State.RUNNING and self.ref is None)


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot of a sandbox. Its files are in a folder of the state directory that has the snapshot's id as name.

    Args:
        id: Id of the snapshot.
        node: Node that took the snapshot and can start sandboxes from it.
        owner: Owner of the snapshot.
        name: Name, unique among the owner's snapshots; None: no name.
        kind: Content of the snapshot: memory and files, or files only.
        spec: Spec of the sandbox that the snapshot was taken of, including its environment.
        created_at: Time of the request.
        ready: True if the snapshot is complete and synced to disk. A service removes unfinished snapshots when it starts.
        size_bytes: Size on disk; 0 until the snapshot is ready.
        has_overlay: True if a memory snapshot also contains the files in a form from which a sandbox can boot when the memory cannot be restored.
        problem: Reason why no sandbox can be started from the snapshot, for people; empty if no problem is known.
        idempotency_key: Idempotency key of the request.
        request_digest: SHA-256 of the request, in hexadecimal.
    """

    id: SnapshotId
    node: NodeId
    owner: OwnerId
    name: str | None
    kind: SnapshotKind
    spec: SandboxSpec
    created_at: datetime
    ready: bool = False
    size_bytes: int = 0
    has_overlay: bool = False
    problem: str = ""
    idempotency_key: str | None = None
    request_digest: str | None = None


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A volume. Its content is a file of the state directory that has the volume's id as name.

    Args:
        id: Id of the volume.
        node: Node that has the volume. Only sandboxes of this node can mount it.
        owner: Owner of the volume.
        name: Name, unique among the owner's volumes.
        size_bytes: Largest number of bytes that can be written to the volume.
        created_at: Time of the request.
        ready: True if the volume exists. A service removes unfinished volumes when it starts.
        used_bytes: Number of bytes in use when the volume was last detached from a sandbox; 0 if the volume was never detached.
    """

    id: VolumeId
    node: NodeId
    owner: OwnerId
    name: str
    size_bytes: int
    created_at: datetime
    ready: bool = False
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key without its secret.

    Args:
        id: Id of the key: 12 hexadecimal digits, never used again.
        name: Name for people, unique among the keys that are not revoked.
        sha256: SHA-256 of the secret, in hexadecimal.
        operator: True if the key may create API keys and sees the resources of all owners.
        quota: Quota of the key.
        created_at: Time of the creation.
        expires_at: Time from which requests with the key are refused; None: never.
        revoked_at: Time of the revocation; None: the key is not revoked.
    """

    id: OwnerId
    name: str
    sha256: str
    operator: bool
    quota: Quota
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of an API key. A field that is None keeps its value.

    Args:
        name: New name.
        quota: New quota. It replaces the whole quota.
        expires_at: New time from which requests with the key are refused.
        removes_expiry: True to let the key be valid without end. ``expires_at`` must be None then.
    """

    name: str | None = None
    quota: Quota | None = None
    expires_at: datetime | None = None
    removes_expiry: bool = False

    def apply(self, record: KeyRecord) -> KeyRecord:
        """Return a copy of a record with the new values."""
        return replace(
            record,
            name=record.name if self.name is None else self.name,
            quota=record.quota if self.quota is None else self.quota,
            expires_at=None if self.removes_expiry else self.expires_at or record.expires_at,
        )


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the file store. Its content is the blob with the same id.

    Args:
        id: Id of the file.
        owner: Owner of the file.
        filename: Name of the file in a sandbox: one path component.
        media_type: Media type that the owner gave.
        size_bytes: Size of the content in bytes.
        sha256: SHA-256 of the content, in hexadecimal.
        created_at: Time at which the upload was complete.
        sandbox: Sandbox that the file was copied from; None: a client uploaded the file.
    """

    id: FileId
    owner: OwnerId
    filename: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    sandbox: SandboxId | None = None


ENTRY_BYTES: Final = 512
"""Bytes of an entry of the execution log without its texts, index entries included."""


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution of code or of a command in the execution log.

    Args:
        id: Id of the process or cell.
        owner: Owner of the sandbox.
        sandbox: Sandbox of the execution.
        kind: ``code`` or ``command``.
        created_at: Time at which the execution began.
        status: ``running``, ``ok``, ``error``, ``timeout``, ``killed``, ``died``, ``exited``, ``signalled``, ``pids``, ``oom``, or ``lost`` if it is
            not known how the execution ended.
        language: Language of the code; None for a command.
        code: Code, shortened to ``MAX_LOGGED_BYTES``; None for a command.
        argv: Program and arguments of the command, shortened to ``MAX_LOGGED_BYTES``; None for code.
        exit_code: Exit code of a command that has exited; None for everything else.
        stdout: Standard output. If it is larger than the execution log stores, only its beginning and its end.
        stderr: Standard error. If it is larger than the execution log stores, only its beginning and its end.
        stdout_omitted_bytes: Number of bytes of standard output that are missing in ``stdout``.
        stderr_omitted_bytes: Number of bytes of standard error that are missing in ``stderr``.
        duration_s: Duration in seconds; None while the execution runs.
        error: Name and text of the exception that the code raised, such as ``NameError: name 'x' is not defined``; None if there was no exception.
        origin: API of the request: ``native`` or the name of a compatibility API.
        files: Number of files that the execution created or changed; None if the client did not request the number.
        mode: ``foreground``, ``background`` or ``install``.
        execution_count: Number of the cell in its context; None for a command, and before the cell has started.
        results_bytes: Size of the results and the exception that are stored with the record; 0 if there are none.
    """

    id: ExecutionId
    owner: OwnerId
    sandbox: SandboxId
    kind: str
    created_at: datetime
    status: str
    language: str | None = None
    code: str | None = None
    argv: tuple[str, ...] | None = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    duration_s: float | None = None
    error: str | None = None
    origin: str = "native"
    files: int | None = None
    mode: str = FOREGROUND
    execution_count: int | None = None
    results_bytes: int = 0

    @property
    def fault(self) -> Fault | None:
        """Fault class of the end of the execution; None while it runs and if it has not failed."""
        return run_fault(self.status, self.exit_code)

    @property
    def size_bytes(self) -> int:
        """Size that counts against the quota ``stored_execution_bytes``: ``ENTRY_BYTES``, all texts in UTF-8, and the results."""
        texts = (self.code, *(self.argv or ()), self.stdout, self.stderr, self.error)
        return ENTRY_BYTES + self.results_bytes + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if text)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that has no sequence number yet.

    Args:
        type: Type of the event: noun, dot and past participle, such as ``sandbox.created``.
        at: Time of the event.
        owner: Owner of the resource that the event is about.
        sandbox: Sandbox that the event is about; None for an event about another resource.
        data: Details that JSON can represent. They must not contain environment variables, code or secrets.
    """

    type: str
    at: datetime
    owner: OwnerId
    sandbox: SandboxId | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A stored event.

    Args:
        sequence: Sequence number, from 1. It is larger than the sequence numbers of all events that were committed before.
        event: Event without its sequence number.
    """

    sequence: int
    event: NewEvent

    @property
    def fault(self) -> Fault | None:
        """Fault class of the failure that the event reports; None for an event that reports none."""
        match self.event.type:
            case "sandbox.ended":
                reason = self.event.data.get("reason")
                return None if reason is None else EXIT_FAULTS[ExitReason(reason)]
            case "snapshot.unusable":
                return FAULTS[ErrorCode.SNAPSHOT_UNUSABLE]
            case _:
                return None


def event_id(event: EventRecord) -> str:
    """Return the id by which receivers recognize an event: unique, and the same in all attempts."""
    return f"evt-{event.sequence}"


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event.

    Args:
        sent: Operation or incident that the event reports, for the reference page.
        data: Names of the fields of the event's data. :data:`EVENT_DATA` describes them.
    """

    sent: str
    data: tuple[str, ...] = ()


EVENT_TYPES: Final[Mapping[str, EventType]] = {
    "sandbox.created": EventType("A sandbox started, also a fork.", ("template", "isolation", "name", "snapshot", "parent", "restored")),
    "sandbox.updated": EventType("A request changed a running sandbox.", ("changed",)),
    "sandbox.adopted": EventType("A service started and took over the sandbox of an earlier service."),
    "sandbox.paused": EventType("A sandbox was paused, by a request, at its timeout, or because the host's disk is full.", ("reason",)),
    "sandbox.resumed": EventType("A paused sandbox runs again.", ("reason",)),
    "sandbox.hibernated": EventType("A sandbox was hibernated, by a request or at its timeout.", ("size_bytes",)),
    "sandbox.woken": EventType("A hibernated sandbox runs again."),
    "sandbox.network_refused": EventType(
        "A connection or request of a program to another host was refused; equal refusals are reported once.",
        ("refusal", "reason", "host", "port", "rule", "method", "path"),
    ),
    "sandbox.forked": EventType("A sandbox was forked.", ("children",)),
    "sandbox.promoted": EventType("A fork was kept, and its siblings were ended.", ("ended",)),
    "sandbox.ended": EventType("A sandbox ended, or a sandbox could not be started.", ("reason", "detail", "state")),
    "snapshot.created": EventType("A snapshot is complete.", ("snapshot", "name", "kind", "size_bytes")),
    "snapshot.deleted": EventType("A snapshot was deleted.", ("snapshot", "name", "kind")),
    "snapshot.unusable": EventType("A snapshot can no longer be restored.", ("snapshot", "name", "kind", "reason")),
    "volume.created": EventType("A volume was created.", ("volume", "name", "size_bytes")),
    "volume.deleted": EventType("A volume was deleted.", ("volume", "name")),
}
"""Event types that a webhook can subscribe to."""

EVENT_DATA: Final[Mapping[str, str]] = {
    "template": "Template of the sandbox.",
    "isolation": "Isolation of the sandbox.",
    "name": "Name of the sandbox, snapshot or volume; null: no name.",
    "snapshot": "Id of the snapshot. In `sandbox.created`: snapshot that the sandbox started from; missing for other sandboxes.",
    "parent": "Sandbox that was forked; missing if the sandbox is no fork.",
    "restored": "`memory` or `files`: the restored part of the snapshot; missing if nothing was restored.",
    "changed": "Names of the changed properties, such as `timeout`, `metadata`, `limits` or `network`.",
    "size_bytes": "Size of the hibernation image, of the snapshot, or of the volume.",
    "children": "Ids of the forks.",
    "ended": "Ids of the ended siblings and of their forks.",
    "reason": "In `sandbox.ended`: reason of the end, such as `killed` or `oom`; null if it is not known. In `snapshot.unusable`: problem of the "
    "snapshot. In `sandbox.paused` and `sandbox.resumed`: `disk` if the sandbox was paused because the host's disk was full; missing otherwise. "
    "In `sandbox.network_refused`: reason of the refusal, such as `host_not_allowed`.",
    "refusal": "Id of the refusal within the sandbox, with which it can be approved.",
    "host": "Host that the program named: a name or an address.",
    "port": "Port of the refused connection.",
    "rule": "Rule of the network policy that denies the destination; null if no rule allows it, or if the reason is not a rule.",
    "method": "Method of the refused HTTP request; null if the whole connection was refused.",
    "path": "Path of the refused HTTP request; null if there is none.",
    "detail": "Details of the end, for people.",
    "state": "State of the ended sandbox.",
    "volume": "Id of the volume.",
    "kind": "Kind of the snapshot: `memory` or `files`.",
}
"""Fields of the data of events. A field has the same meaning in all events."""

NATIVE_FORMAT: Final = "native"
"""Payload format of the native API's webhooks. Each compatibility API has the payload format of its vendor."""


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """Progress of the delivery of events to a webhook.

    The progress is saved after each attempt. If a service dies before it has saved the progress, the next service sends the same event again. No
    event is omitted.

    Args:
        cursor: Sequence number of the last event that was delivered or given up.
        failed_attempts: Number of failed attempts to deliver the event that follows the cursor.
        next_attempt_at: Time of the next attempt; None if the last attempt did not fail.
        delivered_events: Number of events that the receiver has accepted.
        failed_events: Number of events that were given up because all attempts to deliver them failed.
        last_attempt_at: Time of the last attempt; None before the first attempt.
        last_error: Reason why the last attempt failed, for people; empty if the last attempt did not fail.
    """

    cursor: int
    failed_attempts: int = 0
    next_attempt_at: datetime | None = None
    delivered_events: int = 0
    failed_events: int = 0
    last_attempt_at: datetime | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """A webhook: a URL to which the service sends events.

    Args:
        id: Id of the webhook.
        owner: Owner of the webhook.
        name: Name for people; None: no name.
        url: URL that receives the events.
        events: Event types to deliver; empty: all types.
        secret: Key with which the service signs each request to the URL.
        payload_format: ``native`` or the name of a compatibility API.
        created_at: Time of the creation.
        progress: Progress of the delivery.
        enabled: True if events are delivered. False: no event is delivered. Events that occur meanwhile are delivered after the webhook is enabled.
    """

    id: WebhookId
    owner: OwnerId
    name: str | None
    url: str
    events: tuple[str, ...]
    secret: str = field(repr=False)
    payload_format: str
    created_at: datetime
    progress: DeliveryProgress
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class WebhookChange:
    """A change of a webhook. A field that is None keeps its value.

    Args:
        url: New URL. An event whose delivery has failed is sent to the new URL at once, and its failed attempts are no longer counted.
        events: New event types to deliver; empty: all types. They apply to all events that were neither delivered nor given up yet.
        secret: New key with which the service signs each request.
        name: New name.
        enabled: True to enable the webhook; False to disable the webhook.
    """

    url: str | None = None
    events: tuple[str, ...] | None = None
    secret: str | None = field(default=None, repr=False)
    name: str | None = None
    enabled: bool | None = None
