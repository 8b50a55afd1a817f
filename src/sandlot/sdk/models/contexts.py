"""Contexts: kernels of a sandbox, each with its own variables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """A context as it was when the service was asked. ``run_code(..., context=)`` takes it, or its id.

    Args:
        id: Id of the context. The contexts ``default``, ``javascript``, ``typescript``, ``bash`` and ``r`` always exist.
        language: ``python``, ``javascript``, ``typescript``, ``bash`` or ``r``.
        cwd: Directory in which its kernel starts.
        state: ``starting``, ``idle``, ``busy`` or ``stopped``. A stopped kernel starts with the next run.
        execution_count: Number of runs so far.
        pid: Process id of the kernel in the sandbox; None if it does not run.
    """

    id: str
    language: str = ""
    cwd: str = ""
    state: str = ""
    execution_count: int = 0
    pid: int | None = None


def context_id(context: Context | str | None) -> str | None:
    """Return the id of a context."""
    return context.id if isinstance(context, Context) else context
