"""Volumes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0004"
down_revision = "0003"


def upgrade(op: Operations) -> None:
    """Make the table."""
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
