"""Messages that E2B's clients send to envd: ``process.proto`` and ``filesystem.proto`` as proto3 JSON.

Field names are in camelCase or as in the definition, null is an omitted field, and bytes are base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from sandlot.model.specs import MAX_TERMINAL_SIZE
from sandlot.web.models import Metadata, QueryModel, RequestModel, Text, Texts

MAX_PID = (1 << 32) - 1
"""Largest value of the field's type, uint32. A pid that no process can have is not found, which the client's ``kill`` returns as False."""
DEPTH_END = 1 << 32
MAX_TAG_CHARS = 256


def _decode(text: str) -> bytes:
    try:
        plain = text.replace("-", "+").replace("_", "/").rstrip("=")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("This is not base64.") from None


Base64 = Annotated[str, AfterValidator(_decode)]
"""Text that is bytes after validation."""


class Message(RequestModel):
    """One message."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class EmptyMessage(Message):
    """A message without fields."""


class TerminalSize(Message):
    """Size of a terminal; 0 means the default."""

    cols: int = Field(default=0, ge=0, le=MAX_TERMINAL_SIZE)
    rows: int = Field(default=0, ge=0, le=MAX_TERMINAL_SIZE)


class Pty(Message):
    """A terminal."""

    size: TerminalSize = TerminalSize()


class ProcessConfig(Message):
    """A program to run."""

    cmd: Text = ""
    args: Texts = Field(default_factory=list)
    envs: Metadata = Field(default_factory=dict)
    cwd: Text | None = None


class StartMessage(Message):
    """``process.StartRequest``."""

    process: ProcessConfig
    pty: Pty | None = None
    tag: Text | None = Field(default=None, max_length=MAX_TAG_CHARS)
    stdin: bool = True


class Selector(Message):
    """Selector of a process: exactly one field."""

    pid: int | None = Field(default=None, ge=0, le=MAX_PID)
    tag: Text | None = Field(default=None, max_length=MAX_TAG_CHARS)

    @model_validator(mode="after")
    def _one(self) -> Selector:
        if (self.pid is None) == (self.tag is None):
            raise ValueError("Pass either 'pid' or 'tag'.")
        return self


class SelectMessage(Message):
    """``ConnectRequest`` and ``CloseStdinRequest``."""

    process: Selector


class Input(Message):
    """Input of a process: exactly one field."""

    stdin: Base64 | None = None
    pty: Base64 | None = None

    @model_validator(mode="after")
    def _one(self) -> Input:
        if (self.stdin is None) == (self.pty is None):
            raise ValueError("Pass either 'stdin' or 'pty'.")
        return self

    @property
    def data(self) -> bytes:
        """The bytes."""
        data: Any = self.pty if self.stdin is None else self.stdin
        return bytes(data)


class SendInputMessage(Message):
    """``SendInputRequest``."""

    process: Selector
    input: Input


class InputData(Message):
    """``StreamInputRequest.DataEvent``."""

    input: Input


class StreamInputMessage(Message):
    """``StreamInputRequest``: exactly one field."""

    start: SelectMessage | None = None
    data: InputData | None = None
    keepalive: EmptyMessage | None = None

    @model_validator(mode="after")
    def _one(self) -> StreamInputMessage:
        if len(self.model_fields_set) != 1:
            raise ValueError("Pass one of 'start', 'data' and 'keepalive'.")
        return self


class SignalMessage(Message):
    """``SendSignalRequest``."""

    process: Selector
    signal: Text | int


class UpdateMessage(Message):
    """``UpdateRequest``."""

    process: Selector
    pty: Pty | None = None


class PathMessage(Message):
    """``StatRequest``, ``MakeDirRequest`` and ``RemoveRequest``."""

    path: Text = ""


class ListDirMessage(PathMessage):
    """``ListDirRequest``."""

    depth: int = Field(default=0, ge=0, lt=DEPTH_END)


class MoveMessage(Message):
    """``MoveRequest``."""

    source: Text = ""
    destination: Text = ""


class WatchMessage(PathMessage):
    """``WatchDirRequest`` and ``CreateWatcherRequest``."""

    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False


class WatcherMessage(Message):
    """``GetWatcherEventsRequest`` and ``RemoveWatcherRequest``."""

    watcher_id: Text = ""


class FilesQuery(QueryModel):
    """Query of ``/files``."""

    path: Text | None = None
    username: Text = ""
    signature: str = ""
    signature_expiration: str = ""
