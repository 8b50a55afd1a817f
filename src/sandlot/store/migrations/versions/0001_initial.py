"""Migration 0001: all tables of the first version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Create all tables of the first version."""
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(24), primary_key=True),
        sa.Column("node", sa.String(4), nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.LargeBinary),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("idle_timeout_s", sa.Double),
        sa.Column("waits_for_disk", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("ref", sa.LargeBinary),
        sa.Column("exit_reason", sa.LargeBinary),
        sa.Column("exit_detail", sa.LargeBinary, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("idempotency_key", sa.LargeBinary),
        sa.Column("request_digest", sa.String(64)),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("sandboxes_by_node", "sandboxes", ["node", "state"])
    op.create_index("sandboxes_by_owner", "sandboxes", ["owner", "created_at", "id"])
    op.create_index("sandboxes_by_age", "sandboxes", ["created_at", "id"])
    op.create_index("sandboxes_by_end", "sandboxes", ["ended_at"])
    op.create_index("sandboxes_by_owner_and_end", "sandboxes", ["owner", "ended_at", "id", "size_bytes"])
    op.create_index("sandboxes_by_request", "sandboxes", ["owner", "idempotency_key"], unique=True)
    op.create_table(
        "sandbox_metadata",
        sa.Column("sandbox", sa.String(24), sa.ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("sandbox", "key", name="sandbox_metadata_pkey"),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(26), primary_key=True),
        sa.Column("node", sa.String(4), nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.String(63)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ready", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("has_overlay", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("problem", sa.LargeBinary, nullable=False),
        sa.Column("idempotency_key", sa.LargeBinary),
        sa.Column("request_digest", sa.String(64)),
    )
    op.create_index("snapshots_by_node", "snapshots", ["node"])
    op.create_index("snapshots_by_owner", "snapshots", ["owner", "created_at", "id"])
    op.create_index("snapshots_by_age", "snapshots", ["created_at", "id"])
    op.create_index("snapshots_by_name", "snapshots", ["owner", "name"], unique=True)
    op.create_index("snapshots_by_request", "snapshots", ["owner", "idempotency_key"], unique=True)
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(25), primary_key=True),
        sa.Column("node", sa.String(4), nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ready", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("used_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("volumes_by_node", "volumes", ["node"])
    op.create_index("volumes_by_name", "volumes", ["owner", "name"], unique=True)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("operator", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("quota", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
    )
    valid = sa.text("revoked_at IS NULL")
    op.create_index("keys_by_name", "keys", ["name"], unique=True, sqlite_where=valid, postgresql_where=valid)
    op.create_table(
        "files",
        sa.Column("id", sa.String(21), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("filename", sa.LargeBinary, nullable=False),
        sa.Column("media_type", sa.LargeBinary, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("sandbox", sa.String(24)),
    )
    op.create_index("files_by_owner", "files", ["owner", "created_at", "id"])
    op.create_index("files_by_age", "files", ["created_at", "id"])
    op.create_index("files_by_size", "files", ["owner", "size_bytes"])
    op.create_table(
        "executions",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("sandbox", sa.String(24), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("language", sa.LargeBinary),
        sa.Column("code", sa.LargeBinary),
        sa.Column("argv", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.Column("stdout", sa.LargeBinary, nullable=False),
        sa.Column("stderr", sa.LargeBinary, nullable=False),
        sa.Column("stdout_omitted_bytes", sa.BigInteger, nullable=False),
        sa.Column("stderr_omitted_bytes", sa.BigInteger, nullable=False),
        sa.Column("duration_s", sa.Double),
        sa.Column("error", sa.LargeBinary),
        sa.Column("origin", sa.String(32), nullable=False),
        sa.Column("files", sa.Integer),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("execution_count", sa.BigInteger),
        sa.Column("results_bytes", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("executions_by_owner", "executions", ["owner", "created_at", "id", "size_bytes"])
    op.create_index("executions_by_sandbox", "executions", ["sandbox", "created_at", "id"])
    op.create_index("executions_by_age", "executions", ["created_at", "id"])
    running = sa.text("status = 'running'")
    op.create_index("executions_running", "executions", ["created_at"], sqlite_where=running, postgresql_where=running)
    op.create_table(
        "execution_results",
        sa.Column("execution", sa.String(32), sa.ForeignKey("executions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "execution_counts",
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("month", "owner", name="execution_counts_pkey"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(19), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.LargeBinary),
        sa.Column("url", sa.LargeBinary, nullable=False),
        sa.Column("events", sa.Text, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
        sa.Column("payload_format", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("failed_attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger),
        sa.Column("delivered_events", sa.BigInteger, nullable=False),
        sa.Column("failed_events", sa.BigInteger, nullable=False),
        sa.Column("last_attempt_at", sa.BigInteger),
        sa.Column("last_error", sa.LargeBinary, nullable=False),
        sa.Column("leased_by", sa.String(4)),
        sa.Column("leased_until", sa.BigInteger),
        sa.Column("enabled", sa.Boolean(create_constraint=False), nullable=False),
    )
    op.create_index("webhooks_by_owner", "webhooks", ["owner", "created_at", "id"])
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("sandbox", sa.String(24)),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("events_by_owner", "events", ["owner", "sequence"])
    op.create_index("events_by_sandbox", "events", ["sandbox", "sequence"])
    op.create_index("events_by_age", "events", ["at"])
    counters = op.create_table(
        "counters",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(counters, [{"name": "events", "value": 0}])
    _create_agents(op)
    _create_templates(op)


def _create_agents(op: Operations) -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.String(22), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("archived_at", sa.BigInteger),
    )
    op.create_index("agents_by_owner", "agents", ["owner", "created_at", "id"])
    op.create_index("agents_by_age", "agents", ["created_at", "id"])
    op.create_table(
        "agent_sessions",
        sa.Column("id", sa.String(21), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("agent", sa.String(22), nullable=False),
        sa.Column("agent_version", sa.Integer, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("title", sa.LargeBinary),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("node", sa.String(4)),
        sa.Column("sandbox", sa.String(24)),
        sa.Column("stop_reason", sa.String(32)),
        sa.Column("usage", sa.Text, nullable=False),
        sa.Column("last_sequence", sa.Integer, nullable=False),
        sa.Column("last_message", sa.Integer, nullable=False),
    )
    op.create_index("agent_sessions_by_owner", "agent_sessions", ["owner", "created_at", "id"])
    op.create_index("agent_sessions_by_agent", "agent_sessions", ["agent", "created_at", "id"])
    op.create_index("agent_sessions_by_age", "agent_sessions", ["created_at", "id"])
    is_running = sa.text("node IS NOT NULL")
    op.create_index("agent_sessions_running", "agent_sessions", ["node"], sqlite_where=is_running, postgresql_where=is_running)
    op.create_table(
        "agent_events",
        sa.Column("session", sa.String(21), sa.ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("id", sa.String(21), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session", "sequence", name="agent_events_pkey"),
    )
    op.create_table(
        "agent_messages",
        sa.Column("session", sa.String(21), sa.ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("session", "number", name="agent_messages_pkey"),
    )


def _create_templates(op: Operations) -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.String(21), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_index("templates_by_name", "templates", ["owner", "name"], unique=True)
    op.create_index("templates_by_owner", "templates", ["owner", "created_at", "id"])
    op.create_index("templates_by_age", "templates", ["created_at", "id"])
    op.create_table(
        "template_builds",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("template", sa.String(21), sa.ForeignKey("templates.id", ondelete="CASCADE"), nullable=False),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("node", sa.String(4), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("step", sa.String(16), nullable=False),
        sa.Column("error", sa.LargeBinary, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("root", sa.Text),
        sa.Column("snapshot_bytes", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("last_line", sa.Integer, nullable=False),
    )
    op.create_index("template_builds_by_template", "template_builds", ["template", "created_at", "id"])
    op.create_index("template_builds_by_owner", "template_builds", ["owner", "created_at", "id"])
    op.create_index("template_builds_by_age", "template_builds", ["created_at", "id"])
    op.create_index("template_builds_by_status", "template_builds", ["node", "status", "created_at", "id"])
    op.create_table(
        "template_build_lines",
        sa.Column("build", sa.String(36), sa.ForeignKey("template_builds.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("level", sa.String(8), nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
        sa.Column("step", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("build", "number", name="template_build_lines_pkey"),
    )
