"""Files: read, written, told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pydantic import Field

from sandlot.model.files import Entry
from sandlot.server.v1.schemas.base import QueryModel, RequestModel, ResponseModel, Text, UserName

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EntryAnswer(ResponseModel):
    """What is at a path."""

    name: str
    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_at: datetime
    target: str | None

    @classmethod
    def of(cls, entry: Entry) -> EntryAnswer:
        """What is told of it."""
        return cls(
            name=entry.name,
            path=entry.path,
            kind=entry.kind,
            size=entry.size,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            modified_at=_EPOCH + timedelta(microseconds=entry.modified_ns // 1000),
            target=entry.target,
        )


class ListingAnswer(ResponseModel):
    """What is in a folder; ``more`` where it holds more than that."""

    entries: list[EntryAnswer]
    more: bool


class PathQuery(QueryModel):
    """A path inside the sandbox."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/data.csv"])
    user: UserName = Field(default="user", description="Who it is done as.")


class ListQuery(PathQuery):
    """A folder to list."""

    offset: int = Field(default=0, description="Names to skip; the next page is 1,000 further.")


class StatQuery(PathQuery):
    """A path to look at."""

    follow: bool = Field(default=True, description="Where it is a symbolic link: look at what it points to.")


class ReadQuery(PathQuery):
    """A file to read, or a part of it."""

    offset: int = Field(default=0, description="Of the first byte.")
    length: int | None = Field(default=None, description="Bytes at most; to its end where left out.")


class WriteQuery(PathQuery):
    """A file to write."""

    mode: int | None = Field(default=None, description="Permission bits, as a decimal number.")
    append: bool = Field(default=False, description="Add to what there is, instead of replacing it.")
    parents: bool = Field(default=True, description="Make the folders above it that are missing.")


class RemoveQuery(PathQuery):
    """What to remove."""

    recursive: bool = Field(default=False, description="Also a folder that is not empty.")


class DirectoryBody(RequestModel):
    """A folder to make."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/out"])
    parents: bool = Field(default=True, description="Make the folders above it that are missing; one that is there already is no error then.")
    mode: int | None = Field(default=None, description="Permission bits, as a decimal number.")
    user: UserName = Field(default="user", description="Who it is done as.")


class MoveBody(RequestModel):
    """What to move where."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/out"])
    to: Text = Field(description="Its new path, likewise.", examples=["/workspace/results"])
    overwrite: bool = Field(default=False, description="Replace a file that is there.")
    user: UserName = Field(default="user", description="Who it is done as.")


class RemovedAnswer(ResponseModel):
    """How many entries were removed."""

    removed: int
