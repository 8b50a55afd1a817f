"""The tables, as the newest revision of ``migrations/`` leaves them; a test holds the two together.

Laws:
- The same types and the same meaning on SQLite and PostgreSQL; what one of them could not keep exactly is encoded (:class:`Moment`,
  :class:`Word`, :class:`Words`, :class:`Document`).
- What is asked for has an index that answers it in order, so that a page costs its rows and not the table's.
- Numbers of events come from a row of ``counters`` that stays locked until their transaction has committed: their order is that of
  commits, on any number of nodes, and a number that was given is never given again.
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

HEAD: Final = "0006"
"""The newest revision in ``migrations/versions``: a database that has it is opened without a look at them."""

VERSION_TABLE: Final = "alembic_version"
RUNNING: Final = "running"
"""The status of a run that has no end yet."""
EVENTS: Final = "events"
"""The row of ``counters`` that events take their numbers from."""
IDENTITY: Final = "identity"
"""The row of ``counters`` that never changes: a random number, by which this database is told from every other one."""

_Impl = TypeEngine[Any] | type[TypeEngine[Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _Kept(TypeDecorator[Any], ABC):
    """A value that is kept as another one."""

    @abstractmethod
    def kept(self, value: Any) -> Any:  # noqa: ANN401 - each column has its own
        """To the database."""

    @abstractmethod
    def given(self, value: Any) -> Any:  # noqa: ANN401
        """From it."""

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002 - SQLAlchemy's signature
        """To the database, NULL as it is."""
        return None if value is None else self.kept(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ANN401, ARG002
        """From it, NULL as it is."""
        return None if value is None else self.given(value)


class Moment(_Kept):
    """An aware moment, kept as microseconds since 1970 (UTC): exact, in order, and the same everywhere."""

    impl: _Impl = BigInteger
    cache_ok: bool | None = True

    def kept(self, value: datetime) -> int:
        """To the database."""
        return (value - _EPOCH) // _MICROSECOND

    def given(self, value: int) -> datetime:
        """From it."""
        return _EPOCH + value * _MICROSECOND


class Words(_Kept):
    """A text that a client or code in a sandbox wrote, kept as its UTF-8 bytes: PostgreSQL's texts can hold neither a NUL nor a lone surrogate."""

    impl: _Impl = LargeBinary
    cache_ok: bool | None = True

    def kept(self, value: str) -> bytes:
        """To the database."""
        return value.encode("utf-8", "surrogatepass")

    def given(self, value: bytes) -> str:
        """From it."""
        return value.decode("utf-8", "surrogatepass")


class Word(_Kept):
    """A short text that we made: an id, a name that was checked. What could never be one is looked for as something else, and not found."""

    impl: _Impl = String
    cache_ok: bool | None = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def kept(self, value: str) -> str:
        """To the database."""
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")

    def given(self, value: str) -> str:
        """From it."""
        return value


class Document(_Kept):
    """A value as JSON in ASCII, which any text column holds; fields that it did not have when it was written get their defaults.

    Args:
        kind: The value's type, as pydantic understands it.
    """

    impl: _Impl = Text
    cache_ok: bool | None = True

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def kept(self, value: object) -> str:
        """To the database. Not pydantic's serializer: its warnings quote values, which may be secrets."""
        return json.dumps(value, default=_plain, separators=(",", ":"))

    def given(self, value: str) -> object:
        """From it."""
        return self._adapter.validate_python(json.loads(value))


def _plain(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", Word(24), primary_key=True),
    Column("node", Word(4), nullable=False),
    Column("owner", Word(12), nullable=False),
    Column("name", Words),
    Column("state", Word(16), nullable=False),
    Column("spec", Document(SandboxSpec), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("idle_timeout_s", Double),
    Column("ref", Words),
    Column("exit_reason", Words),
    Column("exit_detail", Words, nullable=False),
    Column("ended_at", Moment),
    Column("idempotency_key", Words),
    Column("request_digest", Word(64)),
    Index("sandboxes_by_node", "node", "state"),
    Index("sandboxes_by_owner", "owner", "created_at", "id"),
    Index("sandboxes_by_age", "created_at", "id"),
    Index("sandboxes_by_end", "ended_at"),
    Index("sandboxes_by_request", "owner", "idempotency_key", unique=True),
)

labels = Table(
    "labels",
    metadata,
    Column("sandbox", Word(24), ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    Column("name", Words, nullable=False),
    Column("value", Words, nullable=False),
    PrimaryKeyConstraint("sandbox", "name", name="labels_pkey"),
)
"""The metadata of sandboxes once more, one row for each entry, to be asked for."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Word(26), primary_key=True),
    Column("node", Word(4), nullable=False),
    Column("owner", Word(12), nullable=False),
    Column("name", Word(63)),
    Column("kind", Word(16), nullable=False),
    Column("spec", Document(SandboxSpec), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ready", Boolean(create_constraint=False), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("layer", Boolean(create_constraint=False), nullable=False),
    Column("problem", Words, nullable=False),
    Column("idempotency_key", Words),
    Column("request_digest", Word(64)),
    Index("snapshots_by_node", "node"),
    Index("snapshots_by_owner", "owner", "created_at", "id"),
    Index("snapshots_by_age", "created_at", "id"),
    Index("snapshots_by_name", "owner", "name", unique=True),
    Index("snapshots_by_request", "owner", "idempotency_key", unique=True),
)

volumes = Table(
    "volumes",
    metadata,
    Column("id", Word(25), primary_key=True),
    Column("node", Word(4), nullable=False),
    Column("owner", Word(12), nullable=False),
    Column("name", Word(63), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ready", Boolean(create_constraint=False), nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Index("volumes_by_node", "node"),
    Index("volumes_by_name", "owner", "name", unique=True),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Word(12), primary_key=True),
    Column("name", Word(63), nullable=False),
    Column("sha256", Word(64), nullable=False),
    Column("operator", Boolean(create_constraint=False), nullable=False),
    Column("quota", Document(Quota), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
)
Index("keys_by_name", keys.c.name, unique=True, sqlite_where=keys.c.revoked_at.is_(None), postgresql_where=keys.c.revoked_at.is_(None))

files = Table(
    "files",
    metadata,
    Column("id", Word(21), primary_key=True),
    Column("owner", Word(12), nullable=False),
    Column("filename", Words, nullable=False),
    Column("media_type", Words, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", Word(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("sandbox", Word(24)),
    Index("files_by_owner", "owner", "created_at", "id"),
    Index("files_by_age", "created_at", "id"),
)

executions = Table(
    "executions",
    metadata,
    Column("id", Word(32), primary_key=True),
    Column("owner", Word(12), nullable=False),
    Column("sandbox", Word(24), nullable=False),
    Column("kind", Word(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("status", Word(16), nullable=False),
    Column("language", Words),
    Column("code", Words),
    Column("argv", Document(list[str])),
    Column("exit_code", Integer),
    Column("stdout", Words, nullable=False),
    Column("stderr", Words, nullable=False),
    Column("stdout_omitted_bytes", BigInteger, nullable=False),
    Column("stderr_omitted_bytes", BigInteger, nullable=False),
    Column("duration_s", Double),
    Column("error", Words),
    Column("origin", Word(32), nullable=False),
    Column("files", Integer),
    Column("mode", Word(16)),
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

runs = Table(
    "runs",
    metadata,
    Column("month", Word(7), nullable=False),
    Column("owner", Word(12), nullable=False),
    Column("begun", BigInteger, nullable=False),
    PrimaryKeyConstraint("month", "owner", name="runs_pkey"),
)
"""How many runs were begun in a month."""

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Word(19), primary_key=True),
    Column("owner", Word(12), nullable=False),
    Column("name", Words),
    Column("url", Words, nullable=False),
    Column("events", Document(list[str]), nullable=False),
    Column("secret", Words, nullable=False),
    Column("shape", Word(32), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", Moment),
    Column("delivered", BigInteger, nullable=False),
    Column("given_up", BigInteger, nullable=False),
    Column("last_at", Moment),
    Column("last_error", Words, nullable=False),
    Column("holder", Word(4)),
    Column("held_until", Moment),
    Column("enabled", Boolean(create_constraint=False), nullable=False),
    Index("webhooks_by_owner", "owner", "created_at", "id"),
)

events = Table(
    "events",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("type", Word(64), nullable=False),
    Column("at", Moment, nullable=False),
    Column("owner", Word(12), nullable=False),
    Column("sandbox", Word(24)),
    Column("data", Document(dict[str, Any]), nullable=False),
    Index("events_by_owner", "owner", "sequence"),
    Index("events_by_sandbox", "sandbox", "sequence"),
    Index("events_by_age", "at"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", Word(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
