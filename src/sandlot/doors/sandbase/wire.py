"""What Sandbase's clients send, and how they are answered.

Law: A field of E2B's that means nothing here has the one value that does nothing; any other is refused, with the reason.
"""

from __future__ import annotations

from typing import Literal

from fastapi import Response
from pydantic import Field

from sandlot.web.bodies import Body, Query, Text, Texts, Words


class SandboxBody(Body):
    """A sandbox to create."""

    template_id: Text = Field(alias="templateID")
    timeout: float | None = None
    metadata: Words | None = None
    env_vars: Words | None = Field(default=None, alias="envVars")
    allow_internet_access: bool | None = Field(default=None, alias="allowInternetAccess")
    auto_pause: bool = Field(default=False, alias="autoPause")


class TimeoutBody(Body):
    """How long a sandbox lives from now on."""

    timeout: float


class RefreshBody(Body):
    """The same, in the words of older pages."""

    duration: float


class ResumeBody(Body):
    """How long a sandbox lives once it goes on."""

    timeout: float | None = None


class ProcessBody(Body):
    """A command to run: a program and its arguments, and no shell."""

    cmd: Text
    args: Texts | None = None
    env_vars: Words | None = Field(default=None, alias="envVars")
    cwd: Text | None = None
    timeout: float | None = None


class ContentBody(Body):
    """A file to write."""

    path: Text
    content: Text


class FolderBody(Body):
    """A folder to make."""

    path: Text


class MoveBody(Body):
    """Something to move."""

    source: Text
    destination: Text


class PauseBody(Body):
    """How E2B's client pauses: memory is always kept."""

    memory: Literal[True] = True


class PathQuery(Query):
    """Where."""

    path: Text


class FolderQuery(Query):
    """Where; the working folder unless it is said."""

    path: Text = "/workspace"


class StatusQuery(Query):
    """Which sandboxes."""

    status: Text | None = None


class MetricsQuery(Query):
    """From when until when, in seconds since 1970, as E2B's client asks."""

    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class E2bSandboxBody(SandboxBody):
    """A sandbox to create, as E2B's client asks for it."""

    allow_internet_access: bool | None = None


class E2bListQuery(Query):
    """Which sandboxes, and which part of the list, as E2B's client asks."""

    metadata: Text | None = None
    state: Text | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    next_token: Text | None = Field(default=None, alias="nextToken")


class EventsQuery(Query):
    """How many events."""

    limit: int = Field(default=100, ge=1, le=1000)


class WebhookChangeBody(Body):
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
