"""Requests and responses of the AgentSandbox API.

Invariant: The client expects text where a field is a text, and exact totals, so texts are never null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts

LanguageName = Literal["python", "bash"]


class ExecuteRequest(RequestModel):
    """Code to run."""

    code: Text
    language: LanguageName = "python"
    session_id: Text | None = None
    env_vars: Metadata | None = None
    file_ids: Texts | None = None


class CreateSessionRequest(RequestModel):
    """A session to create."""

    env_vars: Metadata | None = None
    file_ids: Texts | None = None


class InjectFilesRequest(RequestModel):
    """Files to copy into a session."""

    file_ids: Texts


class FileListQuery(QueryModel):
    """Part of the list of files."""

    limit: int = Field(default=50, ge=1, le=100)
    offset: int = Field(default=0, ge=0, lt=1 << 31)


class UploadQuery(QueryModel):
    """Session that an upload is also copied into."""

    session_id: Text | None = None


class RunFile(ResponseModel):
    """A file that a run created."""

    file_id: str
    filename: str


class ExecuteResponse(ResponseModel):
    """Result of a run. The client ignores ``execution_id`` and ``files_omitted``, which are Sandlot's own."""

    session_id: str
    stdout: str
    stderr: str
    return_code: int
    files: list[RunFile]
    execution_id: str | None
    files_omitted: int = 0


class SessionResponse(ResponseModel):
    """One session."""

    session_id: str
    created: bool


class SessionListResponse(ResponseModel):
    """Ids of all sessions."""

    sessions: list[str]


class InjectFilesResponse(ResponseModel):
    """Files that were copied into a session."""

    session_id: str
    file_ids: list[str]


class StoredFile(ResponseModel):
    """One file of the file store."""

    file_id: str
    filename: str
    mime_type: str
    size_bytes: int
    session_id: str | None
    created_at: str = Field(description="ISO 8601, UTC.")


class FileListResponse(ResponseModel):
    """Part of the list of files."""

    files: list[StoredFile]
    total: int
    limit: int
    offset: int


class LoggedExecution(ResponseModel):
    """One run of the execution log."""

    id: str
    endpoint: str
    method: str
    status_code: int | None
    duration_ms: float | None
    session_id: str | None
    language: LanguageName | None
    code: str | None
    stdout: str
    stderr: str
    return_code: int | None
    files_count: int
    error: str | None
    request_meta: dict[str, str | int] | None
    created_at: str = Field(description="ISO 8601, UTC.")
