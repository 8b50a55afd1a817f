"""Webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0005"
down_revision = "0004"


def upgrade(op: Operations) -> None:
    """Make the table."""
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(19), primary_key=True),
        sa.Column("owner", sa.String(12), nullable=False),
        sa.Column("name", sa.LargeBinary),
        sa.Column("url", sa.LargeBinary, nullable=False),
        sa.Column("events", sa.Text, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
        sa.Column("shape", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.BigInteger),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("given_up", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.BigInteger),
        sa.Column("last_error", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.String(4)),
        sa.Column("held_until", sa.BigInteger),
    )
    op.create_index("webhooks_by_owner", "webhooks", ["owner", "created_at", "id"])
