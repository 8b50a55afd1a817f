"""Requests and responses of SandboxAPI.

Invariant: ``stdout`` and ``stderr`` are never null, because clients concatenate them unchecked.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandlot.web.models import RequestModel, ResponseModel, Text

Packages = Annotated[list[Text], Field(min_length=1, max_length=100)]


class ExecuteRequest(RequestModel):
    """A program to run once."""

    language: Text
    code: Text
    timeout: float = 10
    stdin: Text | None = None
    expected_output: Text | None = None


class CreateSessionRequest(RequestModel):
    """A session to create."""

    language: Text
    idle_ttl: float | None = None


class RunCodeRequest(RequestModel):
    """Code to run in a session."""

    code: Text
    timeout: float = 60
    stdin: Text | None = None
    language: Text | None = None


class InstallPackagesRequest(RequestModel):
    """Packages to install in a session."""

    manager: Text = "pip"
    packages: Packages
    timeout: float = 300


class ExecuteBatchRequest(RequestModel):
    """Programs to run once, with one response for all."""

    executions: Annotated[list[ExecuteRequest], Field(min_length=1, max_length=20)]


class EmptyRequest(RequestModel):
    """Arguments of a tool that has none."""


class SessionExecuteRequest(RequestModel):
    """Code to run, and the session."""

    session_id: Text
    code: Text
    timeout: float = 60


class SessionInstallRequest(InstallPackagesRequest):
    """Packages to install, and the session."""

    session_id: Text


class CloseSessionRequest(RequestModel):
    """A session to close."""

    session_id: Text


class ExecuteResponse(ResponseModel):
    """Result of a program."""

    id: str
    status: str
    language: str
    stdout: str
    stderr: str
    compile_output: str
    exit_code: int
    exit_signal: str | None
    execution_time_ms: int
    wall_time_ms: int
    memory_used_kb: int


class CodeResponse(ExecuteResponse):
    """Result of code in a session. ``result``, which is Sandlot's own field, is the value of the last expression as text."""

    session_id: str
    result: str | None


class SessionResponse(ResponseModel):
    """One session."""

    id: str
    session_id: str
    language: str
    status: str
    idle_ttl: int
    created_at: str = Field(description="ISO 8601, UTC.")
    expires_at: str = Field(description="End of the session if the session is not used until then.")


class SessionListResponse(ResponseModel):
    """All sessions, oldest first."""

    sessions: list[SessionResponse]


class InstallResponse(ResponseModel):
    """Result of an installation."""

    status: str
    manager: str
    packages: list[str]
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int


class LanguageResponse(ResponseModel):
    """A language of programs and sessions."""

    id: str
    name: str
    version: str
    aliases: list[str]
    file_extension: str
    example: str


class LanguageListResponse(ResponseModel):
    """All languages."""

    languages: list[LanguageResponse]
