"""What a cell tells while it runs, beside its output and its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sandlot.sdk.results import Execution, ExecutionError, Output, Result


@dataclass(frozen=True, slots=True)
class Started:
    """A cell's turn has come.

    Args:
        id: The execution's.
        execution_count: The number of the cell in its context, from 1.
    """

    id: str
    execution_count: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """A cell took back what it has shown (``clear_output``).

    Args:
        wait: Not before it shows the next thing.
    """

    wait: bool = False


CodeEvent: TypeAlias = Started | Output | Result | Cleared | ExecutionError | Execution
"""What ``stream_code`` gives: these as they come, and the execution as the last one."""
