"""The file store: kept, told, put into sandboxes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from sandlot.model.files import INJECT_FOLDER, MAX_INJECTED
from sandlot.model.records import FileRecord
from sandlot.server.v1.schemas.base import QueryModel, RequestModel, ResponseModel, Text, UserName
from sandlot.server.v1.schemas.files import EntryAnswer


class UploadQuery(QueryModel):
    """What a file is, whose body is sent as it is."""

    filename: Text | None = Field(default=None, description="What it is called: one path component. Not needed where a form names it.")
    media_type: Text | None = Field(default=None, description="Such as text/csv; application/octet-stream where left out.")


class StoredFileAnswer(ResponseModel):
    """A file of the file store."""

    id: str
    filename: str
    media_type: str
    size_bytes: int
    sha256: str = Field(description="Of its bytes, in hexadecimal.")
    created_at: datetime
    sandbox: str | None = Field(description="The sandbox that it came out of; null where it was uploaded.")

    @classmethod
    def of(cls, record: FileRecord) -> StoredFileAnswer:
        """What is told of it."""
        return cls(
            id=record.id,
            filename=record.filename,
            media_type=record.media_type,
            size_bytes=record.size_bytes,
            sha256=record.sha256,
            created_at=record.created_at,
            sandbox=record.sandbox,
        )


class StoredFilesAnswer(ResponseModel):
    """A page of files, newest first."""

    files: list[StoredFileAnswer]
    total: int = Field(description="How many there are on all pages, as of the same moment.")
    limit: int
    offset: int


class StoredFilesQuery(QueryModel):
    """Which files to list."""

    limit: int = Field(default=50, ge=1, le=1000, description="Files on one page, at most.")
    offset: int = Field(default=0, ge=0, le=2**31, description="Files to skip.")


class InjectBody(RequestModel):
    """Files to put into a sandbox."""

    file_ids: Annotated[list[Text], Field(min_length=1, max_length=MAX_INJECTED, fail_fast=True, description="Which ones.")]
    path: Text = Field(default=INJECT_FOLDER, description="The folder that they are put into; made where it is not there.")
    user: UserName = Field(default="user", description="Whose they are there.")


class InjectedAnswer(ResponseModel):
    """Where they are now, in the order of the request."""

    entries: list[EntryAnswer]


class KeepBody(RequestModel):
    """A file of a sandbox to keep."""

    path: Text = Field(description="Absolute, inside the sandbox.", examples=["/workspace/chart.png"])
    filename: Text | None = Field(default=None, description="What it is called in the file store; the last part of its path where left out.")
    user: UserName = Field(default="user", description="Who it is read as.")
