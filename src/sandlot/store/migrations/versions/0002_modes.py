"""How runs were begun, which is what the next service goes on with them by. Of those from before, nobody knows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"


def upgrade(op: Operations) -> None:
    """Add the word."""
    op.add_column("executions", sa.Column("mode", sa.String(16)))
