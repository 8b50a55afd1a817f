"""Output of the executions of a sandbox, as the execution log has kept it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandlot.model.executions import Channel
from sandlot.model.ids import ProcessId

MAX_LOG_EXECUTIONS: Final = 200
"""Maximum number of executions whose output one read returns."""
LOG_CHANNELS: Final[Mapping[str, Collection[Channel]]] = {
    "stdout": (Channel.STDOUT,),
    "stderr": (Channel.STDERR,),
    "both": (Channel.STDOUT, Channel.STDERR),
}
"""Name of the streams in a request -> channels."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Output that one execution wrote to one of its streams up to now.

    Args:
        execution: Id of the execution.
        at: Start of the execution.
        channel: 1 for standard output, 2 for standard error.
        text: Kept output. If a part is missing, a line in its place states the number of missing bytes.
        omitted: Number of bytes that are not kept.
        end: Number of bytes that a running execution has written to the stream so far; None for an execution that has ended.
        begun: Last bytes up to ``end`` if they are the first part of a character, which ``text`` does not have.
    """

    execution: ProcessId
    at: datetime
    channel: int
    text: str
    omitted: int
    end: int | None
    begun: bytes = b""


@dataclass(frozen=True, slots=True)
class LogOutput:
    """New output of an execution. Bytes that are not UTF-8 are replaced by U+FFFD."""

    execution: ProcessId
    channel: int
    text: str


@dataclass(frozen=True, slots=True)
class LogGap:
    """Output that the follower lost because the execution wrote faster than the follower read."""

    execution: ProcessId
    channel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of an execution and of its output."""

    execution: ProcessId
