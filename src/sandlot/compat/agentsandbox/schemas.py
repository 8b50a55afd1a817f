"""What AgentSandbox's client sends, and what it has to be given: bodies, queries and answers, field by field.

Law: A text is never null in an answer whose client wants a text, and every total is exact: its client counts on both.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts

LanguageName = Literal["python", "bash"]


class ExecuteBody(RequestModel):
    """Code to run."""

    code: Text
    language: LanguageName = "python"
    session_id: Text | None = None
    env_vars: Metadata | None = None
    file_ids: Texts | None = None


class SessionBody(RequestModel):
    """A session to create."""

    env_vars: Metadata | None = None
    file_ids: Texts | None = None


class InjectBody(RequestModel):
    """Files to put into a session."""

    file_ids: Texts


class FilesQuery(QueryModel):
    """Which part of the list of files."""

    limit: int = Field(default=50, ge=1, le=100)
    offset: int = Field(default=0, ge=0, lt=1 << 31)


class UploadQuery(QueryModel):
    """Where a file goes beside the file store."""

    session_id: Text | None = None


class MadeFile(ResponseModel):
    """A file that a run made."""

    file_id: str
    filename: str


class ExecuteAnswer(ResponseModel):
    """What a run came to. ``execution_id`` and ``files_omitted`` are ours: its client passes over them."""

    session_id: str
    stdout: str
    stderr: str
    return_code: int
    files: list[MadeFile]
    execution_id: str | None
    files_omitted: int = 0


class SessionAnswer(ResponseModel):
    """One session."""

    session_id: str
    created: bool


class SessionsAnswer(ResponseModel):
    """The ids of all sessions."""

    sessions: list[str]


class InjectedAnswer(ResponseModel):
    """What was put into a session."""

    session_id: str
    file_ids: list[str]


class FileAnswer(ResponseModel):
    """One file of the file store."""

    file_id: str
    filename: str
    mime_type: str
    size_bytes: int
    session_id: str | None
    created_at: str = Field(description="ISO 8601, UTC.")


class FilesAnswer(ResponseModel):
    """A part of the list of files."""

    files: list[FileAnswer]
    total: int
    limit: int
    offset: int


class ExecutionAnswer(ResponseModel):
    """One run, as the log keeps it."""

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
