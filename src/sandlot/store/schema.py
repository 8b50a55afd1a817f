"""The tables of the database. The steps in ``migrations/`` create the same tables; a test compares both definitions.

Invariants:
- Columns have the same meaning on SQLite and PostgreSQL. Values that one of these databases cannot store exactly are encoded
  (:class:`UtcMicrosecondsType`, :class:`ShortTextType`, :class:`Utf8TextType`, :class:`JsonType`).
- Every query for a page of rows has an index in the order of the page, so that its duration does not grow with the table.
- Sequence numbers of events come from a row of ``counters`` that stays locked until the transaction with the events has committed. No number is
  assigned twice, and the order of the numbers is the order of the commits, on any number of nodes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    literal_column,
)
from sqlalchemy.types import TypeEngine

from sandlot.model.access import Quota
from sandlot.model.specs import Limits, SandboxSpec
from sandlot.model.templates import BuiltRoot, TemplateSettings

HEAD: Final = "0001"
"""The newest revision in ``migrations/versions``. If a database has this revision, it is opened without loading the migrations."""

VERSION_TABLE: Final = "alembic_version"
RUNNING: Final = "running"
"""Status of an execution that has not ended."""
EVENTS: Final = "events"
"""Name of the row in ``counters`` with the last sequence number of an event."""
IDENTITY: Final = "identity"
"""Name of the row in ``counters`` with the random id of the database, which never changes."""

_Impl = TypeEngine[Any] | type[TypeEngine[Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _EncodedType(TypeDecorator[Any], ABC):
    """Base class of column types that store values in encoded form. None is stored as NULL."""

    @abstractmethod
    def encode(self, value: Any) -> Any:  # noqa: ANN401 - each type has its own
        """Return the encoded form in which the database stores ``value``. The argument ``value`` is never None."""

    @abstractmethod
    def decode(self, value: Any) -> Any:  # noqa: ANN401
        """Return the decoded value. The argument ``value`` is the stored form, and never NULL."""

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002 - SQLAlchemy's signature
        """Return the stored form of a value, or None for None. SQLAlchemy calls this for each parameter of a statement."""
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002
        """Return the decoded value of a stored form, or None for NULL. SQLAlchemy calls this for each result of a query."""
        return None if value is None else self.decode(value)


class UtcMicrosecondsType(_EncodedType):
    """Column type for times with a time zone. A time is stored as microseconds since 1970 in UTC, which is exact and sortable on every database."""

    impl: _Impl = BigInteger
    cache_ok: bool | None = True

    def encode(self, value: datetime) -> int:
        """Return the number of microseconds from the start of 1970 (UTC) to a time."""
        return (value - _EPOCH) // _MICROSECOND

    def decode(self, value: int) -> datetime:
        """Return the time ``value`` microseconds after the start of 1970 (UTC)."""
        return _EPOCH + value * _MICROSECOND


class Utf8TextType(_EncodedType):
    """Column type for any text of a client or sandbox, stored as UTF-8 bytes: PostgreSQL's texts can contain neither NUL nor lone surrogates."""

    impl: _Impl = LargeBinary
    cache_ok: bool | None = True

    def encode(self, value: str) -> bytes:
        """Return a text as UTF-8 bytes; lone surrogates are encoded as well."""
        return value.encode("utf-8", "surrogatepass")

    def decode(self, value: bytes) -> str:
        """Return the text that stored UTF-8 bytes represent."""
        return value.decode("utf-8", "surrogatepass")


class ShortTextType(_EncodedType):
    """Column type for short texts that the service made or checked, such as ids. A query for a text that the database cannot store finds no row."""

    impl: _Impl = String
    cache_ok: bool | None = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def encode(self, value: str) -> str:
        """Return the text. Characters that the database cannot store (NUL, lone surrogates) are replaced."""
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")

    def decode(self, value: str) -> str:
        """Return the stored text."""
        return value


class JsonType(_EncodedType):
    """Column type for structured values, stored as JSON in ASCII. Fields that are missing in stored JSON get their default values when read.

    Args:
        value_type: Type of the values, which pydantic creates from stored JSON.
    """

    impl: _Impl = Text
    cache_ok: bool | None = True

    def __init__(self, value_type: type) -> None:
        super().__init__()
        self.value_type = value_type
        self._adapter: TypeAdapter[Any] = TypeAdapter(value_type)

    def encode(self, value: object) -> str:
        """Return a value as JSON. pydantic's serializer is not used, because its warnings quote values, which may be secrets."""
        return json.dumps(value, default=_as_dict, separators=(",", ":"))

    def decode(self, value: str) -> object:
        """Return the value that stored JSON represents."""
        return self._adapter.validate_python(json.loads(value))


def _as_dict(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in fields(value) if field.init}


metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", ShortTextType(24), primary_key=True),
    Column("node", ShortTextType(4), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("name", Utf8TextType),
    Column("state", ShortTextType(16), nullable=False),
    Column("spec", JsonType(SandboxSpec), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("expires_at", UtcMicrosecondsType),
    Column("idle_timeout_s", Double),
    Column("waits_for_disk", Boolean(create_constraint=False), nullable=False),
    Column("ref", Utf8TextType),
    Column("exit_reason", Utf8TextType),
    Column("exit_detail", Utf8TextType, nullable=False),
    Column("ended_at", UtcMicrosecondsType),
    Column("idempotency_key", Utf8TextType),
    Column("request_digest", ShortTextType(64)),
    Column("size_bytes", BigInteger, nullable=False),
    Index("sandboxes_by_node", "node", "state"),
    Index("sandboxes_by_owner", "owner", "created_at", "id"),
    Index("sandboxes_by_age", "created_at", "id"),
    Index("sandboxes_by_end", "ended_at"),
    Index("sandboxes_by_owner_and_end", "owner", "ended_at", "id", "size_bytes"),
    Index("sandboxes_by_request", "owner", "idempotency_key", unique=True),
)

sandbox_metadata = Table(
    "sandbox_metadata",
    metadata,
    Column("sandbox", ShortTextType(24), ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    Column("key", Utf8TextType, nullable=False),
    Column("value", Utf8TextType, nullable=False),
    PrimaryKeyConstraint("sandbox", "key", name="sandbox_metadata_pkey"),
)
"""Copy of the metadata in the column ``spec`` of :data:`sandboxes`, with a row for each entry. Used to find sandboxes by their metadata."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", ShortTextType(26), primary_key=True),
    Column("node", ShortTextType(4), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("name", ShortTextType(63)),
    Column("kind", ShortTextType(16), nullable=False),
    Column("spec", JsonType(SandboxSpec), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("ready", Boolean(create_constraint=False), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("has_overlay", Boolean(create_constraint=False), nullable=False),
    Column("problem", Utf8TextType, nullable=False),
    Column("idempotency_key", Utf8TextType),
    Column("request_digest", ShortTextType(64)),
    Index("snapshots_by_node", "node"),
    Index("snapshots_by_owner", "owner", "created_at", "id"),
    Index("snapshots_by_age", "created_at", "id"),
    Index("snapshots_by_name", "owner", "name", unique=True),
    Index("snapshots_by_request", "owner", "idempotency_key", unique=True),
)

volumes = Table(
    "volumes",
    metadata,
    Column("id", ShortTextType(25), primary_key=True),
    Column("node", ShortTextType(4), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("name", ShortTextType(63), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("ready", Boolean(create_constraint=False), nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Index("volumes_by_node", "node"),
    Index("volumes_by_name", "owner", "name", unique=True),
)

keys = Table(
    "keys",
    metadata,
    Column("id", ShortTextType(12), primary_key=True),
    Column("name", ShortTextType(63), nullable=False),
    Column("sha256", ShortTextType(64), nullable=False),
    Column("operator", Boolean(create_constraint=False), nullable=False),
    Column("quota", JsonType(Quota), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("expires_at", UtcMicrosecondsType),
    Column("revoked_at", UtcMicrosecondsType),
)
Index("keys_by_name", keys.c.name, unique=True, sqlite_where=keys.c.revoked_at.is_(None), postgresql_where=keys.c.revoked_at.is_(None))

files = Table(
    "files",
    metadata,
    Column("id", ShortTextType(21), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("filename", Utf8TextType, nullable=False),
    Column("media_type", Utf8TextType, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", ShortTextType(64), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("sandbox", ShortTextType(24)),
    Index("files_by_owner", "owner", "created_at", "id"),
    Index("files_by_age", "created_at", "id"),
    Index("files_by_size", "owner", "size_bytes"),
)

executions = Table(
    "executions",
    metadata,
    Column("id", ShortTextType(32), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("sandbox", ShortTextType(24), nullable=False),
    Column("kind", ShortTextType(16), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("status", ShortTextType(16), nullable=False),
    Column("language", Utf8TextType),
    Column("code", Utf8TextType),
    Column("argv", JsonType(list[str])),
    Column("exit_code", Integer),
    Column("stdout", Utf8TextType, nullable=False),
    Column("stderr", Utf8TextType, nullable=False),
    Column("stdout_omitted_bytes", BigInteger, nullable=False),
    Column("stderr_omitted_bytes", BigInteger, nullable=False),
    Column("duration_s", Double),
    Column("error", Utf8TextType),
    Column("origin", ShortTextType(32), nullable=False),
    Column("files", Integer),
    Column("mode", ShortTextType(16), nullable=False),
    Column("execution_count", BigInteger),
    Column("results_bytes", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index("executions_by_owner", "owner", "created_at", "id", "size_bytes"),
    Index("executions_by_sandbox", "sandbox", "created_at", "id"),
    Index("executions_by_age", "created_at", "id"),
)
Index(
    "executions_running",
    executions.c.created_at,
    sqlite_where=executions.c.status == literal_column(f"'{RUNNING}'"),
    postgresql_where=executions.c.status == literal_column(f"'{RUNNING}'"),
)

execution_results = Table(
    "execution_results",
    metadata,
    Column("execution", ShortTextType(32), ForeignKey("executions.id", ondelete="CASCADE"), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
"""Results and exception of cells, encoded. Apart from :data:`executions`, whose pages are read without them."""

execution_counts = Table(
    "execution_counts",
    metadata,
    Column("month", ShortTextType(7), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("number", BigInteger, nullable=False),
    PrimaryKeyConstraint("month", "owner", name="execution_counts_pkey"),
)
"""Number of executions that began in each month, by owner."""

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", ShortTextType(19), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("name", Utf8TextType),
    Column("url", Utf8TextType, nullable=False),
    Column("events", JsonType(list[str]), nullable=False),
    Column("secret", Utf8TextType, nullable=False),
    Column("payload_format", ShortTextType(32), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("failed_attempts", Integer, nullable=False),
    Column("next_attempt_at", UtcMicrosecondsType),
    Column("delivered_events", BigInteger, nullable=False),
    Column("failed_events", BigInteger, nullable=False),
    Column("last_attempt_at", UtcMicrosecondsType),
    Column("last_error", Utf8TextType, nullable=False),
    Column("leased_by", ShortTextType(4)),
    Column("leased_until", UtcMicrosecondsType),
    Column("enabled", Boolean(create_constraint=False), nullable=False),
    Index("webhooks_by_owner", "owner", "created_at", "id"),
)

events = Table(
    "events",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("type", ShortTextType(64), nullable=False),
    Column("at", UtcMicrosecondsType, nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("sandbox", ShortTextType(24)),
    Column("data", JsonType(dict[str, Any]), nullable=False),
    Index("events_by_owner", "owner", "sequence"),
    Index("events_by_sandbox", "sandbox", "sequence"),
    Index("events_by_age", "at"),
)

agents = Table(
    "agents",
    metadata,
    Column("id", ShortTextType(22), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("version", Integer, nullable=False),
    Column("config", JsonType(dict[str, Any]), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("updated_at", UtcMicrosecondsType, nullable=False),
    Column("archived_at", UtcMicrosecondsType),
    Index("agents_by_owner", "owner", "created_at", "id"),
    Index("agents_by_age", "created_at", "id"),
)

agent_sessions = Table(
    "agent_sessions",
    metadata,
    Column("id", ShortTextType(21), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("agent", ShortTextType(22), nullable=False),
    Column("agent_version", Integer, nullable=False),
    Column("config", JsonType(dict[str, Any]), nullable=False),
    Column("environment", JsonType(dict[str, Any]), nullable=False),
    Column("title", Utf8TextType),
    Column("metadata", JsonType(dict[str, Any]), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("updated_at", UtcMicrosecondsType, nullable=False),
    Column("status", ShortTextType(16), nullable=False),
    Column("node", ShortTextType(4)),
    Column("sandbox", ShortTextType(24)),
    Column("stop_reason", ShortTextType(32)),
    Column("usage", JsonType(dict[str, Any]), nullable=False),
    Column("last_sequence", Integer, nullable=False),
    Column("last_message", Integer, nullable=False),
    Index("agent_sessions_by_owner", "owner", "created_at", "id"),
    Index("agent_sessions_by_agent", "agent", "created_at", "id"),
    Index("agent_sessions_by_age", "created_at", "id"),
)
Index(
    "agent_sessions_running",
    agent_sessions.c.node,
    sqlite_where=agent_sessions.c.node.is_not(None),
    postgresql_where=agent_sessions.c.node.is_not(None),
)

agent_events = Table(
    "agent_events",
    metadata,
    Column("session", ShortTextType(21), ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("id", ShortTextType(21), nullable=False),
    Column("type", ShortTextType(64), nullable=False),
    Column("at", UtcMicrosecondsType, nullable=False),
    Column("data", JsonType(dict[str, Any]), nullable=False),
    PrimaryKeyConstraint("session", "sequence", name="agent_events_pkey"),
)

agent_messages = Table(
    "agent_messages",
    metadata,
    Column("session", ShortTextType(21), ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("message", Utf8TextType, nullable=False),
    PrimaryKeyConstraint("session", "number", name="agent_messages_pkey"),
)
"""Conversations with models, a row for each message."""

templates = Table(
    "templates",
    metadata,
    Column("id", ShortTextType(21), primary_key=True),
    Column("owner", ShortTextType(12), nullable=False),
    Column("name", ShortTextType(128), nullable=False),
    Column("limits", JsonType(Limits), nullable=False),
    Column("tags", JsonType(dict[str, str]), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("updated_at", UtcMicrosecondsType, nullable=False),
    Index("templates_by_name", "owner", "name", unique=True),
    Index("templates_by_owner", "owner", "created_at", "id"),
    Index("templates_by_age", "created_at", "id"),
)

template_builds = Table(
    "template_builds",
    metadata,
    Column("id", ShortTextType(36), primary_key=True),
    Column("template", ShortTextType(21), ForeignKey("templates.id", ondelete="CASCADE"), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("node", ShortTextType(4), nullable=False),
    Column("status", ShortTextType(16), nullable=False),
    Column("limits", JsonType(Limits), nullable=False),
    Column("tags", JsonType(tuple[str, ...]), nullable=False),
    Column("created_at", UtcMicrosecondsType, nullable=False),
    Column("started_at", UtcMicrosecondsType),
    Column("ended_at", UtcMicrosecondsType),
    Column("step", ShortTextType(16), nullable=False),
    Column("error", Utf8TextType, nullable=False),
    Column("settings", JsonType(TemplateSettings), nullable=False),
    Column("root", JsonType(BuiltRoot)),
    Column("snapshot_bytes", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("last_line", Integer, nullable=False),
    Index("template_builds_by_template", "template", "created_at", "id"),
    Index("template_builds_by_owner", "owner", "created_at", "id"),
    Index("template_builds_by_age", "created_at", "id"),
    Index("template_builds_by_status", "node", "status", "created_at", "id"),
)

template_build_lines = Table(
    "template_build_lines",
    metadata,
    Column("build", ShortTextType(36), ForeignKey("template_builds.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("at", UtcMicrosecondsType, nullable=False),
    Column("level", ShortTextType(8), nullable=False),
    Column("text", Utf8TextType, nullable=False),
    Column("step", ShortTextType(16), nullable=False),
    PrimaryKeyConstraint("build", "number", name="template_build_lines_pkey"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", ShortTextType(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
