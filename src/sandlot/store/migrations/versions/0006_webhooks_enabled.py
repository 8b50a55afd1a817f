"""Whether a webhook is told anything now. Those from before are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0006"
down_revision = "0005"


def upgrade(op: Operations) -> None:
    """Add the word."""
    op.add_column("webhooks", sa.Column("enabled", sa.Boolean(create_constraint=False), nullable=False, server_default=sa.true()))
