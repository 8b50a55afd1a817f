"""What Sandbase's clients send, and how they are answered.

Law: A field of E2B's that means nothing here has the one value that does nothing; any other is refused, with the reason.
"""

from __future__ import annotations

from typing import Literal

from fastapi import Response
from pydantic import Field

from sandlot.web.models import Metadata, QueryModel, RequestModel, Text, Texts


class SandboxBody(RequestModel):
    """A sandbox to create."""

    template_id: Text = Field(alias="templateID")
    timeout: float | None = None
    metadata: Metadata | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    allow_internet_access: bool | None = Field(default=None, alias="allowInternetAccess")
    auto_pause: bool = Field(default=False, alias="autoPause")


class TimeoutBody(RequestModel):
    """How long a sandbox lives from now on."""

    timeout: float


class RefreshBody(RequestModel):
    """The same, in the words of older pages."""

    duration: float


class ResumeBody(RequestModel):
    """How long a sandbox lives once it goes on."""

    timeout: float | None = None


class ProcessBody(RequestModel):
    """A command to run: a program and its arguments, and no shell."""

    cmd: Text
    args: Texts | None = None
    env_vars: Metadata | None = Field(default=None, alias="envVars")
    cwd: Text | None = None
    timeout: float | None = None


class ContentBody(RequestModel):
    """A file to write."""

    path: Text
    content: Text


class FolderBody(RequestModel):
    """A folder to make."""

    path: Text


class MoveBody(RequestModel):
    """Something to move."""

    source: Text
    destination: Text


class PauseBody(RequestModel):
    """How E2B's client pauses: memory is always kept."""

    memory: Literal[True] = True


class PathQuery(QueryModel):
    """Where."""

    path: Text


class FolderQuery(QueryModel):
    """Where; the working folder unless it is said."""

    path: Text = "/workspace"


class StatusQuery(QueryModel):
    """Which sandboxes."""

    status: Text | None = None


class MetricsQuery(QueryModel):
    """From when until when, in seconds since 1970, as E2B's client asks."""

    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class E2bSandboxBody(SandboxBody):
    """A sandbox to create, as E2B's client asks for it."""

    allow_internet_access: bool | None = None


class E2bListQuery(QueryModel):
    """Which sandboxes, and which part of the list, as E2B's client asks."""

    metadata: Text | None = None
    state: Text | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    next_token: Text | None = Field(default=None, alias="nextToken")


class EventsQuery(QueryModel):
    """How many events."""

    limit: int = Field(default=100, ge=1, le=1000)


class WebhookChangeBody(RequestModel):
    """What to change of a webhook; what is left out stays as it is."""

    url: Text | None = None
    name: Text | None = None
    events: Texts | None = None
    resource_type: Literal["sandbox"] = Field(default="sandbox", alias="resourceType")
    enabled: bool | None = None
    signature_secret: Text | None = Field(default=None, alias="signatureSecret")


class WebhookBody(WebhookChangeBody):
    """A webhook to make."""

    url: Text


NOTHING = 204
"""The status of what was done and has no answer."""


def done() -> Response:
    """It was done, and there is nothing to say."""
    return Response(status_code=NOTHING)
