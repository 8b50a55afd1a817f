"""Contexts: kernels of a sandbox, each with its own variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Context:
    """A kernel with state, as it was when it was asked about.

    Args:
        id: What ``run_code(..., context=...)`` takes; so is this object. ``default``, ``bash`` and ``javascript`` are there always.
        language: ``python``, ``bash`` or ``javascript``.
        cwd: The folder that it starts in.
        state: ``starting``, ``idle``, ``busy``, or ``stopped``: it starts with the next cell.
        execution_count: How many cells it has run.
        pid: Its process in the sandbox; None where none runs.
    """

    id: str
    language: str
    cwd: str
    state: str
    execution_count: int = 0
    pid: int | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            language=str(raw.get("language", "")),
            cwd=str(raw.get("cwd", "")),
            state=str(raw.get("state", "")),
            execution_count=int(raw.get("execution_count", 0)),
            pid=raw.get("pid"),
        )


def id_of(context: Context | str | None) -> str | None:
    """The id of a context, which may be given as such."""
    return context.id if isinstance(context, Context) else context
