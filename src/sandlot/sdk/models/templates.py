"""Templates of sandboxes, and their builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sandlot.model.specs import Limits
from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """A template that sandboxes can start from.

    Args:
        name: Value of ``template`` in ``Sandbox.create``.
        description: Content in one line.
        digest: Digest of the root file system image; None before the image was built.
        built: True if the image is ready on this host.
        building: Step of the build that is in progress; None if there is none.
        languages: Versions of compilers and interpreters by language, None before the image was built; empty if they are not known.
        limits: Limits of sandboxes and pools whose requests name none.
    """

    name: str
    description: str = ""
    digest: str | None = None
    built: bool = False
    building: str | None = None
    languages: Mapping[str, str | None] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, repr=False)
class TemplateBuild:
    """A build of a template.

    Args:
        id: Id of the build.
        template: Id of the template.
        status: ``waiting``, ``building``, ``ready``, ``failed`` or ``cancelled``.
        tags: Tags that the build gets when it is ready.
        step: Number of the step that runs or failed, ``base`` or ``finalize``; empty before the first step and after the last one.
        error: Reason of a failure; empty if there is none.
        size_bytes: Size of the root file system; None until the build is ready.
        created_at: Time of the request.
        started_at: Time of the start; None before it.
        ended_at: Time of the end; None before it.
    """

    id: str
    template: str
    status: str
    tags: tuple[str, ...] = ()
    step: str = ""
    error: str = ""
    size_bytes: int | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    __repr__ = short_repr("id", "template", "status", "step")

    @property
    def has_ended(self) -> bool:
        """True if the build will not change anymore."""
        return self.status in {"ready", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class BuildLine:
    """A line of the log of a build.

    Args:
        number: Number of the line, from 1.
        text: Text.
        level: ``info``, ``warn`` or ``error``.
        step: Step that printed the line.
        at: Time of the line.
    """

    number: int
    text: str
    level: str = "info"
    step: str = ""
    at: datetime | None = None
