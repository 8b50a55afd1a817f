"""Snapshots of sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0003"
down_revision = "0002"


def upgrade(op: Operations) -> None:
    """Make the table."""
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
        sa.Column("layer", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("problem", sa.LargeBinary, nullable=False),
        sa.Column("idempotency_key", sa.LargeBinary),
        sa.Column("request_digest", sa.String(64)),
    )
    op.create_index("snapshots_by_node", "snapshots", ["node"])
    op.create_index("snapshots_by_owner", "snapshots", ["owner", "created_at", "id"])
    op.create_index("snapshots_by_age", "snapshots", ["created_at", "id"])
    op.create_index("snapshots_by_name", "snapshots", ["owner", "name"], unique=True)
    op.create_index("snapshots_by_request", "snapshots", ["owner", "idempotency_key"], unique=True)
