"""What event streams carry: a stream's name -> its events' names -> what their data is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from sandlot.server.v1.schemas.base import Problem, ResponseModel
from sandlot.server.v1.schemas.code import CellAnswer, DisplayAnswer, ErrorAnswer
from sandlot.server.v1.schemas.executions import EventAnswer, LogEntryAnswer, LogLostEvent, LogOverEvent, LogPieceEvent, LogsEndedEvent
from sandlot.server.v1.schemas.processes import EndedAnswer
from sandlot.server.v1.schemas.trees import FileEvent, GoneEvent, MovedEvent, OverflowEvent, WatchingEvent

StreamName = Literal["stdout", "stderr"]


class StartedEvent(ResponseModel):
    """A process runs."""

    process: str
    pid: int


class AcceptedEvent(ResponseModel):
    """A cell runs, or waits for its turn."""

    execution: str


class CellStartedEvent(ResponseModel):
    """A cell's turn has come."""

    execution: str
    execution_count: int = Field(description="The number of the cell in its context.")


class ClearEvent(ResponseModel):
    """A cell took back what it has shown."""

    wait: bool = Field(description="Not before it shows the next thing.")


class OutputEvent(ResponseModel):
    """A piece of what is written."""

    stream: StreamName
    offset: int = Field(description="Of its first byte, counted from the stream's beginning.")
    encoding: Literal["utf-8", "base64"] = Field(description="How ``data`` carries the bytes; base64 where they are no UTF-8.")
    data: str


class LostEvent(ResponseModel):
    """Output that is no longer kept, because it was read too late."""

    stream: StreamName
    bytes: int


class PositionEvent(ResponseModel):
    """Where a stream of events begins."""

    after: int = Field(description="The events that follow have larger numbers.")


STREAMS: Mapping[str, Mapping[str, type[ResponseModel]]] = {
    "process": {"started": StartedEvent, "output": OutputEvent, "lost": LostEvent, "exit": EndedAnswer, "failure": Problem},
    "cell": {
        "accepted": AcceptedEvent,
        "started": CellStartedEvent,
        "output": OutputEvent,
        "lost": LostEvent,
        "display": DisplayAnswer,
        "clear": ClearEvent,
        "error": ErrorAnswer,
        "exit": CellAnswer,
        "failure": Problem,
    },
    "events": {
        "position": PositionEvent,
        "sandbox.created": EventAnswer,
        "sandbox.updated": EventAnswer,
        "sandbox.adopted": EventAnswer,
        "sandbox.paused": EventAnswer,
        "sandbox.resumed": EventAnswer,
        "sandbox.hibernated": EventAnswer,
        "sandbox.woken": EventAnswer,
        "sandbox.forked": EventAnswer,
        "sandbox.promoted": EventAnswer,
        "sandbox.ended": EventAnswer,
        "snapshot.created": EventAnswer,
        "snapshot.deleted": EventAnswer,
        "snapshot.unusable": EventAnswer,
        "volume.created": EventAnswer,
        "volume.deleted": EventAnswer,
        "failure": Problem,
    },
    "logs": {
        "entry": LogEntryAnswer,
        "output": LogPieceEvent,
        "lost": LogLostEvent,
        "over": LogOverEvent,
        "ended": LogsEndedEvent,
        "failure": Problem,
    },
    "watch": {
        "watching": WatchingEvent,
        "created": FileEvent,
        "modified": FileEvent,
        "removed": FileEvent,
        "moved": MovedEvent,
        "overflow": OverflowEvent,
        "gone": GoneEvent,
        "failure": Problem,
    },
}
