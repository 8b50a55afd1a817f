"""Protocols of the store: repositories of records, and blobs for the content of files.

``sandlot.store`` implements them; the suites of ``sandlot.testing.stores`` test every implementation.

Invariants:
- When a method has returned, its change is committed: neither a kill of the process nor a loss of power undoes the change.
- A record and the event that announces it are committed together, or not at all.
- A page has at most ``limit`` records, in the order that the method documents, and begins after the given position.
- A client that waits for the result of an execution never waits for the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from sandlot.model.access import OwnerId
from sandlot.model.agents import AgentEventRecord, AgentRecord, AgentSessionRecord, NewAgentEvent, SessionChange
from sandlot.model.ids import AgentId, AgentSessionId, NodeId, SandboxId, SnapshotId, TemplateId, VolumeId, WebhookId
from sandlot.model.records import (
    DeliveryProgress,
    EventRecord,
    ExecutionId,
    ExecutionRecord,
    FileId,
    FileRecord,
    KeyChange,
    KeyRecord,
    NewEvent,
    SandboxRecord,
    SnapshotRecord,
    VolumeRecord,
    WebhookChange,
    WebhookRecord,
)
from sandlot.model.templates import BuildLine, BuildRecord, TemplateRecord


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a record in a list that is ordered by time and id. A page begins after the position of the last record of the previous page.

    Args:
        at: Time of the record.
        id: Id of the record.
    """

    at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Amount of an owner's records of one kind.

    Args:
        rows: Number of the records.
        bytes: Size of the records together.
    """

    rows: int
    bytes: int


class SandboxRepository(Protocol):
    """Stored records of sandboxes, live and ended."""

    async def save(self, record: SandboxRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        The record of an ended sandbox is never replaced. The record of a ``stopping`` sandbox is replaced only by a ``stopping`` or ended record. If
        a record may not be replaced, neither the new record nor the event is saved, and no error is raised.

        Raises:
            ConflictError: Another sandbox of the owner, live or ended, has this idempotency key.
        """
        ...

    async def list_unfinished(self, node: NodeId) -> Sequence[SandboxRecord]:
        """Return all sandboxes of a node that have not ended."""
        ...

    async def list_last_ended(self, node: NodeId, *, limit: int) -> Sequence[SandboxRecord]:
        """Return at most ``limit`` ended sandboxes of a node, the most recently ended sandbox first."""
        ...

    async def get(self, sandbox: SandboxId) -> SandboxRecord | None:
        """Return the record of a sandbox, live or ended; None if there is no record with this id."""
        ...

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SandboxRecord | None:
        """Return the sandbox, live or ended, that an owner created with this idempotency key; None if there is none."""
        ...

    async def list_ended(
        self,
        *,
        owner: OwnerId | None,
        metadata: Mapping[str, str],
        states: Collection[str],
        after: Position | None,
        limit: int,
        name: str | None = None,
    ) -> Sequence[SandboxRecord]:
        """Return a page of ended sandboxes, ordered by ``created_at`` and id, the oldest first.

        Args:
            owner: Owner of the sandboxes; None: all owners except the service itself (``INTERNAL``).
            metadata: Entries that the metadata of each returned sandbox contains.
            states: Terminal states of the returned sandboxes; empty: all terminal states.
            after: Position of the last sandbox of the previous page; None: the first page.
            limit: Largest number of returned sandboxes.
            name: Name of the returned sandboxes; None: any name.
        """
        ...

    async def delete_ended(self, before: datetime) -> int:
        """Delete the records of the sandboxes that ended before a time, and return the number of deleted records."""
        ...

    async def ended_totals(self) -> Mapping[OwnerId, Stored]:
        """For each owner that has ended sandboxes, return their number and the sum of their ``size_bytes``."""
        ...

    async def trim_ended(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the sandboxes of an owner that ended first until at most ``keep`` is left, and return the number of deleted records."""
        ...


class SnapshotRepository(Protocol):
    """Stored records of snapshots."""

    async def save(self, record: SnapshotRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        Raises:
            ConflictError: Another snapshot of the owner has this name or this idempotency key.
        """
        ...

    async def update(self, record: SnapshotRecord, event: NewEvent | None = None) -> bool:
        """Replace the record with the same id, and add the event. Return False, and save nothing, if there is no record with this id."""
        ...

    async def get(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """Return the record of a snapshot; None if there is no record with this id."""
        ...

    async def get_by_name(self, owner: OwnerId, name: str) -> SnapshotRecord | None:
        """Return an owner's snapshot with this name; None if there is none."""
        ...

    async def get_by_idempotency_key(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """Return the snapshot that an owner created with this idempotency key; None if there is none."""
        ...

    async def page(self, *, owner: OwnerId | None, after: Position | None, limit: int) -> Sequence[SnapshotRecord]:
        """Return a page of ready snapshots, ordered by ``created_at`` and id, the oldest first.

        Args:
            owner: Owner of the snapshots; None: all owners except the service itself (``INTERNAL``).
            after: Position of the last snapshot of the previous page; None: the first page.
            limit: Largest number of returned snapshots.
        """
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's snapshots and the sum of their sizes in bytes, unfinished snapshots included."""
        ...

    async def list_by_node(self, node: NodeId) -> Sequence[SnapshotRecord]:
        """Return all snapshots of a node, unfinished snapshots included."""
        ...

    async def remove(self, snapshot: SnapshotId, event: NewEvent | None = None) -> bool:
        """Delete the record with this id, and add the event. Return False, and save nothing, if there is no record with this id."""
        ...


class VolumeRepository(Protocol):
    """Stored records of volumes."""

    async def save(self, record: VolumeRecord, event: NewEvent | None = None) -> None:
        """Insert a record, or replace the record with the same id, and add the event.

        Raises:
            ConflictError: Another volume of the owner has this name.
        """
        ...

    async def list_by_node(self, node: NodeId) -> Sequence[VolumeRecord]:
        """Return all volumes of a node, unfinished volumes included, the oldest first."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's volumes on all nodes and the sum of their sizes in bytes."""
        ...

    async def remove(self, volume: VolumeId, event: NewEvent | None = None) -> bool:
        """Delete the record with this id, and add the event. Return False, and save nothing, if there is no record with this id."""
        ...


class KeyRepository(Protocol):
    """Stored records of API keys."""

    async def add(self, record: KeyRecord) -> None:
        """Insert the record of a new key.

        Raises:
            ConflictError: Another key that is not revoked has this name.
        """
        ...

    async def revoke(self, name_or_id: str, at: datetime) -> KeyRecord | None:
        """Mark a key as revoked at a time, and return its new record. Return None if no key that is not revoked has this name or id."""
        ...

    async def update(self, name_or_id: str, change: KeyChange) -> KeyRecord | None:
        """Change a key that is not revoked, and return its new record. Return None if there is no such key.

        Raises:
            ConflictError: Another key that is not revoked has the new name.
        """
        ...

    async def list(self) -> Sequence[KeyRecord]:
        """Return the keys that are not revoked, expired keys included, the oldest first."""
        ...


class FileRepository(Protocol):
    """Records of the files in the file store."""

    async def add(self, record: FileRecord) -> None:
        """Insert the record of a new file."""
        ...

    async def get(self, file: FileId) -> FileRecord | None:
        """Return the record of a file; None if there is no record with this id."""
        ...

    async def page(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[FileRecord]:
        """Return a page of records, ordered by ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the files; None: all owners.
            before: Position of the last record of the previous page; None: the first page.
            limit: Largest number of returned records.
        """
        ...

    async def page_by_offset(self, *, owner: OwnerId | None, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return a page of records, the newest first, and the number of all records of the owner, both read at the same moment.

        Args:
            owner: Owner of the files; None: all owners.
            offset: Number of records before the page.
            limit: Largest number of returned records.
        """
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's files and the sum of their sizes in bytes."""
        ...

    async def remove(self, file: FileId) -> bool:
        """Delete the record of a file. Return whether the record existed."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of the files that have a record. A blob without a record belongs to an upload that was never completed."""
        ...


class ExecutionRepository(Protocol):
    """Execution log: stored records of executions."""

    async def save(self, records: Sequence[ExecutionRecord], results: Mapping[ExecutionId, bytes] = MappingProxyType({})) -> None:
        """Insert records, and replace records that have the same ids. Either all records are saved, or none.

        Args:
            records: Records to save.
            results: Id of one of the records -> its results, encoded. Records without an entry keep the results that are stored.
        """
        ...

    async def results(self, execution: ExecutionId) -> bytes | None:
        """Return the encoded results that were saved with a record; None if there are none. They are deleted together with the record."""
        ...

    async def get(self, execution: ExecutionId) -> ExecutionRecord | None:
        """Return the record of an execution; None if there is no record with this id."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, before: Position | None, limit: int) -> Sequence[ExecutionRecord]:
        """Return a page of records, ordered by ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the executions; None: all owners.
            sandbox: Sandbox of the executions; None: all sandboxes.
            before: Position of the last record of the previous page; None: the first page.
            limit: Largest number of returned records.
        """
        ...

    async def list_running(self, *, limit: int) -> Sequence[ExecutionRecord]:
        """Return at most ``limit`` records with the status ``running``, the newest first."""
        ...

    async def delete_before(self, before: datetime) -> int:
        """Delete the records that were created before a time, and return their number."""
        ...

    async def totals(self, *, owner: OwnerId | None = None) -> Mapping[OwnerId, Stored]:
        """For each owner that has records, return their number and the sum of their ``size_bytes``. If ``owner`` is not None, only for this owner."""
        ...

    async def trim(self, owner: OwnerId, *, keep: Stored) -> int:
        """Delete the oldest records of an owner until at most ``keep.rows`` records with ``keep.bytes`` bytes are left, and return their number."""
        ...

    async def monthly_counts(self, month: str) -> Mapping[OwnerId, int]:
        """For each owner, return the number of executions that began in the given month, such as ``2026-11``.

        The numbers are stored apart from the records, so that deleting records does not lower them.
        """
        ...

    async def add_monthly_counts(self, month: str, more: Mapping[OwnerId, int]) -> None:
        """Increase or decrease the numbers of executions that :meth:`monthly_counts` returns for a month.

        Args:
            month: Year and month, such as ``2026-11``.
            more: Owner -> number to add; negative to subtract.
        """
        ...


class EventRepository(Protocol):
    """Stored events."""

    async def add(self, events: Sequence[NewEvent]) -> None:
        """Append events in the order of the argument, and assign their sequence numbers."""
        ...

    async def page(self, *, owner: OwnerId | None, sandbox: SandboxId | None, after: int, limit: int) -> Sequence[EventRecord]:
        """Return a page of events, ordered by sequence number.

        Args:
            owner: Owner of the events; None: all owners.
            sandbox: Sandbox of the events; None: all sandboxes.
            after: Sequence number after which the page begins.
            limit: Largest number of returned events.
        """
        ...

    async def last_sequence(self) -> int:
        """Return the largest sequence number that was ever assigned; 0 if none was assigned."""
        ...

    async def delete_before(self, before: datetime) -> int:
        """Delete the events that occurred before a time, and return their number. Their sequence numbers are never assigned again."""
        ...

    async def counts(self) -> Mapping[OwnerId, int]:
        """For each owner that has events, return their number."""
        ...

    async def trim(self, owner: OwnerId, *, keep: int) -> int:
        """Delete the oldest events of an owner until ``keep`` events are left, and return the number of deleted events."""
        ...


class WebhookRepository(Protocol):
    """Stored records of webhooks, with a lease for each webhook. Only the node that has the lease delivers events to the webhook.

    A node renews its lease before the lease expires. When the lease of a node that died has expired, another node can take the lease.
    """

    async def add(self, record: WebhookRecord, *, max_per_owner: int) -> bool:
        """Insert the record of a new webhook. Return False, and save nothing, if its owner already has ``max_per_owner`` webhooks."""
        ...

    async def get(self, webhook: WebhookId) -> WebhookRecord | None:
        """Return the record of a webhook; None if there is no record with this id."""
        ...

    async def list(self, owner: OwnerId | None) -> Sequence[WebhookRecord]:
        """Return the webhooks of an owner, ordered by ``created_at`` and id, the oldest first. If ``owner`` is None, return those of all owners."""
        ...

    async def update(self, webhook: WebhookId, change: WebhookChange) -> WebhookRecord | None:
        """Change a webhook and return its new record; None if there is no webhook with this id. A new URL resets ``failed_attempts``."""
        ...

    async def lease(self, webhook: WebhookId, node: NodeId, *, now: datetime, until: datetime) -> WebhookRecord | None:
        """Give a node the lease of a webhook, and return the record of the webhook.

        Return None, and change nothing, if another node has an unexpired lease, or if there is no webhook with this id.

        Args:
            webhook: Id of the webhook.
            node: Node that gets or renews the lease.
            now: Present time. A lease that ends at this time has expired.
            until: Time at which the lease expires.
        """
        ...

    async def save_progress(self, webhook: WebhookId, node: NodeId, progress: DeliveryProgress) -> bool:
        """Save the progress of a webhook. Return False, and save nothing, if ``node`` does not have the lease of the webhook."""
        ...

    async def remove(self, webhook: WebhookId) -> bool:
        """Delete a webhook. Return whether the webhook existed."""
        ...


class AgentRepository(Protocol):
    """Agents, their sessions, and the events and conversations of the sessions."""

    async def add_agent(self, record: AgentRecord, *, max_per_owner: int) -> bool:
        """Insert an agent, unless its owner has ``max_per_owner`` agents already. Return whether the agent was inserted."""
        ...

    async def get_agent(self, agent: AgentId) -> AgentRecord | None:
        """Return an agent; None if there is no agent with this id."""
        ...

    async def list_agents(self, *, owner: OwnerId | None, archived: bool, before: Position | None, limit: int) -> Sequence[AgentRecord]:
        """Return a page of agents in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the agents. None: all owners.
            archived: Include archived agents.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        ...

    async def replace_agent(self, record: AgentRecord, *, version: int) -> bool:
        """Replace an agent if its stored version is ``version``. Return whether the agent was replaced."""
        ...

    async def remove_agent(self, agent: AgentId) -> bool:
        """Delete an agent. Its sessions stay. Return whether the agent existed."""
        ...

    async def add_session(self, record: AgentSessionRecord, *, max_per_owner: int) -> bool:
        """Insert a session, unless its owner has ``max_per_owner`` sessions already. Return whether the session was inserted."""
        ...

    async def get_session(self, session: AgentSessionId) -> AgentSessionRecord | None:
        """Return a session; None if there is no session with this id."""
        ...

    async def list_sessions(
        self, *, owner: OwnerId | None, agent: AgentId | None, archived: bool = True, before: Position | None, limit: int
    ) -> Sequence[AgentSessionRecord]:
        """Return a page of sessions in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the sessions. None: all owners.
            agent: Agent of the sessions. None: all agents.
            archived: Include archived sessions.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        ...

    async def list_unused_sessions(self, *, before: datetime, limit: int) -> Sequence[AgentSessionRecord]:
        """Return sessions without an active run whose ``updated_at`` is earlier than ``before``, the longest unused first."""
        ...

    async def list_running_sessions(self, node: NodeId) -> Sequence[AgentSessionRecord]:
        """Return the sessions whose run is active on a node, also if the run was lost with an earlier process of the node."""
        ...

    async def begin_run(
        self, session: AgentSessionId, node: NodeId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = ()
    ) -> AgentSessionRecord | None:
        """Change the status of a session from ``idle`` to ``running`` and add events and messages, in one transaction.

        Returns:
            The changed session; None, with nothing changed, if the session is not idle or does not exist.
        """
        ...

    async def append(
        self, session: AgentSessionId, events: Sequence[NewAgentEvent], *, messages: Sequence[str] = (), change: SessionChange | None = None
    ) -> AgentSessionRecord | None:
        """Add events and messages to a session and change the session, in one transaction. ``updated_at`` becomes the time of the last event.

        Args:
            session: Id of the session.
            events: Events in order.
            messages: Messages of the conversation with the model, in order.
            change: Change of the session.

        Returns:
            The changed session; None, with nothing changed, if the session does not exist.
        """
        ...

    async def list_events(self, session: AgentSessionId, *, after: int, limit: int) -> Sequence[AgentEventRecord]:
        """Return the events of a session in their order.

        Args:
            session: Id of the session.
            after: Sequence number of the event before the first one; 0 for all events.
            limit: Maximum number of events.
        """
        ...

    async def list_messages(self, session: AgentSessionId) -> Sequence[str]:
        """Return the messages of the conversation of a session in their order."""
        ...

    async def remove_session(self, session: AgentSessionId) -> bool:
        """Delete a session with its events and messages. Return whether the session existed."""
        ...


class TemplateRepository(Protocol):
    """Templates of users, their builds, and the logs of the builds."""

    async def add(self, record: TemplateRecord) -> None:
        """Insert a template.

        Raises:
            ConflictError: The owner has another template of this name.
        """
        ...

    async def get(self, template: TemplateId) -> TemplateRecord | None:
        """Return a template; None if there is no template with this id."""
        ...

    async def find(self, owner: OwnerId, name: str) -> TemplateRecord | None:
        """Return the template of an owner by its name; None if there is none."""
        ...

    async def list(self, *, owner: OwnerId | None, before: Position | None, limit: int) -> Sequence[TemplateRecord]:
        """Return a page of templates in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the templates. None: all owners.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        ...

    async def change_tags(self, template: TemplateId, tags: Mapping[str, str | None], *, at: datetime) -> TemplateRecord | None:
        """Set and remove tags of a template, in one transaction.

        Args:
            template: Id of the template.
            tags: Tag -> id of the build that it names from now on; None: the tag is removed.
            at: Time of the change.

        Returns:
            The changed template; None if there is no template with this id.
        """
        ...

    async def remove(self, template: TemplateId) -> bool:
        """Delete a template with its builds and their logs. Return whether the template existed."""
        ...

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's templates, and the size of the root file systems of all their builds in bytes."""
        ...

    async def add_build(self, record: BuildRecord) -> bool:
        """Insert a build. Return False, and insert nothing, if its template does not exist."""
        ...

    async def get_build(self, build: str) -> BuildRecord | None:
        """Return a build; None if there is no build with this id."""
        ...

    async def list_builds(
        self, *, owner: OwnerId | None, template: TemplateId | None = None, before: Position | None = None, limit: int
    ) -> Sequence[BuildRecord]:
        """Return a page of builds in the order of ``created_at`` and id, the newest first.

        Args:
            owner: Owner of the builds. None: all owners.
            template: Template of the builds. None: all templates.
            before: Position of the last record of the previous page. None: the first page.
            limit: Maximum number of records.
        """
        ...

    async def list_open_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that have not ended, also those that were lost with an earlier process of the node, the oldest first."""
        ...

    async def list_ready_builds(self, node: NodeId) -> Sequence[BuildRecord]:
        """Return the builds of a node that are ready, the oldest first."""
        ...

    async def save_build(self, record: BuildRecord) -> bool:
        """Replace a build that has not ended. If the new record is ready, its template gets the limits of the build, and the tags name the build.

        Returns:
            False, with nothing changed, if the stored build has ended or does not exist.
        """
        ...

    async def remove_build(self, build: str) -> bool:
        """Delete a build with its log. Return whether the build existed."""
        ...

    async def add_lines(self, build: str, lines: Sequence[BuildLine]) -> bool:
        """Add lines to the log of a build, with the next numbers. Return False, and add nothing, if the build does not exist."""
        ...

    async def list_lines(self, build: str, *, after: int, limit: int) -> Sequence[BuildLine]:
        """Return lines of the log of a build in their order.

        Args:
            build: Id of the build.
            after: Number of the line before the first one; 0 for all lines.
            limit: Maximum number of lines.
        """
        ...


class Store(Protocol):
    """All repositories of one store."""

    @property
    def sandboxes(self) -> SandboxRepository:
        """Repository of sandboxes."""
        ...

    @property
    def snapshots(self) -> SnapshotRepository:
        """Repository of snapshots."""
        ...

    @property
    def volumes(self) -> VolumeRepository:
        """Repository of volumes."""
        ...

    @property
    def keys(self) -> KeyRepository:
        """Repository of API keys."""
        ...

    @property
    def files(self) -> FileRepository:
        """Repository of the records of files in the file store."""
        ...

    @property
    def executions(self) -> ExecutionRepository:
        """Repository of executions: the execution log."""
        ...

    @property
    def events(self) -> EventRepository:
        """Repository of events."""
        ...

    @property
    def webhooks(self) -> WebhookRepository:
        """Repository of webhooks."""
        ...

    @property
    def agents(self) -> AgentRepository:
        """Repository of agents and their sessions."""
        ...

    @property
    def templates(self) -> TemplateRepository:
        """Repository of the templates of users, and of their builds."""
        ...


class Blobs(Protocol):
    """Contents of stored files by file id. Content is written and read in chunks, so that no whole file is in memory."""

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Write the content of a file as a blob, and return its size in bytes. If the write fails or is cancelled, no blob is left."""
        ...

    def read(self, file: FileId) -> AsyncIterator[bytes]:
        """Yield the content of a blob in chunks.

        Raises:
            NotFoundError: There is no blob with this id. The error is raised when the first chunk is requested.
        """
        ...

    async def remove(self, file: FileId) -> None:
        """Delete a blob. Idempotent."""
        ...

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all complete blobs."""
        ...
