"""What SandboxAPI's callers send, and what they have to be given: bodies and answers, field by field.

Law: ``stdout`` and ``stderr`` are never null: callers put them together without looking.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandlot.web.models import RequestModel, ResponseModel, Text

Packages = Annotated[list[Text], Field(min_length=1, max_length=100)]


class ExecuteBody(RequestModel):
    """A program to run once."""

    language: Text
    code: Text
    timeout: float = 10
    stdin: Text | None = None
    expected_output: Text | None = None


class SessionBody(RequestModel):
    """A session to create."""

    language: Text
    idle_ttl: float | None = None


class CodeBody(RequestModel):
    """Code to run in a session."""

    code: Text
    timeout: float = 60
    stdin: Text | None = None
    language: Text | None = None


class InstallBody(RequestModel):
    """Packages to install in a session."""

    manager: Text = "pip"
    packages: Packages
    timeout: float = 300


class BatchBody(RequestModel):
    """Programs to run once; all of what they write is one answer."""

    executions: Annotated[list[ExecuteBody], Field(min_length=1, max_length=20)]


class NothingBody(RequestModel):
    """What asks for no more than it says by its name."""


class SessionCodeBody(RequestModel):
    """Code to run in a session that is named beside it."""

    session_id: Text
    code: Text
    timeout: float = 60


class SessionPackagesBody(InstallBody):
    """Packages to install in a session that is named beside them."""

    session_id: Text


class CloseBody(RequestModel):
    """A session to close."""

    session_id: Text


class ExecuteAnswer(ResponseModel):
    """What code came to."""

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


class CodeAnswer(ExecuteAnswer):
    """The same in a session. ``result`` is ours: the value of the last expression, as text."""

    session_id: str
    result: str | None


class SessionAnswer(ResponseModel):
    """One session."""

    id: str
    session_id: str
    language: str
    status: str
    idle_ttl: int
    created_at: str = Field(description="ISO 8601, UTC.")
    expires_at: str = Field(description="When it ends if nothing more is done in it.")


class SessionsAnswer(ResponseModel):
    """All sessions, oldest first."""

    sessions: list[SessionAnswer]


class InstallAnswer(ResponseModel):
    """What an installation came to."""

    status: str
    manager: str
    packages: list[str]
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int


class LanguageAnswer(ResponseModel):
    """A language that code can be in."""

    id: str
    name: str
    version: str
    aliases: list[str]
    file_extension: str
    example: str


class LanguagesAnswer(ResponseModel):
    """All of them."""

    languages: list[LanguageAnswer]
