"""The tables. The newest revision in ``migrations/`` creates the same tables; a test compares them.

Invariants:
- Types have the same meaning on SQLite and PostgreSQL. Values that one of them cannot store exactly are encoded (:class:`UtcMicrosecondsType`,
  :class:`ShortTextType`, :class:`Utf8TextType`, :class:`JsonType`).
- Every query of a page has an index in the order of the page, so that its cost depends on the rows of the page and not on the table.
- Sequence numbers of events come from a row of ``counters`` that stays locked until their transaction has committed. On any number of nodes,
  their order is the order of commits, and no number is assigned twice.
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
from sandlot.model.specs import SandboxSpec

HEAD: Final = "0001"
"""The newest revision in ``migrations/versions``. A database with this revision is opened without loading them."""

VERSION_TABLE: Final = "alembic_version"
RUNNING: Final = "running"
"""Status of an execution that has not ended."""
EVENTS: Final = "events"
"""Name of the counter that assigns sequence numbers to events."""
IDENTITY: Final = "identity"
"""Name of the counter that holds the random id of the database and never changes."""

_Impl = TypeEngine[Any] | type[TypeEngine[Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _EncodedType(TypeDecorator[Any], ABC):
    """A column type whose values are stored in another form. NULL stays NULL."""

    @abstractmethod
    def encode(self, value: Any) -> Any:  # noqa: ANN401 - each type has its own
        """Return the stored form of a value."""

    @abstractmethod
    def decode(self, value: Any) -> Any:  # noqa: ANN401
        """Return the value of a stored form."""

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002 - SQLAlchemy's signature
        """Return the stored form of a value or NULL."""
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002
        """Return the value of a stored form or NULL."""
        return None if value is None else self.decode(value)


class UtcMicrosecondsType(_EncodedType):
    """An aware time, stored as microseconds since 1970 in UTC: exact and sortable on every database."""

    impl: _Impl = BigInteger
    cache_ok: bool | None = True

    def encode(self, value: datetime) -> int:
        """Return a time as microseconds since 1970 in UTC."""
        return (value - _EPOCH) // _MICROSECOND

    def decode(self, value: int) -> datetime:
        """Return the time from microseconds since 1970 in UTC."""
        return _EPOCH + value * _MICROSECOND


class Utf8TextType(_EncodedType):
    """A text of a client or of code in a sandbox, stored as UTF-8 bytes. PostgreSQL's texts can contain neither NUL nor a lone surrogate."""

    impl: _Impl = LargeBinary
    cache_ok: bool | None = True

    def encode(self, value: str) -> bytes:
        """Return the bytes of a text."""
        return value.encode("utf-8", "surrogatepass")

    def decode(self, value: bytes) -> str:
        """Return the text of stored bytes."""
        return value.decode("utf-8", "surrogatepass")


class ShortTextType(_EncodedType):
    """A short text that the service made or checked, such as an id. A query for an impossible text finds nothing instead of failing."""

    impl: _Impl = String
    cache_ok: bool | None = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def encode(self, value: str) -> str:
        """Replace characters that the database cannot store."""
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")

    def decode(self, value: str) -> str:
        """Return the text."""
        return value


class JsonType(_EncodedType):
    """A value as JSON in ASCII, which any text column can contain. Missing fields get their defaults.

    Args:
        value_type: Type of the value, as pydantic understands it.
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
        """Return the value of stored JSON."""
        return self._adapter.validate_python(json.loads(value))


def _as_dict(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


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
    Column("ref", Utf8TextType),
    Column("exit_reason", Utf8TextType),
    Column("exit_detail", Utf8TextType, nullable=False),
    Column("ended_at", UtcMicrosecondsType),
    Column("idempotency_key", Utf8TextType),
    Column("request_digest", ShortTextType(64)),
    Index("sandboxes_by_node", "node", "state"),
    Index("sandboxes_by_owner", "owner", "created_at", "id"),
    Index("sandboxes_by_age", "created_at", "id"),
    Index("sandboxes_by_end", "ended_at"),
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
"""A second copy of the metadata of sandboxes with one row for each entry, for queries."""

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
    Column("layer", Boolean(create_constraint=False), nullable=False),
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
    Index("executions_by_owner", "owner", "created_at", "id"),
    Index("executions_by_sandbox", "sandbox", "created_at", "id"),
    Index("executions_by_age", "created_at", "id"),
)
Index(
    "executions_running",
    executions.c.created_at,
    sqlite_where=executions.c.status == literal_column(f"'{RUNNING}'"),
    postgresql_where=executions.c.status == literal_column(f"'{RUNNING}'"),
)

execution_counts = Table(
    "execution_counts",
    metadata,
    Column("month", ShortTextType(7), nullable=False),
    Column("owner", ShortTextType(12), nullable=False),
    Column("number", BigInteger, nullable=False),
    PrimaryKeyConstraint("month", "owner", name="execution_counts_pkey"),
)
"""Number of executions that began in a month."""

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

counters = Table(
    "counters",
    metadata,
    Column("name", ShortTextType(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
