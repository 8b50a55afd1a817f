"""Templates that users build, and their builds.

Invariants:
- A name belongs to one template of an owner. Names of different owners are independent.
- A build never changes once it has ended. A tag of a template names one of its ready builds; sandboxes start from the build of a tag.
- The root file system of a build is described by its layers, so that it can be made again from them at any time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, TemplateId
from sandlot.model.images import Layer
from sandlot.model.paths import WORKSPACE
from sandlot.model.specs import Limits, RootKind, TemplateRef, User

DEFAULT_TEMPLATE_TAG: Final = "default"
"""Tag of the build from which a sandbox starts if the request names no tag."""
MAX_LINE_CHARS: Final = 4096
"""Maximum length of a line of the log of a build. Longer lines are cut."""
TEMPLATE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,126}[a-z0-9])?")
TEMPLATE_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class BuildStatus(StrEnum):
    """Status of a build."""

    WAITING = "waiting"
    """The build is created and has not begun: its files are uploaded, or it waits for its turn."""
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """True if the build will not change anymore."""
        return self in {BuildStatus.READY, BuildStatus.FAILED, BuildStatus.CANCELLED}


class LogLevel(StrEnum):
    """Level of a line in the log of a build."""

    INFO = "info"
    WARNING = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """Settings that a build gives the sandboxes that start from it.

    Args:
        env: Environment of all processes.
        user: User of processes whose request names none; empty: the default of the API.
        working_dir: Working directory of processes whose request names none; empty: the default of the API.
        start_command: Command of the shell that runs in every sandbox from the beginning; empty for none.
        ready_command: Command of the shell that succeeds once the start command is ready; empty for none.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    start_command: str = ""
    ready_command: str = ""


@dataclass(frozen=True, slots=True)
class TemplateStart:
    """Programs that run in every sandbox of a template from the beginning, and how they are started.

    Args:
        command: Start command for ``/bin/sh``; empty for none.
        ready_command: Command for ``/bin/sh`` that succeeds once the start command is ready; empty for none.
        cwd: Working directory of both.
        user: User of both.
    """

    command: str
    ready_command: str
    cwd: str
    user: User


@dataclass(frozen=True, slots=True)
class TemplateDefaults:
    """Values that sandboxes of a template get unless their request says otherwise.

    Args:
        root_kind: Kind of root file system that drivers need for the template: image if no build of it is a folder.
        limits: Limits.
        cwd: Working directory.
        user: User of processes whose request names none.
        start_command: Command of the shell that runs in every sandbox from the beginning; empty for none.
        ready_command: Command of the shell that succeeds once the start command is ready; empty for none.
        digest: Digest of the root file system of the build; empty for a built-in template.
        build: Id of the build; empty for a built-in template.
        languages: Names of the languages whose compilers and interpreters the template has; None if they are not known.
    """

    root_kind: RootKind = RootKind.TREE
    limits: Limits = field(default_factory=Limits)
    cwd: str = WORKSPACE
    user: User = User.USER
    start_command: str = ""
    ready_command: str = ""
    digest: str = ""
    build: str = ""
    languages: frozenset[str] | None = None

    @property
    def start(self) -> TemplateStart | None:
        """Programs that run in every sandbox of the template; None if there are none."""
        if not self.start_command and not self.ready_command:
            return None
        return TemplateStart(self.start_command, self.ready_command, self.cwd, self.user)

    def pin(self, template: TemplateRef) -> TemplateRef:
        """Return a reference to the build that these defaults describe; for a built-in template, to the current build."""
        return replace(template, digest=self.digest, build=self.build, tag="") if self.digest else template


@dataclass(frozen=True, slots=True)
class BuiltRoot:
    """Root file system of a build: the file system of a built-in template or nothing, and layers on top.

    Args:
        base: Digest of the image of a built-in template, without the guest; empty if the first layer is the lowest.
        base_name: Name of this built-in template; empty if there is none.
        layers: Layers, the lowest first. Their blobs are kept as long as a build needs them.
        size_bytes: Size of all files.
    """

    layers: tuple[Layer, ...]
    size_bytes: int
    base: str = ""
    base_name: str = ""


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A template of a user.

    Args:
        id: Id of the template.
        owner: Owner of the template.
        name: Name of the template.
        limits: Limits of sandboxes whose request names none.
        tags: Tag -> id of the build that it names.
        created_at: Time of the creation.
        updated_at: Time of the last change of the limits or tags.
    """

    id: TemplateId
    owner: OwnerId
    name: str
    limits: Limits
    created_at: datetime
    updated_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A build of a template.

    Args:
        id: UUID of the build.
        template: Template that is built.
        owner: Owner of the template.
        node: Node on which the build runs.
        status: Status of the build.
        tags: Tags that the build gets when it is ready.
        limits: Limits that sandboxes of the template get when the build is ready.
        created_at: Time at which the build was requested.
        started_at: Time at which the build began; None: not yet.
        ended_at: Time at which the build ended; None: not yet.
        step: Number of the step that runs or that failed, ``base`` or ``finalize``; empty before the first step.
        error: Reason of a failure, for people; empty if there is none.
        settings: Settings of sandboxes of a ready build.
        root: Root file system; None until the build is ready.
        snapshot_bytes: Size of the snapshot from which sandboxes of the template are restored; 0 if none was made.
    """

    id: str
    template: TemplateId
    owner: OwnerId
    node: NodeId
    status: BuildStatus
    limits: Limits
    created_at: datetime
    tags: tuple[str, ...] = (DEFAULT_TEMPLATE_TAG,)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    step: str = ""
    error: str = ""
    settings: TemplateSettings = field(default_factory=TemplateSettings)
    root: BuiltRoot | None = None
    snapshot_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the root file system and of the snapshot; 0 until the build is ready."""
        return 0 if self.root is None else self.root.size_bytes + self.snapshot_bytes

    def defaults(self, limits: Limits, digest: str) -> TemplateDefaults:
        """Return what sandboxes of the build get if their request does not say otherwise.

        Args:
            limits: Limits of the template.
            digest: Digest of the root file system.
        """
        settings = self.settings
        return TemplateDefaults(
            root_kind=RootKind.IMAGE,
            limits=limits,
            cwd=settings.working_dir or WORKSPACE,
            user=User(settings.user) if settings.user else User.USER,
            start_command=settings.start_command,
            ready_command=settings.ready_command,
            digest=digest,
            build=self.id,
        )


@dataclass(frozen=True, slots=True)
class BuildLine:
    """A line of the log of a build.

    Args:
        at: Time of the line.
        level: Level of the line.
        text: Text without a line break.
        step: Step as in :attr:`BuildRecord.step`.
        number: Number of the line, 1 for the first one; 0: the line is not stored yet.
    """

    at: datetime
    level: LogLevel
    text: str
    step: str = ""
    number: int = 0
