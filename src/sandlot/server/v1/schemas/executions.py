"""What happened, and what ran: told."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from sandlot.model.history import LogEntry
from sandlot.model.records import EventRecord, ExecutionRecord
from sandlot.server.v1.schemas.base import QueryModel, ResponseModel, Text


class EventAnswer(ResponseModel):
    """Something that happened."""

    sequence: int = Field(description="Larger than that of everything that happened before.")
    type: str = Field(description="What: a noun, a dot, a past participle, such as sandbox.created. A newer service may have others.")
    at: datetime
    owner: str = Field(description="The key's id, or 'local'.")
    sandbox: str | None
    data: dict[str, Any] = Field(description="Details; which ones depends on the type.")

    @classmethod
    def of(cls, record: EventRecord) -> EventAnswer:
        """What is told of it."""
        event = record.event
        return cls(sequence=record.sequence, type=event.type, at=event.at, owner=event.owner, sandbox=event.sandbox, data=dict(event.data))


class EventsAnswer(ResponseModel):
    """A page of events, oldest first."""

    events: list[EventAnswer]
    next_cursor: str | None = Field(description="For the next page; null where there is nothing more yet.")
    last: int = Field(description="The number of the last one on this page, or what was asked for as 'after': go on from it.")


class EventsQuery(QueryModel):
    """Which events to list, or to follow."""

    after: int | None = Field(
        default=None, ge=0, lt=2**62, description="Those with a larger number. Left out: a list begins with the oldest, a stream with what comes."
    )
    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Events on one page, at most.")
    sandbox: Text | None = Field(default=None, description="Those of this sandbox only.")


class ExecutionAnswer(ResponseModel):
    """One run of code or of a command."""

    id: str = Field(description="Of the process or cell.")
    sandbox: str
    owner: str
    kind: str = Field(description="code or command.")
    origin: str = Field(description="Which API it came by: native, or the name of a door.")
    language: str | None
    code: str | None = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    argv: list[str] | None
    created_at: datetime
    status: str = Field(description="running, ok, error, timeout, killed, died, exited, signalled, pids, oom, or lost: nobody knows how it ended.")
    exit_code: int | None
    duration: float | None = Field(description="Seconds; null while it runs.")
    stdout: str = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    error: str | None = Field(description="Of code that raised.")
    files: int | None = Field(description="How many files it made or changed, where that was asked for.")

    @classmethod
    def of(cls, record: ExecutionRecord) -> ExecutionAnswer:
        """What is told of it."""
        return cls(
            id=record.id,
            sandbox=record.sandbox,
            owner=record.owner,
            kind=record.kind,
            origin=record.origin,
            language=record.language,
            code=record.code,
            argv=None if record.argv is None else list(record.argv),
            created_at=record.created_at,
            status=record.status,
            exit_code=record.exit_code,
            duration=record.duration_s,
            stdout=record.stdout,
            stderr=record.stderr,
            stdout_omitted=record.stdout_omitted_bytes,
            stderr_omitted=record.stderr_omitted_bytes,
            error=record.error,
            files=record.files,
        )


class ExecutionsAnswer(ResponseModel):
    """A page of runs, newest first."""

    executions: list[ExecutionAnswer]
    next_cursor: str | None


class ExecutionsQuery(QueryModel):
    """Which runs to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=50, ge=1, le=200, description="Runs on one page, at most.")
    sandbox: Text | None = Field(default=None, description="Those in this sandbox only.")


StreamName = Literal["stdout", "stderr"]
STREAM_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


class LogEntryAnswer(ResponseModel):
    """What one run wrote to one of its streams."""

    execution: str = Field(description="Of the process or cell.")
    at: datetime = Field(description="When it was begun.")
    stream: StreamName
    text: str = Field(description="Of what is longer than 64 KiB, the beginning and the end.")
    omitted: int = Field(description="Bytes that are not there.")
    running: bool = Field(description="Whether it may write more.")

    @classmethod
    def of(cls, entry: LogEntry) -> LogEntryAnswer:
        """What is told of it."""
        return cls(
            execution=entry.execution,
            at=entry.at,
            stream=STREAM_NAMES[entry.channel],
            text=entry.text,
            omitted=entry.omitted,
            running=entry.end is not None,
        )


class LogsAnswer(ResponseModel):
    """What the runs of a sandbox wrote, in the order in which they were begun."""

    entries: list[LogEntryAnswer]
    more: bool = Field(description="Whether there are older ones: the newest 200 runs are told, of a mebibyte of text at most.")


class LogsQuery(QueryModel):
    """Which output to tell."""

    stream: Literal["stdout", "stderr", "both"] = Field(default="both", description="stdout, stderr or both.")


class LogPieceEvent(ResponseModel):
    """A run wrote something."""

    execution: str
    stream: StreamName
    text: str


class LogLostEvent(ResponseModel):
    """A run wrote faster than this was read."""

    execution: str
    stream: StreamName
    bytes: int


class LogOverEvent(ResponseModel):
    """A run has ended."""

    execution: str


class LogsEndedEvent(ResponseModel):
    """The sandbox has ended: nothing follows."""

    sandbox: str
