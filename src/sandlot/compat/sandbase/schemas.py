"""Requests of the Sandbase API. Responses are objects of ``translate.py``.

Invariant: A field of E2B's client without a meaning here accepts only the value that has no effect.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, Text, Texts


class CreateSandboxRequest(RequestModel):
    """A sandbox to create."""

    template_id: Text = Field(alias="templateID")
    timeout: float | None = None
    metadata: Metadata | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    allow_internet_access: bool | None = Field(default=None, alias="allowInternetAccess")
    auto_pause: bool = Field(default=False, alias="autoPause")


class SetTimeoutRequest(RequestModel):
    """Seconds from now until a sandbox times out."""

    timeout: float


class RefreshRequest(RequestModel):
    """The same by the name that earlier pages of the vendor document."""

    duration: float


class ResumeRequest(RequestModel):
    """Timeout of a resumed sandbox."""

    timeout: float | None = None


class RunProcessRequest(RequestModel):
    """A program to run, without a shell."""

    cmd: Text
    args: Texts | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    cwd: Text | None = None
    timeout: float | None = None


class WriteFileRequest(RequestModel):
    """A file to write."""

    path: Text
    content: Text


class CreateDirectoryRequest(RequestModel):
    """A directory to create."""

    path: Text


class MoveFileRequest(RequestModel):
    """A file or directory to move."""

    source: Text
    destination: Text


class PauseRequest(RequestModel):
    """Options of E2B's client; memory is always saved."""

    memory: Literal[True] = True


class PathQuery(QueryModel):
    """A path."""

    path: Text


class DirectoryQuery(QueryModel):
    """A path; by default the working directory."""

    path: Text = "/workspace"


class StatusQuery(QueryModel):
    """Filter of a list of sandboxes."""

    status: Text | None = None


class MetricsQuery(QueryModel):
    """Period of metrics for E2B's client, in seconds since 1970."""

    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class E2bCreateSandboxRequest(CreateSandboxRequest):
    """A sandbox to create, as E2B's client sends it."""

    allow_internet_access: bool | None = None


class E2bListQuery(QueryModel):
    """Filter and page of a list of sandboxes for E2B's client."""

    metadata: Text | None = None
    state: Text | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    next_token: Text | None = Field(default=None, alias="nextToken")


class EventsQuery(QueryModel):
    """Number of events."""

    limit: int = Field(default=100, ge=1, le=1000)


class UpdateWebhookRequest(RequestModel):
    """Changes of a webhook. Omitted fields stay unchanged."""

    url: Text | None = None
    name: Text | None = None
    events: Texts | None = None
    resource_type: Literal["sandbox"] = Field(default="sandbox", alias="resourceType")
    enabled: bool | None = None
    signature_secret: Text | None = Field(default=None, alias="signatureSecret")


class CreateWebhookRequest(UpdateWebhookRequest):
    """A webhook to create."""

    url: Text
