"""Trees of files: packed, unpacked, watched; and URLs that open one file."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandlot.model.files import FileEvent as FolderEvent
from sandlot.model.files import Unpacked, Watch
from sandlot.model.signed_urls import DEFAULT_URL_LIFETIME_S
from sandlot.server.v1.schemas.base import RequestModel, ResponseModel, Text, UserName
from sandlot.server.v1.schemas.files import PathQuery


class ExistsAnswer(ResponseModel):
    """Whether there is something at a path."""

    exists: bool


class PackQuery(PathQuery):
    """A folder, or one file, to pack."""

    format: Literal["tar", "tar.gz"] = Field(default="tar", description="Plain, or compressed by gzip.")


class UnpackedAnswer(ResponseModel):
    """What came of an archive."""

    files: int
    directories: int = Field(description="That the archive names.")
    links: int = Field(description="Symbolic and hard ones.")
    size_bytes: int = Field(description="Of all files together.")

    @classmethod
    def of(cls, unpacked: Unpacked) -> UnpackedAnswer:
        """What is told of it."""
        return cls(files=unpacked.files, directories=unpacked.folders, links=unpacked.links, size_bytes=unpacked.size_bytes)


class WatchQuery(PathQuery):
    """A folder to watch."""

    recursive: bool = Field(default=False, description="Also the folders in it, those that come later included; 1,000 at most.")


class WatchingEvent(ResponseModel):
    """The folder is watched from now on."""

    path: str
    recursive: bool
    by: Literal["inotify", "scan"] = Field(description="Where it is scan, what comes and goes within a second may go unseen.")


class FileEvent(ResponseModel):
    """Something happened to a file or a folder."""

    path: str
    kind: Literal["file", "directory"] = Field(description="Whatever is no folder is told as a file.")

    @classmethod
    def of(cls, event: FolderEvent) -> FileEvent:
        """What is told of it."""
        return cls(path=event.path, kind="directory" if event.folder else "file")


class MovedEvent(FileEvent):
    """Something has another name now."""

    source: str = Field(description="Its path before.")

    @classmethod
    def of(cls, event: FolderEvent) -> MovedEvent:
        """What is told of it."""
        return cls(path=event.path, kind="directory" if event.folder else "file", source=event.source or "")


class OverflowEvent(ResponseModel):
    """More happened than could be told: list the folder to know what there is."""


class GoneEvent(ResponseModel):
    """The folder itself was removed or moved; nothing follows."""

    path: str


class WatcherBody(RequestModel):
    """A folder to watch for whoever asks later."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace"])
    recursive: bool = Field(default=False, description="Also the folders in it, those that come later included; 1,000 at most.")
    user: UserName = Field(default="user", description="Who it is done as.")


class WatcherAnswer(WatchingEvent):
    """A folder that is watched."""

    watcher: str

    @classmethod
    def of(cls, watch: Watch) -> WatcherAnswer:
        """What is told of it."""
        by: Literal["inotify", "scan"] = "scan" if watch.by == "scan" else "inotify"
        return cls(watcher=watch.id, path=watch.path, recursive=watch.recursive, by=by)


class WatchersAnswer(ResponseModel):
    """All of a sandbox's."""

    watchers: list[WatcherAnswer]


class HappenedEventAnswer(ResponseModel):
    """One thing that happened in a watched folder."""

    event: Literal["created", "modified", "removed", "moved", "overflow", "gone"]
    path: str = Field(description="Empty of ``overflow``.")
    kind: Literal["file", "directory"] = Field(description="Whatever is no folder is told as a file.")
    source: str | None = Field(description="Its path before, of what was moved.")

    @classmethod
    def of(cls, event: FolderEvent) -> HappenedEventAnswer:
        """What is told of it."""
        told = {"event": event.kind, "path": event.path, "kind": "directory" if event.folder else "file", "source": event.source}
        return cls.model_validate(told)


class HappenedAnswer(ResponseModel):
    """What has happened since the last time, oldest first."""

    events: list[HappenedEventAnswer]


class SignBody(RequestModel):
    """What a URL is to allow."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/report.pdf"])
    method: Literal["GET", "PUT"] = Field(default="GET", description="GET reads the file, PUT writes it.")
    expires_in: float = Field(default=DEFAULT_URL_LIFETIME_S, description="Seconds that it holds, 1 to 604,800.")
    user: UserName = Field(default="user", description="Who it is done as.")


class SignedAnswer(ResponseModel):
    """A URL that needs no key."""

    url: str = Field(description="Absolute; of a request that came over the unix socket a path.")
    method: str
    expires_at: datetime
