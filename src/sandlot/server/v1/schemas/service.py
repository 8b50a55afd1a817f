"""The service itself: who it is, what it can do."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from sandlot.model.ports import Resources
from sandlot.model.service import Capacity
from sandlot.server.v1.schemas.base import ResponseModel


class TemplateAnswer(ResponseModel):
    """Something that a sandbox can be started from."""

    name: str
    description: str
    digest: str | None
    built: bool
    building: str | None = Field(description="What its build is at, for a person; null where nobody builds it.")


class TemplatesAnswer(ResponseModel):
    """What a sandbox can be started from."""

    templates: list[TemplateAnswer]


class VersionAnswer(ResponseModel):
    """Who answers."""

    version: str
    generation: int = Field(description="Of the protocol between service and guest.")
    node: str
    pid: int


class VerdictAnswer(ResponseModel):
    """Yes, or no and why."""

    ok: bool
    reason: str


class DriverAnswer(ResponseModel):
    """What a driver can do on this host."""

    driver: str
    runtime: str
    abilities: dict[str, VerdictAnswer]


class CapabilitiesAnswer(ResponseModel):
    """What this host can do."""

    drivers: list[DriverAnswer]


class ResourcesAnswer(ResponseModel):
    """An amount of what the host has."""

    memory_bytes: int
    disk_bytes: int
    pids: int = Field(description="Tasks of the host: a process inside may take several.")

    @classmethod
    def of(cls, amount: Resources) -> Self:
        """An amount, told."""
        return cls(memory_bytes=amount.memory_bytes, disk_bytes=amount.disk_bytes, pids=amount.pids)


class CapacityAnswer(ResponseModel):
    """What this node may promise to sandboxes. A sandbox is promised the most that it can take, until its last trace is gone."""

    total: ResourcesAnswer = Field(description="All that may be promised now: what the host has less a reserve, times the ratios.")
    promised: ResourcesAnswer
    free: ResourcesAnswer
    sandboxes: int = Field(description="How many hold a promise, those included that are being created or removed.")
    max_sandboxes: int

    @classmethod
    def of(cls, found: Capacity, max_sandboxes: int) -> Self:
        """The figures, told."""
        total, promised, free = (ResourcesAnswer.of(each) for each in (found.allocatable, found.reserved, found.available))
        return cls(total=total, promised=promised, free=free, sandboxes=found.sandboxes, max_sandboxes=max_sandboxes)


class HealthAnswer(ResponseModel):
    """It answers."""

    status: str
    version: str


class StoppingAnswer(ResponseModel):
    """It is about to end."""

    pid: int
    sandboxes: int = Field(description="How many live on; the next start takes them over.")
