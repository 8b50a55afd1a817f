"""The service itself: who it is, what it can do."""

from __future__ import annotations

from pydantic import Field

from sandlot.server.native.schemas.base import Answer


class TemplateAnswer(Answer):
    """Something that a sandbox can be started from."""

    name: str
    description: str
    digest: str | None
    built: bool


class TemplatesAnswer(Answer):
    """What a sandbox can be started from."""

    templates: list[TemplateAnswer]


class VersionAnswer(Answer):
    """Who answers."""

    version: str
    generation: int = Field(description="Of the protocol between service and guest.")
    node: str
    pid: int


class VerdictAnswer(Answer):
    """Yes, or no and why."""

    ok: bool
    reason: str


class DriverAnswer(Answer):
    """What a driver can do on this host."""

    driver: str
    runtime: str
    abilities: dict[str, VerdictAnswer]


class CapabilitiesAnswer(Answer):
    """What this host can do."""

    drivers: list[DriverAnswer]


class HealthAnswer(Answer):
    """It answers."""

    status: str
    version: str


class StoppingAnswer(Answer):
    """It is about to end."""

    pid: int
    sandboxes: int = Field(description="How many it ends first.")
