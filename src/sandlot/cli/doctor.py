"""``sandlot doctor``: can this machine run sandboxes, and what would help."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Check whether this machine can run sandboxes."""
    raise typer.Exit(1)
